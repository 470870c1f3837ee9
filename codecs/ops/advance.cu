// Kernel of advance.h.
#include "codecs/gpu/work.cuh"
#include "codecs/ops/advance.h"

namespace slimwire {
namespace {

__global__ void advance_kernel(AdvanceArgs args) {
    *args.counter += args.by;
}

}  // namespace

cudaError_t advance_on_cuda(const AdvanceArgs& args, cudaStream_t stream) {
    return start_kernel(advance_kernel, 1, 1, 0, stream, args);
}

}  // namespace slimwire
