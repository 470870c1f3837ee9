// What slimwire knows of one communicator, and the registry from NCCL handles to it. A Communicator
// is made after the real creation succeeded and dies with the user's handle. One thread at a time
// uses it, as NCCL asks; the registry itself is thread-safe and its look-up takes no lock on a
// repeat.
#pragma once

#include <atomic>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "codecs/base/device.h"
#include "codecs/base/device_scope.h"
#include "collectives/adaptive/accordion.h"
#include "collectives/call/real_nccl.h"
#include "collectives/communicator/agreement/agreement.h"
#include "collectives/communicator/deferred_free.h"
#include "collectives/communicator/memory_budget.h"
#include "collectives/feedback/residual_norms.h"
#include "collectives/feedback/step_ahead.h"
#include "collectives/feedback/survivor_counts.h"
#include "collectives/identity/ddp/model_starts.h"
#include "collectives/identity/parameter_registry.h"
#include "collectives/identity/skipped_steps.h"
#include "collectives/identity/tensor_slot.h"
#include "collectives/observe/stats.h"
#include "collectives/plan/plan.h"
#include "collectives/state/replicated_progress.h"

namespace slimwire {

// A user-made pre-multiplied sum.
struct PreMulScalar {
    ncclRedOp_t op = ncclSum;
    DType dtype = DType::kFloat32;
    float value = 1.0f;            // for a host scalar, copied at creation
    const void* device = nullptr;  // for a device scalar, read when a collective runs
};

struct ObservedComm;     // observer.h
class ParameterTracker;  // contents.h

// One of the tensors of a plan with tensor = "step": its facts, and slot and ordinal of the place.
struct PlaceKey {
    const Plan* plan = nullptr;
    uint32_t slot = 0, ordinal = 0;
    auto operator<=>(const PlaceKey&) const = default;
};

// Compressed calls of a tensor whose residuals are averaged now and then; equal on all ranks.
struct CountedTensor {
    uint64_t path = 0;  // of its place (StepPosition)
    uint64_t calls = 0;
};

struct Communicator {
    ncclComm_t comm = nullptr;
    ncclComm_t exchange_comm = nullptr;  // private, same ranks; null when nothing can be compressed
    std::mutex exchange_mutex;           // held to ask NCCL about it, which an abort must not meet
    int rank = 0;
    int device = 0;
    uint64_t comm_key = 0;   // equal on all ranks
    uint64_t state_key = 0;  // this rank's own state under comm_key
    // The same in every process of the job: of launcher ranks, size, rank and order of creation; 0
    // where ranks did not agree.
    uint64_t checkpoint_key = 0;
    std::vector<Member> members;  // by rank; empty when the ranks did not agree
    std::string name;             // as this rank's program named it; PlanShape has the agreed one
    PlanShape shape;
    PlanCache plans;
    std::unique_ptr<TensorSlots> places;  // null when no rule wants them
    ModelStarts models;
    std::unique_ptr<SkippedSteps> skipped_steps;  // null where places is
    std::shared_ptr<ParameterTracker> tracker;    // null when no rule asks for parameters
    // By this rank when the communicator was made; null when no rule asks for names of parameters.
    std::shared_ptr<const RegisteredParameters> registered;
    std::shared_ptr<CommStats> stats;
    // Of calls beyond kMaxPlans; the last says whether compressed.
    std::map<std::tuple<Op, DType, RedOp, bool>, CallStats*> folded;
    std::vector<PreMulScalar> scalars;
    std::shared_ptr<ObservedComm> observed;  // in the modes that only observe
    // What plans were granted, on all ranks that make such calls alike: of collectives under
    // {-1, kAllReduce}, of messages by peer and direction.
    struct Reservation {
        uint64_t residual_bytes = 0;
        size_t sharing = 0;  // kinds of calls whose tensors share state (Plan::replicated_state)
    };
    std::map<std::pair<int, Op>, Reservation> reserved;
    // Calls so far that changed what ranks keep alike: state that all share, progress
    // (progress.h). Equal on all ranks.
    uint64_t replicated_calls = 0;
    // Places in the step beyond a plan's first, and whether they were granted a residual, too.
    std::map<PlaceKey, bool> memory_reservations;
    MemoryBudget* memory = nullptr;  // of the process
    bool told_of_memory = false;     // that a call went without its residual

