// Step-ahead error feedback (SAEF: Xu, Huo, Huang, AAAI 2021; with a gain, SA-PEF) below sharded
// training: what a rank gathers to compute with is moved by what it still owes the reduce-scatter
// of the same unit, x - s N e with s the size of an optimizer step and N ranks, as if all owed as
// much. The shards that ranks send stay as they are, and so does what they reduce: it is this
// rank's own gradient that is taken elsewhere, so ranks need not agree on any of this.
//
// Driven by dispatch: follow() before a collective, finish() behind it. gather_pairs.h says which
// gather belongs to which reduce-scatter. Parameters that are never gathered, because whole
// gradients are reduced, the program moves and brings back itself: ahead() and back(), by
// slimwire_step_ahead and slimwire_step_back. Kept for one communicator, and like it used by one
// thread at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "codecs/base/device.h"
#include "codecs/residual/step_ahead_args.h"
#include "collectives/call/call.h"
#include "collectives/feedback/residual_store.h"
#include "collectives/identity/gather_pairs.h"
#include "collectives/identity/step_detector.h"
#include "collectives/policy/policy.h"

namespace slimwire {

struct Communicator;
struct Plan;

// By how much what is gathered to compute with is moved by the residual.
struct StepAheadRule {
    uint32_t gain_ppm = 1000000;
    double step_size = 0;  // of a reduced gradient of 1; 0: as the program tells it, or estimated
    bool told = false;
};
[[nodiscard]] std::optional<StepAheadRule> step_ahead_rule(const Action& action);

class StepAhead {
  public:
    // One reduce-scatter of the step, or an all-reduce.
    struct Unit {
        const Plan* plan = nullptr;  // of its last compressed call
        TensorKey tensor;
        uint64_t path = 0;
        cudaEvent_t owed = nullptr;   // what it owes is as the event leaves it
        cudaEvent_t moved = nullptr;  // the last gather that read it
        bool owes = false, read = false;
        const char* end = nullptr;  // of an all-reduce's result
        // Of the estimate of the step; one allocation.
        void* memory = nullptr;
        uint64_t bytes = 0;
        StepSize* step = nullptr;
        StepSizeWork* work = nullptr;
        void* before = nullptr;      // this rank's shard at the last first gather
        void* reduced = nullptr;     // and what was reduced since
        StepSize* shown = nullptr;   // pinned
        DType dtype = DType::kInt8;  // of `before`
        bool has_before = false, has_reduced = false, no_room = false;
    };
    // What is to be done behind a call.
    struct Pending {
        Communicator* state = nullptr;
        Unit* unit = nullptr;
        CollectiveCall call;
        bool first = false;  // of the gathers of the unit in the step
    };

    // A collective of this place, which is to be made; `plan` where it is a reduce-scatter that
    // will be compressed. Has the stream wait for gathers that read what the call will change.
    Result<std::optional<Pending>> follow(const DeviceApi& api,
                                          Communicator* state,
                                          const CollectiveCall& call,
                                          const StepPosition& place,
                                          const Plan* plan);
    // The call is enqueued on its stream.
    static Status finish(const DeviceApi& api, ResidualStore* residuals, const Pending& pending);
    // A call that was to be made was not.
    void lose() noexcept { pairs_.lose(); }
    // Of a native gather outside groups, until NCCL has been called.
    std::optional<Pending> waits;

    // A parameter that the program moves.
    struct Moved {
        const void* gradient = nullptr;  // in the result of an all-reduce that steps ahead
        void* parameter = nullptr;
        uint64_t count = 0;
        DType dtype = DType::kFloat32;  // of the parameter
    };
    // Its bytes from before it was moved.
    struct Kept {
        void* copy = nullptr;
        uint64_t bytes = 0;
        uint64_t moved_bytes = 0;  // 0: it is not ahead
    };
    // Keeps it and moves it, on `stream`. False, and nothing done: its gradient is in no such
    // result, or the step is not known, or SLIMWIRE_MAX_MEMORY has no room for what is kept.
    Result<bool> ahead(const DeviceApi& api,
                       Communicator* state,
                       const ResidualStore& residuals,
                       const Moved& what,
                       cudaStream_t stream);
    // Brings it back byte for byte. False: it is not ahead.
    Result<bool> back(const DeviceApi& api,
                      const Communicator& state,
                      void* parameter,
                      cudaStream_t stream);

    // Frees what it has; where work may still use it, that goes to `left` instead.
    void release(const DeviceApi& api, Communicator* state, std::vector<void*>* left) noexcept;

  private:
    Unit& follow_sum(const Communicator& state,
                     const CollectiveCall& call,
                     const StepPosition& place,
                     const Plan& plan);

    GatherPairs pairs_;
    std::map<uint64_t, Unit> units_;  // by StepCall::key
    // All-reduces, by the first byte of their results, and what others have taken the place of.
    std::map<const char*, std::unique_ptr<Unit>> sums_;
    std::vector<std::unique_ptr<Unit>> retired_;
    std::map<void*, Kept> kept_;  // by parameter
};

}  // namespace slimwire
