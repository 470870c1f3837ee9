// Kernels of codec fp8e4m3. See fp8.cuh.
#include "codecs/fp8.cuh"

template struct slimwire::Fp8Cuda<slimwire::DType::kFloat8e4m3>;
