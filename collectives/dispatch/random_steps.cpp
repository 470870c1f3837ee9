#include "collectives/dispatch/random_steps.h"

#include <utility>

#include "codecs/ops/advance.h"

namespace slimwire {

Status RandomSteps::move_to_device(const BeforeCall& before, DeviceMemory* memory, int device) {
    const DeviceApi& api = before.api;
    void* words = nullptr;
    SLIMWIRE_TRY(
        cuda_status(api, memory->allocate(api, device, sizeof here, &words), "device steps"));
    auto* steps = static_cast<uint32_t*>(words);
    const Status status = before.enqueue([&](cudaStream_t stream) -> Status {
        SLIMWIRE_TRY(
            cuda_status(api, api.memset_async(words, 0, sizeof here, stream), "device steps"));
        for (int i = 0; i < 2; ++i) {
            SLIMWIRE_TRY(enqueue(api, AdvanceArgs{steps + i, here[i]}, stream));
        }
        return {};
    });
    if (!status.ok()) {
        before.retire(memory, device, words);
        return status;
    }
    on_device = steps;
    return {};
}

void RandomSteps::release(Retirement* left) noexcept {
    left->add(std::exchange(on_device, nullptr));
}

}  // namespace slimwire
