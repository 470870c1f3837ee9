#include "collectives/dispatch/random_steps.h"

#include <utility>

#include "codecs/base/own_stream.h"
#include "codecs/ops/advance.h"

namespace slimwire {

Status RandomSteps::move_to_device(const DeviceApi& api) {
    void* words = nullptr;
    SLIMWIRE_TRY(cuda_status(api, api.malloc(&words, sizeof here), "device steps"));
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
        tolerate(api, api.free(words));
        return status;
    }
    on_device = steps;
    return {};
}

void RandomSteps::release(const DeviceApi& api, std::vector<void*>* left) noexcept {
    void* const words = std::exchange(on_device, nullptr);
    if (words != nullptr && left != nullptr) {
        left->push_back(words);
    } else if (words != nullptr) {
        tolerate(api, api.free(words));
    }
}

}  // namespace slimwire
