#include "collectives/dispatch/random_steps.h"

#include <utility>

#include "codecs/base/own_stream.h"
#include "codecs/ops/advance.h"

namespace slimwire {

Status RandomSteps::move_to_device(const DeviceApi& api, DeviceMemory* memory, int device) {
    void* words = nullptr;
    SLIMWIRE_TRY(
        cuda_status(api, memory->allocate(api, device, sizeof here, &words), "device steps"));
    auto* steps = static_cast<uint32_t*>(words);
    const Status status = on_own_stream(api, "device steps", [&](cudaStream_t own) -> Status {
        SLIMWIRE_TRY(
            cuda_status(api, api.memset_async(words, 0, sizeof here, own), "device steps"));
        for (int i = 0; i < 2; ++i) {
            SLIMWIRE_TRY(enqueue(api, AdvanceArgs{steps + i, here[i]}, own));
        }
        return {};
    });
    if (!status.ok()) {
        memory->free(api, device, words);
        return status;
    }
    on_device = steps;
    return {};
}

void RandomSteps::release(Retirement* left) noexcept {
    left->add(std::exchange(on_device, nullptr));
}

}  // namespace slimwire
