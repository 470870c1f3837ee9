// Kernels of codec mxfp4. See block_float.cuh.
#include "codecs/block_float.cuh"

template struct slimwire::BlockFloatCuda<slimwire::MxFp4>;
