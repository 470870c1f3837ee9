// Step-ahead error feedback (SAEF: Xu, Huo, Huang, AAAI 2021; with a gain, SA-PEF) below sharded
// training: what a rank gathers to compute with is moved by what it still owes the reduce-scatter
// of the same unit, x - s N e with s the size of an optimizer step and N ranks, as if all owed as
// much. The shards that ranks send stay as they are, and so does what they reduce: it is this
// rank's own gradient that is taken elsewhere, so ranks need not agree on any of this.
//
// A hook (call_hook.h): follow() before a collective, finish() behind it or behind its group.
// gather_pairs.h says which gather belongs to which reduce-scatter. Parameters that are never
// gathered, because whole gradients are reduced, the program moves and brings back itself: ahead()
// and back(), by slimwire_step_ahead and slimwire_step_back. Part of a Communicator, and like it
// used by one thread at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "codecs/base/device.h"
#include "codecs/residual/step_ahead.h"
#include "collectives/call/call.h"
#include "collectives/feedback/call_hook.h"
#include "collectives/identity/gather_pairs.h"
#include "collectives/identity/step_detector.h"
#include "collectives/policy/policy.h"

namespace slimwire {

// By how much what is gathered to compute with is moved by the residual.
struct StepAheadRule {
    uint32_t gain_ppm = 1000000;
    double step_size = 0;  // of a reduced gradient of 1; 0: as the program tells it, or estimated
    bool told = false;
};
[[nodiscard]] std::optional<StepAheadRule> step_ahead_rule(const Action& action);

// That gathers of the same parameters are moved by the residuals.
struct SteppedAhead final : PlanPart {
    explicit SteppedAhead(const StepAheadRule& asked) noexcept : rule(asked) {}
    StepAheadRule rule;
};

class StepAhead final : public CallHook {
  public:
    // One reduce-scatter of the step, or an all-reduce.
    struct Unit {
        const Plan* plan = nullptr;  // of its last compressed call
        CallStats* stats = nullptr;  // of that plan
        TensorUse tensor;
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
        StepSize* shown = nullptr;   // of shown_; null: none was left
        DType dtype = DType::kInt8;  // of `before`
        bool has_before = false, has_reduced = false, no_room = false;
        // Of another process, until the unit's first gather here (save()).
        std::vector<std::byte> loaded;
    };
    // What is to be done behind a call.
    struct Pending {
        Unit* unit = nullptr;
        CollectiveCall call;
        bool first = false;  // of the gathers of the unit in the step
    };

    void made(const DeviceApi& api, Communicator* communicator) override;
    void add_stats(const Plan& plan, const Communicator& communicator, CallStats* stats) override;
    // Has the stream wait for gathers that read what the call will change.
    Status follow(const CallSite& site, const PlanEntry* entry) override;
    Status launched(const DeviceApi& api,
                    Communicator* communicator,
                    ResidualStore* store) override;
    void forget() noexcept override { waiting_.clear(); }

    // Its bytes from before it was moved.
    struct Kept {
        void* copy = nullptr;
        uint64_t bytes = 0;
        uint64_t moved_bytes = 0;        // 0: it is not ahead
        cudaEvent_t returned = nullptr;  // the last use of the copy
    };
    // Keeps it and moves it. False, and nothing done: its gradient is in no such result, or the
    // step is not known, or SLIMWIRE_MAX_MEMORY has no room for what is kept.
    Result<bool> move_parameter(const DeviceApi& api,
                                Communicator* communicator,
                                const ResidualStore& residuals,
                                const ParameterMove& what,
                                cudaStream_t stream) override;
    // Byte for byte. False: it is not ahead.
    Result<bool> return_parameter(const DeviceApi& api,
                                  const Communicator& communicator,
                                  void* parameter,
                                  cudaStream_t stream) override;

    // What it knows of units that are reduced into shards. All-reduces are found again by their
    // buffers, which no other process knows.
    Status save(const Communicator& communicator,
                const ReadMemory& read,
                const KeepRecord& keep) const override;
    void resume(const CallSite& site, uint32_t models, const PlanOf& plan_of) override;

    void release(const DeviceApi& api, Communicator* state, Retirement* left) noexcept override;

  private:
    void wait(const CallSite& site, Unit* unit, bool first);
    static void undo(Communicator*, uint64_t self, uint64_t) noexcept;
    static void uncount(Communicator*, uint64_t progress, uint64_t) noexcept;
    // Of a unit that another process knew: its residuals, and how far steps move its parameters.
    Status take_up(const DeviceApi& api,
                   Communicator* state,
                   ResidualStore* residuals,
                   cudaStream_t stream,
                   Unit* unit);
    static uint64_t unit_key(const CallSignature& signature, uint32_t ordinal) noexcept;
    static Status make_memory(const DeviceApi& api, Communicator* state, Unit* unit);
    void show(Unit* unit);
    Status finish(const DeviceApi& api,
                  Communicator* state,
                  ResidualStore* residuals,
                  const Pending& pending);
    Status find_step(const DeviceApi& api, Communicator* state, const Pending& pending);
    Unit& follow_sum(const Communicator& state,
                     const CollectiveCall& call,
                     const StepPosition& place,
                     const PlanEntry& entry);

    static constexpr size_t kShown = 256;  // units whose steps are shown

    std::vector<Pending> waiting_;
    Pinned shown_;  // kShown steps, of which so many are units'
    size_t taken_ = 0;
    GatherPairs pairs_;
    std::map<uint64_t, Unit> units_;  // by StepCall::key
    // All-reduces, by the first byte of their results, and what others have taken the place of.
    std::map<const char*, std::unique_ptr<Unit>> sums_;
    std::vector<std::unique_ptr<Unit>> retired_;
    std::map<void*, Kept> kept_;  // by parameter
};

}  // namespace slimwire
