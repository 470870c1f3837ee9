// Kernels of codec fp16. See cast.cuh.
#include "codecs/cast.cuh"

template struct slimwire::CastCuda<slimwire::DType::kFloat16>;
