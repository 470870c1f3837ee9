// Kernels of codec qsgd; those of its codes of 2 bits are those of ternary.cu. See coarse.cuh.
#include "codecs/coarse.cuh"

template struct slimwire::CoarseCuda<slimwire::CoarseLevels<4>>;
template struct slimwire::CoarseCuda<slimwire::CoarseLevels<6>>;
template struct slimwire::CoarseCuda<slimwire::CoarseLevels<8>>;
