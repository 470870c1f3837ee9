#include "collectives/dispatch/ring/state_ring.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "collectives/call/launcher.h"
#include "collectives/call/log.h"
#include "collectives/call/training.h"
#include "collectives/communicator/communicator.h"
#include "collectives/communicator/pending_creations.h"
#include "collectives/dispatch/dispatch_state.h"
#include "collectives/dispatch/save_state.h"
#include "collectives/dispatch/session.h"
#include "collectives/state/conversion.h"
#include "collectives/state/loaded_state.h"

namespace slimwire {
StateRing::StateRing(Runtime& runtime)
    : runtime_(runtime),
      rank_(launcher_rank().value_or(0)),
      ranks_(launcher_rank().has_value() ? launcher_size().value_or(0) : 0),
      writer_(runtime, rank_) {}

StateRing::~StateRing() {
    finish();
}

// Coming back.

std::optional<Saving> StateRing::find(std::optional<uint64_t> step) const {
    std::optional<Saving> found;
    for (const Saving& one : savings_in(folder())) {
        const bool newest = !found.has_value() || (one.run == found->run &&
                                                   one.step == found->step && one.ranks == ranks_);
        if (newest && one.step == step.value_or(one.step) && one.complete(folder())) {
            found = one;
        }
    }
    return found;
}

// Of as many ranks under the same policy this rank's file, else what it gets of the atoms of all.
Result<StateContent> StateRing::read(const Saving& saving) const {
    const ConversionOptions options{.flat_shards = runtime_.config.settings.state_ring.flat_shards,
                                    .own = rank_};
    const auto by_atoms = [path = folder() + "/" + saving.name(), ranks = ranks_, options] {
        std::vector<std::string> left_out;
        Result<StateContent> content = converted_state(path, ranks, options, &left_out);
        for (const std::string& one : left_out) {
            warn_of_ring("begins anew on " + std::to_string(ranks) + " ranks: " + one);
        }
        return content;
    };
    if (saving.ranks != ranks_) {
        return by_atoms();
    }
    const std::string path = saving.path(folder(), rank_);
    SLIMWIRE_TRY_ASSIGN(const StateReader own, StateReader::open(path));
    if (own.index().config_hash != runtime_.config.hash) {
        return by_atoms();
    }
    SLIMWIRE_TRY_ASSIGN(StateContent content,
                        read_own_state(&runtime_, runtime_.config.hash, path));
    content.by_atoms = by_atoms;
    return content;
}

bool StateRing::wait_with(const Saving& saving) {
    const auto in_memory = [&]() -> Result<StateContent> {
        try {
            return read(saving);
        } catch (const std::bad_alloc&) {
            return Status(Code::kOutOfMemory,
                          "no memory for '" + folder() + "/" + saving.name() + "'");
        }
    };
    Result<StateContent> content = in_memory();
    Status status = content.status();
    if (status.ok() && content.value().index.step != saving.step) {
        status = {Code::kInvalidUsage, "'" + saving.path(folder(), rank_) + "' is of step " +
                                           std::to_string(content.value().index.step) +
                                           ", not of that of its folder"};
    }
    status = status.ok() ? settle(&runtime_) : status;
    status = status.ok() ? take_state(&runtime_, std::move(content).value()) : status;
    if (!status.ok()) {
        warn_of_ring(status.message() + "; this rank begins without it");
    } else {
        from_ = saving;
    }
    return status.ok();
}

void StateRing::begin() {
    at_least_run(next_run());
    const std::lock_guard lock(state_in_use());
    if (std::exchange(begun_, true)) {
        return;
    }
    const std::string& load = runtime_.config.settings.state_ring.load;
    if (ranks_ == 0) {
        warn_of_ring(
            "no launcher said this process's rank and the number of ranks (RANK, WORLD_SIZE); "
            "nothing is saved or loaded");
        return;
    }
    if (const Status usable = make_folder(folder()); !usable.ok()) {
        warn_of_ring(usable.message() + "; nothing is saved or loaded");
        writer_.finish();
        return;
    }
    std::atexit([] {
        const Runtime* const runtime = Runtime::peek();
        if (runtime != nullptr && !Runtime::forked()) {
            dispatch_state(*runtime).ring->finish();
        }
    });
    const Training& training = training_state();
    if (load == "none" || !PendingState::instance().comms().empty()) {
        return;
    }
    if (!load.empty()) {
        const std::optional<uint64_t> step =
            load == "newest" ? std::nullopt
                             : std::optional(std::strtoull(load.c_str(), nullptr, 10));
        if (const std::optional<Saving> named = find(step)) {
            gathers_.before = wait_with(*named) ? named->step : 0;
        } else {
            warn_of_ring("'" + folder() + "' has no complete saving for load=" + load +
                         "; the job begins without");
        }
        return;
    }
    if (training.marks.load(std::memory_order_acquire) > 0) {
        decide(training.step.load(std::memory_order_relaxed));
        return;
    }
    waiting_ = find(std::nullopt);
    if (waiting_.has_value() && !wait_with(*waiting_)) {
        waiting_.reset();
    }
    undecided_.store(true, std::memory_order_release);
}

uint64_t StateRing::next_run() {
    const std::lock_guard lock(state_in_use());
    if (found_run_ == 0) {
        const std::vector<Saving> savings = savings_in(folder());
        found_run_ = 1 + (savings.empty() ? 0 : savings.front().run);
    }
    return found_run_;
}

void StateRing::at_least_run(uint64_t run) {
    const std::lock_guard lock(state_in_use());
    run_ = std::max(run_, run);
}

void StateRing::created(Session* state) {
    if (undecided()) {
        const std::lock_guard lock(state_in_use());
        held_[state->checkpoint_key] = std::exchange(state->progress, {});
    }
}

void StateRing::keep() {
    for_each_session(runtime_, [&](Session& state) {
        if (const auto held = held_.find(state.checkpoint_key); held != held_.end()) {
            state.progress.drawn = held->second.drawn;
            state.progress.waiting = std::move(held->second.waiting);
        }
    });
    held_.clear();
}

void StateRing::drop() {
    PendingState::instance().replace({});
    for_each_session(runtime_, [](Session& state) { std::fill_n(state.random.before, 2, 0); });
    held_.clear();
    waiting_.reset();
    from_.reset();
}

void StateRing::decide(uint64_t step) {
    const bool kept = waiting_.has_value() && waiting_->step == step;
    if (kept) {
        keep();
    } else if (waiting_.has_value()) {
        drop();
    }
    undecided_.store(false, std::memory_order_release);
    if (kept) {
        return;
    }
    if (const std::optional<Saving> found = find(step)) {
        wait_with(*found);
        return;
    }
    if (savings_in(folder()).empty()) {
        return;
    }
    std::string text = "the job begins at step " + std::to_string(step) + ", of which '" +
                       folder() + "' has no complete saving";
    if (const std::optional<Saving> newest = find(std::nullopt)) {
        text += "; its newest is of step " + std::to_string(newest->step);
    }
    warn_of_ring(text + "; nothing is loaded");
}

// Waits on the host, which is counted, where it is not there; not for what this thread's group has
// yet to launch, and not for ever: its stream may wait for what another rank does behind a call
// that waits here.
Status StateRing::await(const Arrival& arrival) {
    constexpr uint64_t kPatienceUs = 600'000'000;
    const Status lost(Code::kInvalidUsage, "what was gathered first is not there");
    Status status = arrival.value->enqueued || arrival.value->failed ? Status() : lost;
    bool waits = false;
    const uint64_t deadline_us = steady_us() + kPatienceUs;
    for (Backoff backoff; status.ok() && !arrival.value->there(); backoff.pause()) {
        bool there = false;
        for_each_session(runtime_, [&](Session& state) {
            if (state.state_key == arrival.state_key) {
                there = true;
                if (!std::exchange(waits, true)) {
                    note_host_wait(runtime_.api(), state, "what was gathered first");
                }
            }
        });
        status = !there || steady_us() >= deadline_us ? lost : Status();
    }
    return status;
}

std::optional<StateRing::Match> StateRing::match(const std::vector<Arrival>& arrivals) {
    std::vector<Saving> saved = savings_in(folder());
    std::erase_if(saved, [&](const Saving& one) { return !one.complete(folder()); });
    for (const Arrival& arrival : arrivals) {
        for (const Saving& saving : saved) {
            const std::optional<SavedWeights> weights =
                read_weights(weights_path(folder() + "/" + saving.name(), arrival.group));
            if (!weights.has_value() || (arrival.group.has_value() && saving.ranks != ranks_)) {
                continue;
            }
            if (!await(arrival).ok()) {
                return std::nullopt;
            }
            const std::optional<WeightsPrint> print = arrival.value->print();
            if (print.has_value() && print->same(weights->print)) {
                return Match{saving, arrival, *weights};
            }
        }
    }
    return std::nullopt;
}

void StateRing::take_match(const Match& found) {
    if (waiting_ == found.saving) {
        keep();
    } else {
        if (waiting_.has_value()) {
            drop();
        }
        if (!wait_with(found.saving)) {
            return;
        }
    }
    gathers_.before = gathers_.ended = last_ = found.saving.step;
    gathers_.leader = found.arrival.state_key;
    for_each_session(runtime_, [&](Session& state) {
        if (state.state_key == gathers_.leader && state.places != nullptr) {
            state.places->trust(found.arrival.call, found.weights.step_calls, found.weights.path);
        }
    });
    log_line(LogLevel::kInfo, "SLIMWIRE_STATE: the job begins with the weights of step " +
                                  std::to_string(gathers_.before) + ", whose saving it takes");
}

void StateRing::warn_of_no_step() {
    const std::string step = waiting_.has_value() ? std::to_string(waiting_->step) : std::string();
    if (gathers_.any && waiting_.has_value()) {
        warn_of_ring(
            "no saving in '" + folder() +
            "' is of the weights that this job gathers first, so nothing is loaded (load=" + step +
            " takes the newest all the same)");
    } else if (!gathers_.any) {
        warn_of_ring(
            "a compressed call came before any step was marked (slimwire_mark_step); until one is, "
            "nothing is saved" +
            (waiting_.has_value()
                 ? ", and whether the saving of step " + step + " in '" + folder() +
                       "' is of these weights is not known: it is not loaded (load=" + step +
                       " does)"
                 : std::string()));
    }
}

void StateRing::decide_without_step() {
    std::vector<Arrival> arrivals;
    {
        const std::lock_guard lock(state_in_use());
        arrivals = gathers_.arrivals;
    }
    const std::optional<Match> found = match(arrivals);  // may wait
    const std::lock_guard lock(state_in_use());
    if (!undecided()) {
        return;
    }
    if (found.has_value()) {
        take_match(*found);
    } else {
        warn_of_no_step();
        if (waiting_.has_value()) {
            drop();
        }
    }
    gathers_.arrivals.clear();
    undecided_.store(false,
                     std::memory_order_release);  // other threads wait for the mutex till then
}

bool StateRing::gathers(Session* state,
                        const StepPosition& place,
                        const std::shared_ptr<GatheredValue>& value) {
    constexpr size_t kMostArrivals = 8;
    if (state->places == nullptr || (state->world == 0 && state->members.empty())) {
        return false;
    }
    std::optional<int> group;
    if (state->world == 0) {
        group = state->members.front().place.launcher_rank;
    }
    const std::lock_guard lock(state_in_use());
    if (!begun_ || ranks_ == 0 || writer_.finished()) {
        return false;
    }
    gathers_.any = true;
    if (undecided()) {
        if (gathers_.arrivals.size() == kMostArrivals || savings_in(folder()).empty()) {
            return false;
        }
        gathers_.arrivals.push_back({state->state_key, state->places->calls() - 1, group, value});
        return true;
    }
    if (!place.begins || (gathers_.leader != 0 && gathers_.leader != state->state_key)) {
        return false;
    }
    const TensorSlots::Gathered steps = state->places->gathered();
    const uint64_t step = gathers_.before + steps.steps;
    if (step == gathers_.ended) {
        return false;  // no gradients came since the last one
    }
    gathers_.leader = state->state_key;
    gathers_.ended = step;
    PendingState::instance().tell_missed(false);
    const std::shared_ptr<GatheredValue> before = std::exchange(gathers_.weights, nullptr);
    const bool wanted = writer_.due(step) || writer_.due(step + 1);
    if (wanted) {
        gathers_.weights = value;
    }
    if (writer_.due(step) && before != nullptr) {
        save(step, GatheredStep{value, before, steps.calls, steps.path, group, state->rank == 0});
    }
    return wanted;
}

void StateRing::overruled() {
    undecided_.store(false, std::memory_order_release);
    waiting_.reset();
    from_.reset();
    held_.clear();
    gathers_.arrivals.clear();
}

// Saving.

void StateRing::marked(uint64_t step) {
    const std::lock_guard lock(state_in_use());
    if (!begun_ || ranks_ == 0 || writer_.finished()) {
        return;
    }
    if (undecided()) {
        decide(step);
    }
    // At the first mark there is nothing but what was loaded.
    if (writer_.due(step) && training_state().marks.load(std::memory_order_relaxed) >= 2) {
        save(step, {});
    }
}

void StateRing::save(uint64_t step, const std::optional<GatheredStep>& gathered) {
    if (writer_.late(step)) {
        return;
    }
    run_ += step <= last_ ? 1 : 0;  // the job went back
    last_ = step;
    writer_.save({run_, step, ranks_}, from_, gathered);
}

bool StateRing::writing() {
    return writer_.writing();
}

void StateRing::finish() noexcept {
    if (!writer_.finished() && gathers_.any && gathers_.leader == 0 && !undecided() &&
        training_state().marks.load(std::memory_order_relaxed) == 0) {
        warn_of_ring("nothing was saved: no step was marked (slimwire_mark_step), and none found");
    }
    writer_.finish();
}

}  // namespace slimwire
