#include "codecs/advance.h"

#include "codecs/launch.h"

namespace slimwire {

void advance_on_host(const AdvanceArgs& args) {
    *device_view_as<uint32_t>(args.counter) += args.by;
}

Status enqueue(const DeviceApi& api, const AdvanceArgs& args, cudaStream_t stream) {
#ifdef SLIMWIRE_HAVE_CUDA_KERNELS
    constexpr auto kKernel = advance_on_cuda;
#else
    constexpr decltype(&advance_on_cuda) kKernel = nullptr;
#endif
    return enqueue_operation(api, {"advance", "advance", advance_on_host, kKernel}, args, stream);
}

}  // namespace slimwire
