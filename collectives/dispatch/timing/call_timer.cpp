#include "collectives/dispatch/timing/call_timer.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "collectives/call/log.h"
#include "collectives/communicator/bootstrap_gather.h"
#include "collectives/communicator/rank_identities.h"
#include "collectives/dispatch/timing/call_trial.h"

namespace slimwire {
namespace {

constexpr char kAsTimed[] = "as timed at creation";  // CommCosts::how()
constexpr uint64_t kPatienceUs = 300000;  // from the first calls on, which connect the ranks

std::string key_of(const Trial& trial) {
    const PlanShape& shape = trial.state->shape;
    std::string key;
    for (const Tried& one : trial.tried) {
        key += std::string(op_name(one.kind.op)) + ' ' + dtype_name(one.kind.dtype) + ' ' +
               one.kind.codec + ' ' + one.kind.algorithm + '\n';
    }
    for (const int64_t value : {int64_t{shape.ranks}, int64_t{trial.state->stats->nodes},
                                int64_t{shape.max_ranks_per_node}, int64_t{shape.slowest_mb_s}}) {
        key += ' ' + std::to_string(value);
    }
    return key;
}

// What ranks tell each other before and after each step.
struct Told {
    enum Came : uint32_t { kInTime, kKnown, kLate, kLeft };
    Came came = kInTime;
    TimedCalls times;  // measured so far, or known
};
static_assert(sizeof(Told) <= kMostTold);

enum class Next : uint8_t { kTime, kTake, kNone };

// Alike on all ranks, by what they told of the first `sizes` sizes: whether they time more, or take
// `trial->times`, or have no private communicator any more.
Next judge(const std::vector<Told>& all, size_t sizes, Trial* trial) {
    Communicator& state = *trial->state;
    const auto first = [&](Told::Came came) {
        return std::find_if(all.begin(), all.end(),
                            [&](const Told& one) { return one.came == came; });
    };
    const auto left = first(Told::kLeft), late = first(Told::kLate), known = first(Told::kKnown);
    if (state.missed.others || left != all.end()) {
        stay_native(&state, state.missed.others ? kNotHeard
                                                : "rank " + std::to_string(left - all.begin()) +
                                                      " could not begin calls that are timed");
        return Next::kNone;
    }
    std::string by = "timed calls";
    if (known != all.end()) {
        trial->times = known->times;
    } else if (late != all.end()) {
        trial->times = {};  // nor are others of this shape timed
        by = "the estimate: rank " + std::to_string(late - all.begin()) + " had no times in time";
    } else {
        std::vector<TimedCalls> times;
        for (const Told& one : all) {
            times.push_back(one.times);
        }
        trial->times = TimedCalls::median_of(times);
        if (trial->times.goes_on(sizes)) {
            return Next::kTime;
        }
    }
    log_line(LogLevel::kInfo, log_prefix(state) + ": min_bytes auto goes by " + by);
    return Next::kTake;
}

void take_times(const Trial& trial) {
    std::vector<TimedKind> kinds;
    for (const Tried& one : trial.tried) {
        kinds.push_back(one.kind);
    }
    Communicator& state = *trial.state;
    adopt_costs(std::make_shared<const std::vector<Calibration>>(
                    calibrations_of(kinds, trial.times, state.shape.ranks, state.stats->nodes)),
                kAsTimed, &state);
}

// The thread may not have let go of a batch yet that it does not have left.
struct EndTrials {
    TrialBatch& batch;
    ~EndTrials() {
        if (!batch.left) {
            batch.trials.clear();
        }
    }
};

}  // namespace

Status CallTimer::time(const std::vector<Communicator*>& made, AbortWatch* watch) {
    if (runtime_.config.calibrations != nullptr) {
        return {};
    }
    const auto known = [&](const Trial& trial) {
        const std::lock_guard lock(mutex_);
        const auto found = known_.find(key_of(trial));
        return found == known_.end() ? Told() : Told{Told::kKnown, found->second};
    };
    const auto batch = std::make_shared<TrialBatch>(runtime_);
    const EndTrials end{*batch};
    std::vector<Told> mine;
    for (Communicator* state : made) {
        std::vector<Tried> tried = calls_to_try(state->shape, runtime_.config);
        if (tried.empty()) {
            continue;
        }
        batch->trials.push_back(std::make_unique<Trial>(runtime_, state, std::move(tried)));
        Trial* const trial = batch->running.emplace_back(batch->trials.back().get());
        mine.push_back(known(*trial));
        if (mine.back().came != Told::kKnown && !trial->prepare()) {
            mine.back().came = Told::kLate;
        }
    }
    uint64_t deadline_us = 0;
    for (size_t sizes = 0; !mine.empty();) {
        std::vector<Communicator*> states;
        for (const Trial* trial : batch->running) {
            states.push_back(trial->state);
        }
        std::vector<std::vector<Told>> all;
        // A rank may be as late as it waits for NCCL to take its calls.
        SLIMWIRE_TRY(tell_ranks(runtime_, states, mine, &all, watch,
                                runtime_.config.settings.agree_timeout_us));
        std::vector<Trial*> going_on;
        for (size_t i = 0; i < states.size(); ++i) {
            Trial* const trial = batch->running[i];
            const Next next = judge(all[i], sizes, trial);
            if (next == Next::kTime) {
                going_on.push_back(trial);
            } else if (next == Next::kTake) {
                trial->give_back();
                take_times(*trial);
                const std::lock_guard lock(mutex_);
                known_[key_of(*trial)] = trial->times;
            } else if (!batch->left) {
                trial->abort();
            }
        }
        if (batch->left) {
            return {};
        }
        if (going_on.empty()) {
            break;
        }
        batch->running = std::move(going_on);
        batch->first_size = std::exchange(sizes, std::max(sizes + 1, TimedCalls::kFirstSizes));
        batch->end_size = sizes;
        SLIMWIRE_TRY(enqueue_sizes(batch, watch));
        deadline_us = deadline_us == 0 ? steady_us() + kPatienceUs : deadline_us;
        mine.clear();
        for (Trial* trial : batch->running) {
            bool read = false;
            if (batch->status.ok()) {
                SLIMWIRE_TRY_ASSIGN(read, trial->read(deadline_us, watch));
            }
            mine.push_back({!batch->status.ok() ? Told::kLeft
                            : read              ? Told::kInTime
                                                : Told::kLate,
                            trial->measured});
        }
    }
    return {};
}

}  // namespace slimwire
