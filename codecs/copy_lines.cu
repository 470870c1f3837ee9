// Kernel of copy_lines.h.
#include "codecs/cuda/work.cuh"
#include "codecs/plain_args.h"

namespace slimwire {
namespace {

// A thread's part of a line.
constexpr int64_t kPart = 16;
static_assert(kCopyLine % kPart == 0 && kWarpThreads * kPart % kCopyLine == 0);

__global__ void __launch_bounds__(kThreads) copy_lines_kernel(CopyLinesArgs args, Work) {
    const auto* const from = static_cast<const uint8_t*>(args.input);
    auto* const to = static_cast<uint8_t*>(args.output);
    int64_t whole = 0;
    if (((reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to)) & (kPart - 1)) ==
        0) {
        whole = args.bytes / kPart;
        for (int64_t i = thread_index(); i < whole; i += thread_total()) {
            reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
        }
    }
    for (int64_t i = whole * kPart + thread_index(); i < args.bytes; i += thread_total()) {
        to[i] = from[i];
    }
}

}  // namespace

cudaError_t copy_lines_on_cuda(const CopyLinesArgs& args, cudaStream_t stream) {
    if (args.bytes <= 0) {
        return cudaSuccess;
    }
    const Work work = Work::of(args.bytes, args.bytes, kPart);
    return launch(copy_lines_kernel, args, work, threads_for(work, 1), stream);
}

cudaError_t load_copy_lines_on_cuda() {
    return load_kernel(copy_lines_kernel);
}

}  // namespace slimwire
