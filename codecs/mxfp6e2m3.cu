// Kernels of codec mxfp6e2m3. See block_float.cuh.
#include "codecs/block_float.cuh"

template struct slimwire::BlockFloatCuda<slimwire::MxFp6e2m3>;
