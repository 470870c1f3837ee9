// When a tensor travels by the stronger and when by the weaker of two codecs (Accordion: Agarwal et
// al., MLSys 2021): by how much the norm of its reduced gradients' sum changed from one window of
// calls to the next. Where it changes quickly, or the learning rate has just dropped, the weaker
// one keeps more of it.
//
// What goes in is equal on all ranks: how many calls a tensor at one place in the step had, what
// its results add up to, and the learning rate if the program tells it, between the same calls on
// all ranks. So ranks decide alike. Results of all-reduces are equal, and nobody tells anything; of
// reduce-scatters the ranks add up their parts' sketches once a window.
//
// accordion.cpp makes the controller of a plan (kByGradientNorm, controller.h); its parts without a
// device are here for their tests.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "collectives/adaptive/controller.h"
#include "collectives/observe/stats.h"
#include "collectives/policy/policy.h"
#include "collectives/state/replicated_progress.h"

namespace slimwire {

// What was decided at the end of a window.
struct AccordionDecision {
    uint64_t window = 0;
    double square = -1;  // squared norm of the mean of its results; below 0: none was finite
    bool high = false;   // the stronger compression
};
// All of one tensor's decisions. Equal on all ranks, which the hash says in short.
struct AccordionTotals {
    static constexpr size_t kRemembered = 64;
    uint64_t windows = 0, high = 0;
    uint64_t drops = 0;  // of the learning rate, that the rule says
    uint64_t hash = 0;
    std::vector<AccordionDecision> last;

    void add(const AccordionDecision& decision);
};
class AccordionStats final : public FeatureStats {
  public:
    // By slot and ordinal of the tensor's place in the step.
    std::map<std::pair<uint32_t, uint32_t>, AccordionTotals> tensors;

    void report(ReportFields* fields) const override;
};

// Between which codecs tensors switch, and when.
struct AccordionRule {
    CodecSpec low;                // of more bytes than the rule's codec
    uint64_t window = 0;          // calls of a tensor, at least 2
    uint32_t ratio_ppm = 500000;  // of the norm, below which its change is little
    uint32_t hysteresis = 2;      // windows with little change before the rule's codec
    // Calls of a tensor, from 0 on, by which the learning rate has dropped: ascending.
    std::vector<uint64_t> lr_drops;
};
[[nodiscard]] std::optional<AccordionRule> accordion_rule(const Action& action);

// Of one tensor. Pure.
class AccordionControl {
  public:
    // Calls into a window after which what the one before came to counts: three steps behind the
    // call that ended it, in which its copy has long reached the host.
    static constexpr uint64_t kLag = 2;
    // Windows that have ended and are not decided by, at most; a window has two calls or more.
    static constexpr size_t kMostWaiting = 2;

    explicit AccordionControl(const AccordionRule& rule) noexcept : rule_(&rule) {}

    // Whether the next call comes after decide() for the window before.
    [[nodiscard]] bool due() const noexcept;
    // `energy`: squared norm of the sum of `buffers` results of that window, of those that were
    // finite; in the mean over their parts, where ranks have parts.
    AccordionDecision decide(double energy, double buffers) noexcept;

    // Where a call lies in its window.
    struct Call {
        bool high = false;  // the stronger compression
        bool first = false, last = false;
    };
    // The next call, under this learning rate; NaN: not told.
    Call next(double learning_rate) noexcept;
    // It never was.
    void uncount() noexcept { --state_.calls; }

    // How far it is, for another process (FORMAT.md, "Saved state").
    void save(RecordWriter* record) const { record->put(state_); }
    // False, and nothing changed, where a record is too short.
    bool load(RecordReader* record) noexcept { return record->get(&state_); }
    // Windows decided by, and those that have ended since.
    [[nodiscard]] uint64_t decided() const noexcept { return state_.decided; }
    [[nodiscard]] uint64_t waiting() const noexcept {
        return state_.calls / rule_->window - state_.decided;
    }

    [[nodiscard]] uint64_t calls() const noexcept { return state_.calls; }
    [[nodiscard]] const AccordionTotals& totals() const noexcept { return totals_; }

  private:
    const AccordionRule* rule_;  // outlives this
    void drop(uint64_t call) noexcept;

    // As it is saved.
    struct State {
        uint64_t calls = 0, decided = 0;  // the latter windows
        uint64_t low_through = 0;  // windows before this one decide for low, whatever they are
        double rate = -1;          // the largest learning rate since its last drop; below 0: none
        double before = -1;        // squared norm of the mean; below 0: none
        uint32_t quiet = 0;        // windows in a row with little change
        uint32_t high = 0;
    };
    static_assert(sizeof(State) == 48);

    State state_;
    AccordionTotals totals_;
};

// What a plan of its keeps; it is that of the stronger compression.
class AccordionPlan final : public ControllerRule {
  public:
    AccordionRule rule;
    std::shared_ptr<const Plan> low;

    [[nodiscard]] std::unique_ptr<Controller> make(const PlanEntry& entry,
                                                   const Communicator& communicator,
                                                   Progress* progress) const override;
};

}  // namespace slimwire
