#include "collectives/communicator/deferred_free.h"

#include <unistd.h>

#include <utility>

#include "codecs/base/device_scope.h"
#include "collectives/communicator/communicator.h"

namespace slimwire {

void DeferredFreeList::park(DeferredFree memory) {
    const std::lock_guard lock(mutex_);
    parked_.push_back(std::move(memory));
    any_.store(true, std::memory_order_release);
}

void DeferredFreeList::collect(const DeviceApi& api, uint64_t patience_us) {
    constexpr unsigned kPauseUs = 500;
    const uint64_t deadline_us = steady_us() + patience_us;
    while (any_.load(std::memory_order_acquire)) {
        {
            const std::lock_guard lock(mutex_);
            std::erase_if(parked_, [&](const DeferredFree& parked) {
                const DeviceScope device(api, parked.device);
                if (!tolerate(api, api.event_query(parked.end))) {
                    return false;
                }
                for (void* memory : parked.memory) {
                    tolerate(api, api.free(memory));
                }
                tolerate(api, api.event_destroy(parked.end));
                return true;
            });
            any_.store(!parked_.empty(), std::memory_order_release);
        }
        if (steady_us() >= deadline_us) {
            return;
        }
        usleep(kPauseUs);
    }
}

}  // namespace slimwire
