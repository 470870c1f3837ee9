#include "collectives/adaptive/warmup.h"

#include <algorithm>
#include <string>
#include <utility>

namespace slimwire {
namespace {

constexpr StateKind kCallsRecord{5};

class Warmup final : public Controller {
  public:
    Warmup(const Plan* plan, std::shared_ptr<const WarmupRule> rule)
        : plan_(plan), rule_(std::move(rule)) {}

    bool count(const CallSite& site) override {
        if (!std::exchange(begun_, true) && !is_point_to_point(plan_->signature.op)) {
            const std::vector<std::byte> loaded = site.progress.take(
                counted_calls(site.communicator.checkpoint_key, *plan_), kCallsRecord);
            (void)RecordReader(loaded).get(&calls_);
        }
        site.note(undo, word_of(this), word_of(&site.progress));
        site.progress.replicated_calls += shared();
        return calls_++ < rule_->start_call;
    }
    [[nodiscard]] size_t stages_left() const noexcept override {
        const auto passed = std::lower_bound(rule_->until.begin(), rule_->until.end(), calls_);
        const auto ramp = static_cast<size_t>(rule_->until.end() - passed);
        return ramp + (calls_ <= rule_->start_call ? 1 : 0);
    }
    Result<Choice> choose(const CallSite& site) override {
        (void)site;
        for (size_t i = 0; i < rule_->until.size(); ++i) {
            if (calls_ <= rule_->until[i]) {
                return Choice{rule_->variants[i]};
            }
        }
        return Choice();
    }
    Status save(const Communicator& communicator,
                const ReadMemory& read,
                const KeepRecord& keep) const override {
        (void)read;
        if (begun_ && !is_point_to_point(plan_->signature.op)) {
            RecordWriter record;
            record.put(calls_);
            keep(counted_calls(communicator.checkpoint_key, *plan_), kCallsRecord, record.take());
        }
        return {};
    }

  private:
    // Of messages the other ranks know nothing.
    [[nodiscard]] uint64_t shared() const noexcept {
        return is_point_to_point(plan_->signature.op) ? 0 : 1;
    }
    static void undo(Communicator*, uint64_t self, uint64_t progress) noexcept {
        Warmup& own = *pointer_of<Warmup>(self);
        --own.calls_;
        pointer_of<Progress>(progress)->replicated_calls -= own.shared();
    }

    const Plan* plan_;
    std::shared_ptr<const WarmupRule> rule_;
    bool begun_ = false;
    uint64_t calls_ = 0;  // made so far
};

}  // namespace

std::unique_ptr<Controller> WarmupRule::make(const PlanEntry& entry,
                                             const Communicator&,
                                             Progress*) const {
    return std::make_unique<Warmup>(entry.plan.get(), std::make_shared<const WarmupRule>(*this));
}

// Both ends of a message count its calls until the start.
std::shared_ptr<const ControllerRule> WarmupRule::without_variants() const {
    if (start_call == 0) {
        return nullptr;
    }
    auto rule = std::make_shared<WarmupRule>();
    rule->start_call = start_call;
    return rule;
}

namespace {

// The plan that the call would have if the rule named the codec of a stage of its ramp.
std::shared_ptr<const Plan> plan_of_stage(const PlanRequest& request,
                                          uint64_t until_call,
                                          const std::optional<CodecSpec>& codec,
                                          const Plan& plan) {
    auto made = std::make_shared<Plan>();
    made->signature = plan.signature;
    made->rule = plan.rule;
    const std::string until = " until call " + std::to_string(until_call);
    if (!codec.has_value()) {
        made->reason = "native by its ramp" + until;
        return made;
    }
    Plan as_asked = request.after([&](Action* action) {
        action->least_state_rank = action->low_rank() ? action->state_rank() : 0;
        action->codec = codec;
        action->forget("ramp");
    });
    const bool keep = as_asked.uses_error_feedback || plan.uses_error_feedback;
    if (as_asked.compressed && (!keep || residuals_alike(as_asked, plan))) {
        as_asked.reason += ", its ramp" + until;
        *made = std::move(as_asked);
    } else {
        made->reason = "native" + until + ", because " + codec->to_string() + " of its ramp " +
                       (as_asked.compressed ? "keeps residuals otherwise than its codec"
                                            : "would not do: " + as_asked.reason);
    }
    return made;
}

std::string add(const PlanRequest& request, Plan* plan) {
    const Action& action = request.action;
    const Value* const ramp = action.find("ramp");
    if (action.start_step == 0 && ramp == nullptr) {
        return {};
    }
    auto rule = std::make_shared<WarmupRule>();
    rule->start_call = action.start_step;
    for (const Value& stage : ramp != nullptr ? std::get<Value::List>(ramp->held) : Value::List()) {
        const uint64_t until = stage.find("until")->count();
        rule->until.push_back(until);
        rule->variants.push_back(
            plan_of_stage(request, until, stage.find("codec")->codec(), *plan));
        plan->variants.push_back(rule->variants.back());
    }
    plan->controlled_by.push_back(std::move(rule));
    return {};
}

}  // namespace

const ControllerKind kWarmup{add};

}  // namespace slimwire
