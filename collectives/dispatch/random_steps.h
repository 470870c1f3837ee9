// What stochastic rounding draws by: calls of one communicator so far that drew random numbers.
// Collectives, which all ranks count alike, and messages are counted apart. Under stream capture a
// count must advance with every replay, so it then lives in device memory.
#pragma once

#include <array>
#include <cstdint>

#include "collectives/communicator/device_objects.h"

namespace slimwire {

struct RandomSteps {
    // Collectives, messages; and what captured calls add to Progress::replicated_calls.
    using Counts = std::array<uint32_t, 3>;
    Counts here{};  // of this process; not counted on once `on_device` is there
    // From the first captured call on, and then for all calls; in the communicator's reserve.
    uint32_t* on_device = nullptr;
    // Of the processes before, whose state was loaded (save_state.h). This rank's own: what ranks
    // draw alike goes by Progress::drawn instead.
    uint32_t before[2] = {};

    // Moves the counts to device memory, with their present values. Not twice.
    Status move_to_device(const BeforeCall& before);
};

}  // namespace slimwire
