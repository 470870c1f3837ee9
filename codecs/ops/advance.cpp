#include "codecs/ops/advance.h"

#include "codecs/launch.h"

namespace slimwire {

void advance_on_host(const AdvanceArgs& args) {
    *device_view_as<uint32_t>(args.counter) += args.by;
}

Status enqueue(const DeviceApi& api, const AdvanceArgs& args, cudaStream_t stream) {
    return enqueue_operation(api, {"advance", advance_on_host, advance_on_cuda}, args, stream);
}

}  // namespace slimwire
