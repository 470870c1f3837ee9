// What the features keep for one communicator. Dispatch alone knows it: it gives each feature the
// communicator and the feature's own part.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "collectives/adaptive/controller.h"
#include "collectives/algorithms/held_masks.h"
#include "collectives/algorithms/learned_code.h"
#include "collectives/communicator/process.h"
#include "collectives/communicator/registry.h"
#include "collectives/dispatch/random_steps.h"
#include "collectives/dispatch/windows.h"
#include "collectives/identity/ddp/model_starts.h"
#include "collectives/identity/message_pairing.h"
#include "collectives/identity/message_rows.h"
#include "collectives/identity/parameter_registry.h"
#include "collectives/identity/parameter_tracker.h"
#include "collectives/identity/skipped_steps.h"
#include "collectives/identity/tensor_slot.h"
#include "collectives/state/replicated_progress.h"

namespace slimwire {

struct ObservedComm;  // observer.h

struct Session final : Communicator {
    PlanCache plans;
    // Of calls beyond kMaxPlans; the last says whether compressed.
    std::map<std::tuple<Op, DType, RedOp, bool>, CallStats*> folded;
    std::map<std::pair<std::string, DType>, CallStats*> one_sided;  // by operation
    // What was granted, on all ranks that make such calls alike: to plans, of collectives under
    // {-1, kAllReduce} and of messages by peer and direction; and whether places in the step beyond
    // a plan's first were granted a residual, too.
    struct Granted {
        struct OfKind {
            uint64_t residual_bytes = 0;
            size_t sharing = 0;  // kinds of calls whose plans ranks keep or drop alike
        };
        std::map<std::pair<int, Op>, OfKind> plans;
        std::map<PlaceKey, bool> places;
        bool lack_is_told = false;  // that a call went without its residual

        [[nodiscard]] OfKind& of(const CallSignature& signature) {
            const bool message = is_point_to_point(signature.op);
            return plans[message ? std::pair(static_cast<int>(signature.root_or_peer), signature.op)
                                 : std::pair(-1, Op::kAllReduce)];
        }
    } granted;

    std::unique_ptr<TensorSlots> places;  // null when no rule wants them
    // Of messages whose direction decides, by peer, and of collectives with pair=mask, under
    // kCollectives; the masks by peer, what forward messages are at this end, and what they are of,
    // each of which counts for itself; the weights of autoencoders by these two, and the codec's
    // row, width and seed.
    static constexpr int kCollectives = -1;
    std::map<int, MessagePairing> pairs;
    std::unique_ptr<MessageRows> rows;  // null when no rule wants them
    enum class Masked : uint8_t { kMessage, kCollective, kCode };
    std::map<std::tuple<int, Op, Masked>, HeldMasks> masks;
    std::map<std::tuple<int, Op, uint32_t, uint32_t, uint32_t>, CodeWeights> codes;
    std::vector<PairUse> pair_uses;  // of the collective that runs
    ModelStarts models;
    std::unique_ptr<SkippedSteps> skipped_steps;  // null where places is
    // By this rank when the communicator was made; null when no rule asks for names of parameters.
    std::shared_ptr<const RegisteredParameters> registered;
    std::shared_ptr<ParameterTracker> tracker;  // null when no rule asks for parameters

    std::vector<std::unique_ptr<CallHook>> hooks;
    std::vector<CallHook*> following;                      // those that also follow native calls
    bool followed = false;                                 // a call of the communicator
    std::vector<std::unique_ptr<Controller>> controllers;  // of plans
    Progress progress;
    bool recalls = false;  // what it goes on with is not known yet (StateRing)
    RandomSteps random;
    SymmetricWindows windows;

    struct {
        CallStats* key = nullptr;  // whose call the timing events enclose; null when free
        bool started = false;      // the first is recorded, the second not yet
    } timing;
    std::shared_ptr<ObservedComm> observed;  // in the modes that only observe
};

// Every communicator's.
[[nodiscard]] inline Session& session(Communicator* communicator) noexcept {
    return static_cast<Session&>(*communicator);
}
// Of a handle; null for one that slimwire does not know. Costs what CommRegistry::find() does.
[[nodiscard]] inline Session* session_of(Runtime& runtime, ncclComm_t comm) noexcept {
    return static_cast<Session*>(runtime.comms.find(comm));
}
// Calls use(Session&) of each, with nothing coming or going meanwhile.
template <class Use>
void for_each_session(Runtime& runtime, const Use& use) {
    runtime.comms.for_each([&](Communicator& state) { use(static_cast<Session&>(state)); });
}
// Each, for work that may wait: what another thread ends meanwhile stays until this is gone.
class HeldSessions {
  public:
    explicit HeldSessions(Runtime& runtime) {
        for_each_session(runtime, [&](Session& state) {
            all_.push_back(&state);
            state.users.fetch_add(1);
        });
    }
    ~HeldSessions() {
        for (Session* state : all_) {
            state->users.fetch_sub(1);
        }
    }
    HeldSessions(const HeldSessions&) = delete;
    HeldSessions& operator=(const HeldSessions&) = delete;
    [[nodiscard]] const std::vector<Session*>& all() const noexcept { return all_; }

  private:
    const CommUse use_;
    std::vector<Session*> all_;
};

}  // namespace slimwire