    // Device objects, made when the first plan that compresses is built.
    void* scratch = nullptr;
    uint64_t scratch_bytes = 0;
    cudaStream_t exchange_stream = nullptr;
    cudaStream_t work_stream = nullptr;  // for compressed calls grouped with native ones
    cudaEvent_t ready[2] = {};           // codec work of a phase is enqueued
    cudaEvent_t done[2] = {};            // exchange of a phase is enqueued
    cudaEvent_t chain = nullptr;         // end of the last compressed call
    cudaEvent_t fork = nullptr;
    cudaEvent_t timing[2] = {};
    SurvivorCounts survivor_counts;
    ResidualNorms residual_norms;
    Accordions accordions;
    Progress progress;  // that was loaded
    std::map<PlaceKey, CountedTensor> averaged;
    std::unique_ptr<StepAhead> step_ahead;  // null when no rule previews
    // An abort may come from another thread while a call is being enqueued: it sets `ended`, and
    // leaves the device objects alone while `users` enqueue.
    std::atomic<bool> ended{false};
    std::atomic<int> users{0};
    std::atomic<bool> revoked{false};  // NCCL answers every call from here on
    CallStats* timing_key = nullptr;   // key whose call the timing events enclose; null when free
    bool timing_started = false;       // the first timing event is recorded, the second not yet
    bool chained = false;
    uint64_t claimed_bytes = 0;  // of scratch, by the calls of the round that is being begun
    // Calls so far that drew random numbers: collectives, which all ranks count alike, and
    // messages. The two words are in device memory from the first captured call on, so that replays
    // count.
    uint32_t steps[2] = {};
    uint32_t* device_steps = nullptr;
    // Such calls of the processes before, whose state was loaded (saved_state.h). This rank's own:
    // what ranks draw alike goes by Progress::drawn instead.
    uint32_t drawn_before[2] = {};
    // The last capture that a call of this communicator took part in, and the end of that call.
    unsigned long long capture_id = 0;
    cudaEvent_t capture_chain = nullptr;
};

// Makes streams, events and at least `scratch_bytes` of scratch; waits for work that uses a scratch
// that must grow. Not under stream capture.
Status prepare_device_objects(const DeviceApi& api, Communicator* state, uint64_t scratch_bytes);
// Frees them. `wait` first waits for the last compressed call; without it (abort) memory that may
// still be in use is given back with the event of its last use, to be parked.
std::optional<DeferredFree> release_device_objects(const DeviceApi& api,
                                                   Communicator* state,
                                                   bool wait);

// What a communicator's first compressed call costs: NCCL connects the ranks in it.
struct FirstCall {
    uint64_t began_us = 0;  // 0: not the first
    uint64_t free_bytes = 0;
    uint64_t own_bytes = 0;  // scratch and residuals before the call
};
FirstCall first_call_begins(const DeviceApi& api, const Communicator& state);
void first_call_ends(const DeviceApi& api, Communicator* state, const FirstCall& call);
// Free memory of the current device; 0 when CUDA does not say.
uint64_t free_device_bytes(const DeviceApi& api);
// Of a steady clock.
uint64_t steady_us();

// While the host waits for something of this communicator: an error once that will not come any
// more. `launching`: whether NCCL has still to launch what it was given (ncclInProgress).
Status still_alive(const RealNccl& nccl, const Communicator& state, bool* launching);

// Waits until NCCL has launched what it was given for the private communicator of a non-blocking
// one (ncclInProgress); an error when that failed or the communicator was aborted meanwhile.
Status settle_exchange(const RealNccl& nccl, Communicator* state);

class CommRegistry {
  public:
    // Null for a handle that slimwire does not know. No lock and no allocation when the thread's
    // last look-up was for the same handle and no communicator came or went since.
    [[nodiscard]] Communicator* find(ncclComm_t comm) noexcept;
    Communicator* add(std::unique_ptr<Communicator> state);
    // Takes the state out; null when unknown.
    std::unique_ptr<Communicator> remove(ncclComm_t comm);
    // Keeps the state of an aborted communicator: another thread may still be looking at it.
    void retire(std::unique_ptr<Communicator> state);
    // Calls use(Communicator&) of each, with nothing coming or going meanwhile.
    template <class Use>
    void for_each(const Use& use) {
        const std::lock_guard lock(mutex_);
        for (const auto& [comm, state] : states_) {
            use(*state);
        }
    }
    // Number of communicators made so far with these members; makes the key of the next distinct.
    uint64_t next_ordinal(uint64_t members_hash);

  private:
    std::mutex mutex_;
    std::atomic<uint64_t> generation_{1};
    std::unordered_map<ncclComm_t, std::unique_ptr<Communicator>> states_;
    std::unordered_map<uint64_t, uint64_t> ordinals_;
    std::vector<std::unique_ptr<Communicator>> retired_;
};

}  // namespace slimwire
