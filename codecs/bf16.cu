// Kernels of codec bf16. See cast.cuh.
#include "codecs/cast.cuh"

template struct slimwire::CastCuda<slimwire::DType::kBfloat16>;
