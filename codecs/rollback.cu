// Kernel of rollback.h. A thread takes 16 bytes; all read the same flag.
#include "codecs/cuda/work.cuh"
#include "codecs/rollback_args.h"

namespace slimwire {
namespace {

constexpr int64_t kUnitBytes = 16;

__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    roll_back_kernel(RollBackArgs args, Work work) {
    const bool undo = args.flag != nullptr && *args.flag == args.undo;
    const auto* const from = static_cast<const uint4*>(undo ? args.copy : args.state);
    auto* const to = static_cast<uint4*>(undo ? args.state : args.copy);
    work.walk(thread_index(), thread_total(), 1,
              [&](int64_t, int64_t unit, int64_t) { to[unit] = from[unit]; });
}

}  // namespace

cudaError_t roll_back_on_cuda(const RollBackArgs& args, cudaStream_t stream) {
    const int64_t units = args.bytes / kUnitBytes;
    if (units <= 0) {
        return cudaSuccess;
    }
    const Work work = Work::of(units, units, 1);
    return launch(roll_back_kernel, args, work, threads_for(work, 1), stream);
}

}  // namespace slimwire
