// The store of error-feedback residuals: device buffers by tensor key, one store a process.
// Buffers are zero when made, and are only touched by work on the streams of the calls that use
// them. They live until their communicator is forgotten; those of an earlier model, and of buffers
// that do not come again, only until the next is made. Thread-safe.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "collectives/call/call.h"
#include "collectives/call/training.h"
#include "collectives/communicator/device_memory.h"
#include "collectives/communicator/device_objects.h"
#include "collectives/identity/step_detector.h"
#include "collectives/identity/tensor_names.h"
#include "collectives/policy/policy.h"
#include "collectives/state/state_file.h"

namespace slimwire {

struct Communicator;
struct Plan;

// Which tensor a call carries, as far as NCCL tells: the communicator, the facts of the call, and
// its slot in the training step; while that is not known the result's address (the sender's own
// where it gets none), which is local knowledge and used for local state only.
struct TensorKey {
    uint64_t comm_key = 0;
    CallSignature signature;
    const void* address = nullptr;  // null where the slot counts
    uint32_t slot = 0;              // of the StepPosition, as is the next
    uint32_t ordinal = 0;

    [[nodiscard]] auto order() const noexcept {
        return std::tuple(comm_key, signature.op, signature.dtype, signature.redop,
                          signature.root_or_peer, signature.count, signature.ranges_id,
                          signature.ordinal, address, slot, ordinal);
    }
    bool operator<(const TensorKey& other) const noexcept { return order() < other.order(); }
};

// The use of a tensor's residual by one call.
struct TensorUse {
    TensorKey key;
    uint64_t path = 0;              // StepPosition's; 0 by address
    uint32_t equals = 0;            // StepPosition's
    const void* address = nullptr;  // of the call, also where its slot counts
    uint32_t models = 0;            // ModelStarts::count()
    bool single = false;            // its slot counts, and is StepPosition's `single`
    const char* name = nullptr;     // that the program gave the call's memory
    uint32_t repeats = 0;           // StepPosition's
};

// `place`: of the call; a plan that needs a slot is run with one that is known. Equal calls that
// are a step each may yet be of several tensors, so that what is local goes by address.
inline TensorUse identify(uint64_t comm_key,
                          const CollectiveCall& call,
                          bool needs_slot,
                          const StepPosition& place,
                          uint32_t models = 0) noexcept {
    const void* const address = call.recv != nullptr ? call.recv : call.send;
    if (place.known() && (needs_slot || !place.single)) {
        return {{comm_key, call.signature, nullptr, place.slot, place.ordinal},
                place.path,
                place.equals,
                address,
                models,
                place.single,
                TensorNames::of(call)};
    }
    return {.key = {comm_key, call.signature, address},
            .address = address,
            .models = models,
            .repeats = place.repeats};
}

// What tells a tensor with a place in other processes, too, and what its residuals lie by.
struct CheckpointSlot {
    uint64_t comm = 0;    // Communicator::checkpoint_key; 0: no other process may find it
    uint64_t shape = 0;   // Plan::residual_shape
    bool shared = false;  // StateTensor::shared: EF21's estimates
    // What says where in the residuals what lies; both outlive them. Null: nobody asks.
    const Plan* plan = nullptr;
    const Communicator* communicator = nullptr;
};

// How a tensor's residuals were come by.
enum class ResidualOrigin : uint8_t {
    kKept,      // from its last call
    kMade,      // zero, at its first
    kRestored,  // from a loaded state, at its first
};

// A tensor's residuals for one call, valid until the tensor's next.
struct Residual {
    void* buffer = nullptr;  // null where the budget or the device has no room
    ResidualOrigin origin = ResidualOrigin::kKept;
    // That the gradients had when the tensor was called last (follow_loss_scale()); NaN: not told
    // then.
    double* loss_scale = nullptr;
    // For the first time the calls of a `single` slot have come from a few buffers in turn for
    // long, as those of several tensors do.
    bool in_turn = false;
    uint64_t name = 0;  // restored by it: named()'s path
    bool freed_others = false;

