// Kernels of codec mxfp8e5m2. See block_float.cuh.
#include "codecs/block_float.cuh"

template struct slimwire::BlockFloatCuda<slimwire::MxFp8e5m2>;
