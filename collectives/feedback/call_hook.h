// What takes part in a communicator's calls beside the call itself. Dispatch and the executor ask
// every hook of the communicator, in the order of kHooks, and know none by name. README.md says how
// to add one.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>

#include "collectives/algorithms/algorithm.h"
#include "collectives/call/step_position.h"
#include "collectives/communicator/communicator.h"
#include "collectives/communicator/undo_journal.h"
#include "collectives/feedback/residual_store.h"
#include "collectives/plan/plan_request.h"
#include "collectives/state/replicated_progress.h"

namespace slimwire {

// A call that is about to be made.
struct CallSite {
    const DeviceApi& api;
    Communicator& communicator;
    Progress& progress;
    const CollectiveCall& call;
    const StepPosition& place;
    // Of the thread's group, for what is to be undone when it does not run; null outside groups.
    UndoJournal* journal = nullptr;

    void note(UndoJournal::Undo undo, uint64_t first = 0, uint64_t second = 0) const {
        if (journal != nullptr) {
            journal->add(&communicator, undo, first, second);
        }
    }
};

// A compressed call that is being enqueued; not under stream capture, whose replays know no hook.
struct CallRun {
    const DeviceApi& api;
    const Communicator& communicator;
    const Plan& plan;
    CallStats* stats;  // of the plan
    const CollectiveCall& call;
    const StepPosition& place;
    Residual residual;
    const PreMulScalar* scalar = nullptr;  // null unless a pre-multiplied sum
    char* scratch = nullptr;
    cudaStream_t work = nullptr;
    bool timed = false;  // now and then
};

// A parameter that the program itself moves by residuals (slimwire.h).
struct ParameterMove {
    const void* gradient = nullptr;  // in the result of an all-reduce
    void* parameter = nullptr;
    uint64_t count = 0;
    DType dtype = DType::kFloat32;  // of the parameter
};

// The plan of calls of this kind on the communicator, found or made; null: none.
using PlanOf = std::function<const PlanEntry*(const CallSignature& signature)>;

class CallHook {
  public:
    explicit CallHook(bool sampling = false) : samples(sampling) {}
    CallHook(const CallHook&) = delete;
    CallHook& operator=(const CallHook&) = delete;
    virtual ~CallHook() = default;

    // The communicator is made: gets what a call might have to wait for. On its device.
    virtual void made(const DeviceApi& /*api*/, Communicator* /*communicator*/) {}
    // Counts a compressed key's calls, for the report.
    virtual void add_stats(const Plan& /*plan*/,
                           const Communicator& /*communicator*/,
                           CallStats* /*stats*/) {}

    // A call will be made, compressed by the plan, or natively where `entry` is null.
    virtual Status follow(const CallSite& /*site*/, const PlanEntry* /*entry*/) { return {}; }
    // The calls followed so far are enqueued on their streams.
    virtual Status launched(const DeviceApi& /*api*/,
                            Communicator* /*communicator*/,
                            ResidualStore* /*store*/) {
        return {};
    }
    // They are, or were not made, and nothing can be done behind them.
    virtual void forget() noexcept {}

    // Before and behind the call's own work on its stream; of a hook that samples, at some calls of
    // a key: one in a prime, so that all tensors of a step have their turn.
    const bool samples;
    [[nodiscard]] static bool takes_sample_at(uint64_t call) noexcept { return call % 61 == 0; }
    virtual void before(const CallRun& /*run*/) noexcept {}
    virtual void after(const CallRun& /*run*/) noexcept {}

    // The plan of a call of the hook's own that runs beside this one, which all ranks make alike;
    // null: none. It works with the residuals of `plan`, the call's; null: the call is native, and
    // the hook one that follows calls.
    virtual const Plan* call_behind(const CallSite& /*site*/, const Plan* /*plan*/) {
        return nullptr;
    }
    // What runs it: context.plan is what call_behind() gave, `keeper` has the call's own plan, if
    // it has one. `room` outlives the exchange.
    virtual std::unique_ptr<Exchange> exchange(const ExchangeContext& /*context*/,
                                               const PlanEntry* /*keeper*/,
                                               ExchangeRoom* /*room*/) {
        return nullptr;
    }

    // Moves it on `stream`, and brings it back. False: not this hook's, and nothing done.
    virtual Result<bool> move_parameter(const DeviceApi& /*api*/,
                                        Communicator* /*communicator*/,
                                        const ResidualStore& /*residuals*/,
                                        const ParameterMove& /*what*/,
                                        cudaStream_t /*stream*/) {
        return false;
    }
    virtual Result<bool> return_parameter(const DeviceApi& /*api*/,
                                          const Communicator& /*communicator*/,
                                          void* /*parameter*/,
                                          cudaStream_t /*stream*/) {
        return false;
    }

    // The records of its tensors (FORMAT.md, "Saved state"); `read` copies from the device.
    virtual Status save(const Communicator& /*communicator*/,
                        const ReadMemory& /*read*/,
                        const KeepRecord& /*keep*/) const {
        return {};
    }
    // Before the first call that it follows, where progress was loaded (site.progress): takes what
    // later calls go on with. `models`: TensorUse::models of the communicator's calls.
    virtual void resume(const CallSite& /*site*/, uint32_t /*models*/, const PlanOf& /*plan_of*/) {}
    // Gives `left` what it has on the device, and the events of last uses that are not behind the
    // communicator's chain.
    virtual void release(const DeviceApi& /*api*/,
                         Communicator* /*communicator*/,
                         Retirement* /*left*/) noexcept {}
};

struct HookKind {
    AddToPlan add;  // null: nothing
    // Takes out of the action what variants of its plan do not have again; null: nothing.
    void (*forget)(Action* action);
    // Whether it has follow(), which native calls pay for.
    bool follows;
    // For a communicator; null where no rule of the policy wants it.
    std::unique_ptr<CallHook> (*make)(const Policy& policy);
    // Scratch for calls of the hook's own on a communicator, of which nothing but ranks and name is
    // known; null: none beside that of the calls.
    uint64_t (*scratch)(const Policy& policy, const PlanShape& shape) = nullptr;
};
extern const HookKind kSurvivorCountsHook, kAveragingHook, kStepAheadHook, kResidualNormsHook,
    kCodeAverageHook;
inline constexpr const HookKind* kHooks[] = {&kStepAheadHook, &kSurvivorCountsHook, &kAveragingHook,
                                             &kResidualNormsHook, &kCodeAverageHook};

}  // namespace slimwire
