// Kernels of codec fp8e5m2. See block_float.cuh.
#include "codecs/block_float.cuh"

template struct slimwire::BlockFloatCuda<slimwire::Fp8e5m2>;
