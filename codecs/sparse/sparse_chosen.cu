// Kernels of topk and threshold. See sparse_chosen.cuh.
#include "codecs/sparse/sparse_chosen.cuh"

namespace slimwire {

using TopKLaunchers = Launchers<SparseKernels<SparseKind::kTopK>>;
template cudaError_t TopKLaunchers::encode(const EncodeArgs&, cudaStream_t);
template cudaError_t TopKLaunchers::decode(const DecodeArgs&, cudaStream_t);
template struct SparseCuda<SparseKind::kTopK>;

using ThresholdLaunchers = Launchers<SparseKernels<SparseKind::kThreshold>>;
template cudaError_t ThresholdLaunchers::encode(const EncodeArgs&, cudaStream_t);
template cudaError_t ThresholdLaunchers::decode(const DecodeArgs&, cudaStream_t);
template struct SparseCuda<SparseKind::kThreshold>;

}  // namespace slimwire
