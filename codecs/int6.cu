// Kernels of codec int6. See block_int.cuh.
#include "codecs/block_int.cuh"

template struct slimwire::BlockIntCuda<6>;