    // As most calls get it.
    [[nodiscard]] bool usual() const noexcept {
        return buffer != nullptr && origin == ResidualOrigin::kKept && !in_turn && !freed_others;
    }
    // Whether follow_loss_scale() has something to do.
    [[nodiscard]] bool has_other_scale() const noexcept {
        const double now = training_state().loss_scale.load(std::memory_order_relaxed);
        return buffer != nullptr && now != *loss_scale && !std::isnan(now);
    }
};

// Residuals in the units of the gradients: where the loss scale that the program tells
// (slimwire_set_loss_scale) changed, a tensor's residuals are multiplied by as much on `stream`
// before its next call. Nothing where it was not known then or now. Factors of low rank have no
// units and stay; thresholds follow the data by themselves. Never under capture, whose replays
// would multiply each time.
Status follow_loss_scale(const DeviceApi& api,
                         const Plan& plan,
                         const Residual& residual,
                         cudaStream_t stream);

class ResidualStore {
  public:
    // `budget` has what all buffers hold, `memory` the buffers; both outlive the store.
    ResidualStore(MemoryBudget* budget, DeviceMemory* memory) noexcept
        : budget_(budget), memory_(memory) {}

    // The residuals of a tensor, made on `device` and zeroed at first use, and zeroed when its path
    // is another than at the last use, or, of what is not shared, the count of models. Instead of
    // zeros they are what was loaded for the tensor (loaded_state.h), else what is not shared and
    // was kept for the call's address.
    Result<Residual> get(const BeforeCall& before,
                         int device,
                         const TensorUse& use,
                         uint64_t bytes,
                         const CheckpointSlot& lasting);
    // Those of the tensor if there are any, as the last call of this path left them; else null.
    [[nodiscard]] void* find(const TensorUse& use) const;
    // Hands over what belongs to the communicator.
    void take(uint64_t comm_key, Retirement* left);
    // What a communicator's tensors hold, and how many they are.
    struct Held {
        uint64_t bytes = 0;
        uint64_t tensors = 0;
    };
    [[nodiscard]] Held held(uint64_t comm_key) const;

    // A tensor that another process finds again.
    struct Placed {
        LastingTensor tensor;
        uint64_t bytes = 0;
        CheckpointSlot lasting;
        const void* buffer = nullptr;
        int device = 0;
        double loss_scale = 0;       // as StateTensor's
        const char* name = nullptr;  // that other processes find it by
    };
    // Returns use(all of them, how many others are known by address), with none made or freed
    // meanwhile. `waits`: it may wait, and no call is made.
    template <class Use>
    Status with_placed(bool waits, const Use& use) const {
        std::unique_lock lock(mutex_);
        uint64_t by_address = 0;
        const std::vector<Placed> all = placed(&by_address);
        if (waits) {
            lock.unlock();
        }
        return use(all, by_address);
    }
    // Those tensors take their residuals anew at their next use, as at the first, but for shared
    // ones: ranks may load at different moments. No work may be using them.
    void renew_placed();

  private:
    struct Entry {
        void* buffer = nullptr;
        uint64_t bytes = 0;
        TensorUse last;  // by the last call
        int device = 0;
        CheckpointSlot lasting = {};
        bool renewed = false;
        bool captured = false;  // a graph has the buffer's address
        uint64_t last_use = 0;  // of the communicator's uses
        uint64_t gap = 0;       // uses between the last two
        uint64_t round = 0;     // of its kind of calls, when it was used last
        double loss_scale = std::numeric_limits<double>::quiet_NaN();
        const void* earlier[4] = {};  // addresses before the last
        uint32_t returns = 0;         // calls that went back to one of them
        // Says Residual::in_turn of a call whose buffer is at `now`, and keeps that.
        bool use_at(const void* now, bool single) noexcept;
    };
    using Entries = std::map<TensorKey, Entry>;
    Entries::iterator entry_of(const TensorUse& use, uint64_t bytes, const CheckpointSlot& lasting);
    Entries::iterator entry_at(const TensorUse& use, uint64_t bytes);
    [[nodiscard]] std::vector<Placed> placed(uint64_t* by_address) const;
    Result<Residual> make(const BeforeCall& before,
                          int device,
                          const TensorUse& use,
                          uint64_t bytes,
                          const CheckpointSlot& lasting);
    // Frees those of the communicator that no call will ask for any more (see kLongUnused); only
    // `leftovers`: those of this kind of calls that go by addresses. Whether there were any.
    bool drop_stale(const BeforeCall& before, int device, const TensorUse& use, bool leftovers);
    struct Uses {
        uint64_t count = 0;
        uint64_t longest_gap = 0;  // of a tensor, at least twice in a row
    };
    MemoryBudget* budget_;
    DeviceMemory* memory_;
    mutable std::mutex mutex_;  // not held while memory is made
    Entries entries_;
    std::map<uint64_t, Uses> uses_;  // by communicator
    // By kind of calls, a key of no address: a round ends when one of its tensors comes again.
    std::map<TensorKey, uint64_t> rounds_;
};

}  // namespace slimwire
