// Kernels of codec natural. See coarse.cuh.
#include "codecs/coarse.cuh"

template struct slimwire::CoarseCuda<slimwire::CoarsePowers<8>>;
template struct slimwire::CoarseCuda<slimwire::CoarsePowers<4>>;
