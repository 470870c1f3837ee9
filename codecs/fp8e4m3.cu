// Kernels of codec fp8e4m3. See block_float.cuh.
#include "codecs/block_float.cuh"

template struct slimwire::BlockFloatCuda<slimwire::Fp8e4m3>;
