// Kernels of codec mxfp6e3m2. See block_float.cuh.
#include "codecs/block_float.cuh"

template struct slimwire::BlockFloatCuda<slimwire::MxFp6e3m2>;
