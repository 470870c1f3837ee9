// Kernels of codec sign. See coarse.cuh.
#include "codecs/coarse.cuh"

template struct slimwire::CoarseCuda<slimwire::CoarseSign>;
