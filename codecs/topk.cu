// Kernels of codec topk. See sparse_chosen.cuh.
#include "codecs/sparse_chosen.cuh"

template struct slimwire::SparseCuda<slimwire::SparseKind::kTopK>;
