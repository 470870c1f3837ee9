#include "codecs/copy_lines.h"

#include <cstring>

#include "codecs/launch.h"

namespace slimwire {

void copy_lines_on_host(const CopyLinesArgs& args) {
    if (args.bytes > 0) {
        std::memcpy(device_view(args.output), device_view(args.input),
                    static_cast<size_t>(args.bytes));
    }
}

Status enqueue(const DeviceApi& api, const CopyLinesArgs& args, cudaStream_t stream) {
#ifdef SLIMWIRE_HAVE_CUDA_KERNELS
    constexpr auto kKernel = copy_lines_on_cuda;
#else
    constexpr decltype(&copy_lines_on_cuda) kKernel = nullptr;
#endif
    return enqueue_operation(api, {"copy_lines", "copy_lines", copy_lines_on_host, kKernel}, args,
                             stream);
}

Status load_copy_lines(const DeviceApi& api) {
#ifdef SLIMWIRE_HAVE_CUDA_KERNELS
    constexpr auto kLoad = load_copy_lines_on_cuda;
#else
    constexpr decltype(&load_copy_lines_on_cuda) kLoad = nullptr;
#endif
    return load_operation(api, "copy_lines", kLoad);
}

}  // namespace slimwire
