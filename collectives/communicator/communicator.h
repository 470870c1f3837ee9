// One communicator: who its ranks are, what NCCL gave and what its calls run with. Made after the
// real creation succeeded; it dies with the user's handle. One thread at a time uses it, as NCCL
// asks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "codecs/base/device.h"
#include "collectives/call/launcher.h"
#include "collectives/call/nccl_types.h"
#include "collectives/call/real_nccl.h"
#include "collectives/communicator/agreement/agreement.h"
#include "collectives/communicator/device_memory.h"
#include "collectives/communicator/device_objects.h"
#include "collectives/observe/stats.h"
#include "collectives/plan/plan.h"

namespace slimwire {

class TypeClaims;  // agreement/type_claims.h

// A user-made pre-multiplied sum.
struct PreMulScalar {
    ncclRedOp_t op = ncclSum;
    DType dtype = DType::kFloat32;
    float value = 1.0f;            // for a host scalar, copied at creation
    const void* device = nullptr;  // for a device scalar, read when a collective runs
};

// What a creation did not get in time.
struct Missed {
    bool others = false;  // this rank did not hear them
    bool split = false;   // on some rank NCCL never ended that for the private communicator
};

// A room above derives its own from this (CommunicatorListener::make).
struct Communicator {
    Communicator() = default;
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;
    virtual ~Communicator() = default;

    ncclComm_t comm = nullptr;
    const RealNccl* nccl = nullptr;      // the library that made it
    ncclComm_t exchange_comm = nullptr;  // private, same ranks; null when nothing can be compressed
    mutable std::mutex exchange_mutex;   // held to ask NCCL about either, which no abort must meet
    int rank = 0;
    int device = 0;
    uint64_t comm_key = 0;   // equal on all ranks
    uint64_t state_key = 0;  // this rank's own state under comm_key
    // The same in every process of the job: of launcher ranks, size, rank and order of creation; 0
    // where ranks did not agree.
    uint64_t checkpoint_key = 0;
    RankGroup group;      // of the launcher's ranks
    bool agreed = false;  // all ranks said go; equal on all of them, as `shape.go` is
    Missed missed;
    std::vector<Member> members;   // by rank; empty when the ranks did not agree
    uint64_t registered_hash = 0;  // of this rank's registered parameters; 0: not asked for
    Configured configured;         // as this rank's program has it; PlanShape has the agreed name
    std::shared_ptr<TypeClaims> claims;  // null where no server compares them
    PlanShape shape;
    std::shared_ptr<CommStats> stats;
    std::vector<PreMulScalar> scalars;
    MemoryBudget* memory = nullptr;  // of the process, as is the next
    DeviceMemory* device_memory = nullptr;

    DeviceObjects objects;

    // An abort may come from another thread while a call is being enqueued: it sets `ended`, and
    // leaves the device objects alone while `users` enqueue.
    std::atomic<bool> ended{false};
    std::atomic<int> users{0};
    std::atomic<bool> revoked{false};  // NCCL answers every call from here on
};

// An abort by another thread leaves the communicator's device objects alone meanwhile.
class InUse {
  public:
    explicit InUse(Communicator* state) : state_(*state) { state_.users.fetch_add(1); }
    ~InUse() { state_.users.fetch_sub(1); }
    InUse(const InUse&) = delete;
    InUse& operator=(const InUse&) = delete;

  private:
    Communicator& state_;
};

// Nothing of it is compressed, on all of its ranks, which is logged.
void stay_native(Communicator* state, const std::string& why);

// "rank 3 comm 0123... tensor NAME", for messages; without a name that part is left out.
std::string log_prefix(const Communicator& state, const char* name = nullptr);

// What a communicator's first compressed call costs: NCCL connects the ranks in it.
struct FirstCall {
    uint64_t began_us = 0;  // 0: not the first
    uint64_t free_bytes = 0;
    uint64_t own_bytes = 0;  // what slimwire had of the device before the call
};
FirstCall first_call_costs(const DeviceApi& api, const Communicator& state);
inline FirstCall first_call_begins(const DeviceApi& api, const Communicator& state) {
    return state.stats->first_call_us.load(std::memory_order_relaxed) == 0
               ? first_call_costs(api, state)
               : FirstCall();
}
void first_call_ends(const DeviceApi& api, Communicator* state, const FirstCall& call);
// Free memory of the current device; 0 when CUDA does not say.
uint64_t free_device_bytes(const DeviceApi& api);
// Of a steady clock.
uint64_t steady_us();

// While the host waits for something of this communicator: an error once that will not come any
// more. `launching`: whether NCCL has still to launch what it was given (ncclInProgress).
Status still_alive(const Communicator& state, bool* launching);

// Waits until NCCL has launched what it was given for the private communicator of a non-blocking
// one (ncclInProgress); an error when that failed or the communicator was aborted meanwhile.
Status settle_exchange(const DeviceApi& api, Communicator* state);

// A call of this communicator waits on the host for `what`, which the report counts.
void note_host_wait(const DeviceApi& api, const Communicator& state, const char* what) noexcept;

// Waits, which is counted, until NCCL has launched what `what` names of those given to this
// communicator so far. An error as await_value()'s.
Status await_launch(const DeviceApi& api,
                    const Communicator& state,
                    const char* what,
                    uint64_t limit_us = 0);

// An error once `limit_us` have passed since `began_us`; 0: never.
Status in_time(const char* what, uint64_t began_us, uint64_t limit_us);

// Waits so for a value that `copies` bring, and for nothing that is enqueued behind it: that may
// wait for what another rank does later. An error where it will not come, or not within `limit_us`;
// 0: however long it takes.
Status await_value(const DeviceApi& api,
                   const Communicator& state,
                   const HostCopies& copies,
                   const HostValue& value,
                   const char* what,
                   uint64_t limit_us = 0);

}  // namespace slimwire
