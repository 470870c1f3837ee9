// Kernels of codec int4. See block_int.cuh.
#include "codecs/block_int/block_int.cuh"

template struct slimwire::Launchers<slimwire::BlockIntKernels<4>>;
