#include "collectives/dispatch/random_steps.h"

#include "codecs/ops/advance.h"

namespace slimwire {

Status RandomSteps::move_to_device(const BeforeCall& before) {
    const DeviceApi& api = before.api;
    static_assert(sizeof here <= DeviceObjects::kCounterBytes);
    auto* const steps = static_cast<uint32_t*>(before.objects->counters());
    SLIMWIRE_TRY(before.enqueue([&](cudaStream_t stream) -> Status {
        SLIMWIRE_TRY(
            cuda_status(api, api.memset_async(steps, 0, sizeof here, stream), "device steps"));
        for (size_t i = 0; i < here.size(); ++i) {
            SLIMWIRE_TRY(enqueue(api, AdvanceArgs{steps + i, here[i]}, stream));
        }
        return {};
    }));
    on_device = steps;
    return {};
}

}  // namespace slimwire
