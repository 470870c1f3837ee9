// What chooses between the variants of a plan: other plans that a call of it may take, native or
// with residuals that lie as the plan's own. Dispatch asks the plan's controller at every call and
// knows none by name. README.md says how to add one.
//
// All ranks choose alike: what a controller goes by is equal on all of them.
#pragma once

#include <memory>

#include "collectives/feedback/call_hook.h"

namespace slimwire {

struct Choice {
    std::shared_ptr<const Plan> variant;  // null: the plan itself
    // Of the controller, for wrap().
    void* tensor = nullptr;
    bool first = false, last = false;
};

// Of one plan on one communicator; used by one thread at a time.
class Controller {
  public:
    Controller() = default;
    Controller(const Controller&) = delete;
    Controller& operator=(const Controller&) = delete;
    virtual ~Controller() = default;

    // Every well-formed call of the plan, also one that falls back later. True: it stays native.
    virtual bool count(const CallSite& /*site*/) { return false; }
    // How many more times the calls of all tensors come to be otherwise than the last one counted.
    [[nodiscard]] virtual size_t stages_left() const noexcept { return 0; }
    // A call that does not fall back.
    virtual Result<Choice> choose(const CallSite& site) = 0;
    // What runs the chosen call: `call`, made with `context`, or that and more around it; null:
    // `call`, which outlives it.
    virtual std::unique_ptr<Exchange> wrap(const ExchangeContext& /*context*/,
                                           const Choice& /*choice*/,
                                           Exchange* /*call*/) {
        return nullptr;
    }

    virtual Status save(const Communicator& communicator,
                        const ReadMemory& read,
                        const KeepRecord& keep) const = 0;
    // Gives `left` what it has on the device, and the events of last uses that are not behind the
    // communicator's chain.
    virtual void release(const DeviceApi& /*api*/,
                         Communicator* /*communicator*/,
                         Retirement* /*left*/) noexcept {}
};

// What a plan keeps of its controller (Plan::controlled_by).
class ControllerRule {
  public:
    virtual ~ControllerRule() = default;
    // `entry` outlives the controller, which goes on with what was loaded for it.
    [[nodiscard]] virtual std::unique_ptr<Controller> make(const PlanEntry& entry,
                                                           const Communicator& communicator,
                                                           Progress* progress) const = 0;
    // The rule of a plan without variants or state of tensors; null: such a plan needs none.
    [[nodiscard]] virtual std::shared_ptr<const ControllerRule> without_variants() const {
        return nullptr;
    }
};

struct ControllerMemory {
    uint64_t scratch_bytes = 0;  // beside the call, when its exchange is done with the scratch
    uint64_t tensor_bytes = 0;   // of a tensor, on the device
};

struct ControllerKind {
    AddToPlan add;
    // Null: none.
    ControllerMemory (*memory)(const Action& action, const CallSignature& signature) = nullptr;
};
extern const ControllerKind kByGradientNorm;
extern const ControllerKind kWarmup;
inline constexpr const ControllerKind* kControllers[] = {&kByGradientNorm, &kWarmup};

}  // namespace slimwire
