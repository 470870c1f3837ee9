// Calls of new communicators that are tried natively and compressed, in groups, on a thread of
// their own (call_timer.h).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "collectives/communicator/agreement/private_split.h"
#include "collectives/dispatch/executor.h"
#include "collectives/dispatch/session.h"
#include "collectives/plan/timed_calls.h"

namespace slimwire {

// One kind of calls, with a plan for each size where the codec takes fewer bytes.
struct Tried {
    TimedKind kind;
    std::array<std::optional<Plan>, TimedCalls::kBytes.size()> plans;
};

// Equal on all ranks. Messages, and calls of other types, go by the estimate.
[[nodiscard]] std::vector<Tried> calls_to_try(const PlanShape& shape, const Config& config);

// One communicator's part. Its calls are those of `own`, whose streams, events and memory nothing
// else uses, and which has the private communicator until give_back(), so that nobody else looks at
// it: where a rank fails, it may be broken on the others before they know.
class Trial {
  public:
    Trial(Runtime& runtime, Communicator* communicator, std::vector<Tried> kinds);
    // Calls that have not run keep their memory until they did. A private communicator that is
    // still here is for whoever undoes the creation.
    ~Trial();
    Trial(const Trial&) = delete;
    Trial& operator=(const Trial&) = delete;

    // Makes what calls take; false where this rank has no room for it.
    bool prepare();
    // The call of a kind and size, which has no plan where there is none.
    [[nodiscard]] QueuedCall call(size_t kind, size_t size);
    // Until the next mark the work stream has what takes `*ns`; null: nothing that counts.
    Status mark(uint32_t* ns);
    // Waits until all marks were reached and reads `measured`; false at `deadline_us`.
    Result<bool> read(uint64_t deadline_us, AbortWatch* watch);
    // The private communicator is of use to `state`, whose calls come behind those enqueued here.
    void give_back();
    // It is of none.
    void abort() noexcept;

    Communicator* const state;
    const std::vector<Tried> tried;
    TimedCalls measured;  // by this rank
    TimedCalls times;     // that ranks agreed on
    Session own;

  private:
    void hand_back() noexcept;
    struct Mark {
        cudaEvent_t event = nullptr;
        uint32_t* ns = nullptr;
    };
    const DeviceApi& api_;
    CallStats counted_;
    void* message_ = nullptr;
    std::vector<Mark> marks_;
    size_t marked_ = 0;
};

// The communicators of one creation. Once it is left the thread ends their private ones.
struct TrialBatch final : Leavable {
    explicit TrialBatch(Runtime& of) : runtime(of) {}
    Runtime& runtime;
    std::vector<std::unique_ptr<Trial>> trials;
    std::vector<Trial*> running;
    size_t first_size = 0, end_size = 0;

  private:
    Status work() override;
    void clean_up() override;
    Status enqueue(size_t kind, size_t size, bool compressed, bool counts);
};

// Enqueues the calls of sizes first_size until end_size. They are left where NCCL does not take
// them in time, or the program gives a communicator up, which is an error; `batch->status` says
// whether all were enqueued.
Status enqueue_sizes(const std::shared_ptr<TrialBatch>& batch, AbortWatch* watch);

}  // namespace slimwire
