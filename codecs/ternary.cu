// Kernels of codec ternary. See coarse.cuh.
#include "codecs/coarse.cuh"

template struct slimwire::CoarseCuda<slimwire::CoarseLevels<2>>;
