// Kernels of topk and threshold. See sparse_chosen.cuh.
#include "codecs/sparse/sparse_chosen.cuh"

template struct slimwire::SparseCuda<slimwire::SparseKind::kTopK>;
template struct slimwire::SparseCuda<slimwire::SparseKind::kThreshold>;
