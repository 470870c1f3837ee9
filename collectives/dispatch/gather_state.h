// What this process keeps of tensors that a later one finds again: the records of a state file, and
// where the bytes of each are. For slimwire_save_state and the ring of SLIMWIRE_STATE.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "collectives/communicator/process.h"
#include "collectives/dispatch/random_steps.h"
#include "collectives/state/state_file.h"

namespace slimwire {

struct Session;

// Where the bytes of a record are.
struct StateSource {
    const std::byte* host = nullptr;  // else on the device
    const void* memory = nullptr;
    int device = 0;
    std::vector<std::byte> own = {};  // of progress; host is null

    // Null: on the device.
    [[nodiscard]] const std::byte* on_host() const noexcept {
        return own.empty() ? host : own.data();
    }
};

struct GatheredState {
    StateIndex index;
    std::vector<StateSource> sources;  // of its tensors
};
// What the sources name is there until it returns.
using UseState = std::function<Status(GatheredState& all)>;
// `runtime` is null before the first NCCL call. No other thread may be making calls. `idle`: those
// made have ended, and use() may wait; else kUnsupported where records have to be read from the
// device here.
Status gather_state(Runtime* runtime, uint64_t config_hash, bool idle, const UseState& use);

// Copies device memory that no work is using.
Status copy_to_host(const DeviceApi& api, int device, const void* from, std::span<std::byte> out);
// Calls of this process that drew random numbers; those that the communicator took over are not in
// it.
Result<RandomSteps::Counts> drawn_here(const Runtime& runtime, const Session& state);

}  // namespace slimwire
