#include "codecs/rollback.h"

#include <cstring>

#include "codecs/launch.h"

namespace slimwire {

void roll_back_on_host(const RollBackArgs& args) {
    const auto bytes = static_cast<size_t>(args.bytes);
    void* const state = device_view_as<uint8_t>(args.state);
    void* const copy = device_view_as<uint8_t>(args.copy);
    if (args.flag != nullptr && *device_view_as<uint32_t>(args.flag) == args.undo) {
        std::memcpy(state, copy, bytes);
    } else {
        std::memcpy(copy, state, bytes);
    }
}

Status enqueue(const DeviceApi& api, const RollBackArgs& args, cudaStream_t stream) {
    return enqueue_operation(
        api, {"roll_back", "roll_back", roll_back_on_host, SLIMWIRE_KERNEL(roll_back_on_cuda)},
        args, stream);
}

}  // namespace slimwire
