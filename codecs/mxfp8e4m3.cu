// Kernels of codec mxfp8e4m3. See block_float.cuh.
#include "codecs/block_float.cuh"

template struct slimwire::BlockFloatCuda<slimwire::MxFp8e4m3>;
