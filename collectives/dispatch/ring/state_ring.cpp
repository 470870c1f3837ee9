#include "collectives/dispatch/ring/state_ring.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <tuple>
#include <utility>

#include "collectives/call/hash.h"
#include "collectives/call/launcher.h"
#include "collectives/call/log.h"
#include "collectives/call/training.h"
#include "collectives/communicator/agreement/private_split.h"
#include "collectives/communicator/communicator.h"
#include "collectives/communicator/pending_creations.h"
#include "collectives/communicator/rank_identities.h"
#include "collectives/dispatch/dispatch_state.h"
#include "collectives/dispatch/save_state.h"
#include "collectives/dispatch/session.h"
#include "collectives/state/conversion.h"
#include "collectives/state/loaded_state.h"

namespace slimwire {
namespace {

constexpr uint64_t kRunBits = 0xFFFFFFFFu;  // of what ranks tell

}  // namespace

StateRing::StateRing(Runtime& runtime)
    : runtime_(runtime),
      rank_(launcher_rank().value_or(0)),
      ranks_(launcher_rank().has_value() ? launcher_size().value_or(0) : 0),
      writer_(runtime, rank_) {}

StateRing::~StateRing() {
    finish();
    PendingState::instance().hold_back(false);
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
    const StateRingSetting& ring = runtime_.config.settings.state_ring;
    const ConversionOptions options{
        .flat_shards = ring.flat_shards, .sums = ring.sums, .own = rank_};
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
    SLIMWIRE_TRY_ASSIGN(const StateReader own, StateReader::open(saving.path(folder(), rank_)));
    if (own.index().config_hash != runtime_.config.hash) {
        return by_atoms();
    }
    SLIMWIRE_TRY_ASSIGN(StateContent content, read_own_state(&runtime_, runtime_.config.hash, own));
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
    // Calls may be running, which nothing waits for.
    status = status.ok() ? take_state(&runtime_, std::move(content).value(), false) : status;
    if (!status.ok()) {
        warn_of_ring(status.message() + "; this rank begins without it");
    } else {
        from_ = saving;
    }
    return status.ok();
}

void StateRing::begin() {
    at_least_run(told());
    const std::lock_guard lock(mutex_);
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
    newest_ = waiting_;
    look_for_weights();
    PendingState::instance().hold_back(true);
    undecided_.store(true, std::memory_order_release);
}

void StateRing::look_for_weights() {
    for (const Saving& one : savings_in(folder())) {
        const std::string place = folder() + "/" + one.name();
        for (const std::string& name :
             one.complete(folder()) ? names_in(place) : std::vector<std::string>()) {
            if (!name.starts_with("weights")) {
                continue;
            }
            const std::optional<int> group =
                name == "weights" ? std::nullopt : std::optional(std::atoi(name.c_str() + 8));
            const std::optional<SavedWeights> weights = read_weights(weights_path(place, group));
            if (weights.has_value() && (!group.has_value() || one.ranks == ranks_)) {
                saved_.push_back({one, group, *weights});
            }
        }
    }
    std::sort(saved_.begin(), saved_.end(), [](const Saved& a, const Saved& b) {
        return std::tie(b.saving, a.group) < std::tie(a.saving, b.group);
    });
    uint64_t hash = saved_.empty() ? 0 : 1;
    for (const Saved& one : saved_) {
        hash = mix_key(hash, stable_hash(one.saving.name()));
        hash = mix_key(hash, static_cast<uint64_t>(one.group.value_or(-1)));
        hash = mix_key(mix_key(hash, one.weights.print.exponents), one.weights.step_calls);
    }
    saved_hash_ = hash == 0 ? 0 : hash >> 32 | 1;
}

uint64_t StateRing::told() {
    const std::lock_guard lock(mutex_);
    if (found_run_ == 0) {
        const std::vector<Saving> savings = savings_in(folder());
        found_run_ = 1 + (savings.empty() ? 0 : savings.front().run);
    }
    return (undecided() ? saved_hash_ << 32 : 0) | (found_run_ & kRunBits);
}

void StateRing::at_least_run(uint64_t told) {
    const std::lock_guard lock(mutex_);
    run_ = std::max(run_, told & kRunBits);
}

// Ranks that do not tell the same go on with nothing that all must have alike: some may know
// already what counts.
void StateRing::created(Session* state) {
    const std::vector<Member>& members = state->members;
    const uint64_t mine =
        members.empty() ? told() : members[static_cast<size_t>(state->rank)].saved_run;
    const uint64_t own = mine >> 32;
    const std::lock_guard lock(mutex_);
    const auto differs = [&](const Member& member) { return member.saved_run >> 32 != own; };
    const bool alike = std::none_of(members.begin(), members.end(), differs);
    // Where this rank has learned what counts meanwhile others wait yet.
    const bool recalls = undecided() || (alike && own != 0);
    Progress held = !alike || recalls ? std::exchange(state->progress, {}) : Progress();
    if (!alike) {
        held = {};
        warn_of_ring("ranks of a communicator do not find the same savings in '" + folder() +
                     "'; its controllers and counts begin anew");
    }
    if (recalls) {
        recalls_[state->state_key] = {alike && own != 0, {}, 0, std::move(held)};
        state->recalls = true;
    }
}

void StateRing::drop() {
    PendingState::instance().replace({});
    for_each_session(runtime_, [](Session& state) { std::fill_n(state.random.before, 2, 0); });
    waiting_.reset();
    from_.reset();
}

bool StateRing::decides_yet() {
    const std::lock_guard lock(mutex_);
    return !begun_ || undecided();
}

void StateRing::decide(uint64_t step) {
    const bool kept = waiting_.has_value() && waiting_->step == step;
    for_each_session(runtime_, [&](Session& state) {
        if (const auto at = recalls_.find(state.state_key); kept && at != recalls_.end()) {
            state.progress.drawn = at->second.held.drawn;
            state.progress.waiting = std::move(at->second.held.waiting);
        }
        state.recalls = false;
    });
    recalls_.clear();
    if (!kept && waiting_.has_value()) {
        drop();
    }
    decided();
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

void StateRing::decided() {
    PendingState::instance().hold_back(false);
    undecided_.store(false, std::memory_order_release);
}

std::vector<const StateRing::Saved*> StateRing::saved_by(const Session& state) const {
    std::optional<int> group;
    if (!state.group.of_all()) {
        group = state.members.front().place.launcher_rank;
    }
    std::vector<const Saved*> all;
    for (const Saved& one : saved_) {
        if (one.group == group) {
            all.push_back(&one);
        }
    }
    return all;
}

Result<std::optional<StateRing::Match>> StateRing::match(const Session& state,
                                                         const std::vector<Arrival>& arrivals) {
    for (const Arrival& arrival : arrivals) {
        if (!arrival.value->failed) {
            SLIMWIRE_TRY(await_value(runtime_.api(), state, state.objects.copies,
                                     arrival.value->measured,
                                     "the weights that were gathered first"));
        }
        const std::optional<WeightsPrint> print = arrival.value->print();
        for (const Saved* const saved : saved_by(state)) {
            if (print.has_value() && print->same(saved->weights.print)) {
                return std::optional(Match{saved, arrival});
            }
        }
    }
    return std::optional<Match>();
}

// Of the communicator all ranks do so at the same call, whatever this one could load.
void StateRing::take_match(const Match& found, Session* state) {
    const auto& [saving, group, weights] = *found.saved;
    Progress& held = recalls_[state->state_key].held;
    if (newest_ == saving) {
        std::erase_if(held.waiting, [](const auto& one) {
            return one.first.second == StateKind::kMessages;  // that began anew
        });
        state->progress.drawn = held.drawn;
        state->progress.waiting = std::move(held.waiting);
    }
    state->places->trust(found.arrival.call, weights.step_calls, weights.path);
    if (overruled_ || gathers_.leader != 0) {
        return;
    }
    if (waiting_ == saving) {
        dispatch_state(runtime_).residuals.renew_placed();
    } else {
        if (waiting_.has_value()) {
            drop();
        }
        if (!wait_with(saving)) {
            decided();
            return;
        }
    }
    decided();
    gathers_.before = gathers_.ended = last_ = saving.step;
    gathers_.leader = state->state_key;
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

// Where no communicator is left that may find its weights, nothing counts.
void StateRing::begin_anew(Session* state) {
    state->recalls = false;
    recalls_.erase(state->state_key);
    const bool open = std::any_of(recalls_.begin(), recalls_.end(),
                                  [](const auto& one) { return !one.second.arrivals.empty(); });
    if (!open) {
        give_up();
    }
}

void StateRing::give_up() {
    if (undecided()) {
        warn_of_no_step();
        if (waiting_.has_value()) {
            drop();
        }
        decided();
    }
}

// The longest saved step is that of all ranks.
void StateRing::await_steps(Session* state, Recall* recall) {
    constexpr uint64_t kSteps = 3;
    uint64_t calls = 0;
    for (const Saved* const saved :
         recall->arrivals.empty() ? std::vector<const Saved*>() : saved_by(*state)) {
        calls = std::max<uint64_t>(calls, saved->weights.step_calls);
    }
    if (calls == 0) {
        begin_anew(state);
    } else {
        recall->until = state->places->calls() - 1 + kSteps * calls;
    }
}

bool StateRing::holds(Session* state, Op op) {
    const std::lock_guard lock(mutex_);
    if (is_point_to_point(op)) {  // which come in any order
        if (!gathers_.any) {
            give_up();
        }
        return false;
    }
    Recall& recall = recalls_[state->state_key];
    if (recall.until == 0) {
        await_steps(state, &recall);
    }
    return state->recalls;
}

Status StateRing::recall(Session* state) {
    std::vector<Arrival> arrivals;
    {
        const std::lock_guard lock(mutex_);
        const auto at = recalls_.find(state->state_key);
        if (at == recalls_.end() || at->second.until == 0 ||
            state->places->calls() < at->second.until) {
            return {};
        }
        arrivals = at->second.arrivals;
    }
    SLIMWIRE_TRY_ASSIGN(const std::optional<Match> found, match(*state, arrivals));
    const std::lock_guard lock(mutex_);
    if (!state->recalls) {
        return {};
    }
    if (found.has_value()) {
        take_match(*found, state);
    }
    begin_anew(state);
    return {};
}

bool StateRing::gathers(Session* state,
                        const StepPosition& place,
                        const std::shared_ptr<GatheredValue>& value) {
    constexpr size_t kMostArrivals = 8;
    if (state->places == nullptr || (!state->group.of_all() && state->members.empty())) {
        return false;
    }
    std::optional<int> group;
    if (!state->group.of_all()) {
        group = state->members.front().place.launcher_rank;
    }
    const std::lock_guard lock(mutex_);
    gathers_.any = true;
    if (const auto at = recalls_.find(state->state_key); at != recalls_.end()) {
        Recall& recall = at->second;
        if (!recall.alike || recall.until != 0) {
            return false;
        }
        recall.arrivals.push_back({state->places->calls() - 1, value});
        if (recall.arrivals.size() == kMostArrivals) {
            await_steps(state, &recall);
        }
        return true;
    }
    if (!begun_ || ranks_ == 0 || writer_.finished() || undecided()) {
        return false;
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
    const std::unique_lock saving(state_in_use(), std::try_to_lock);
    if (!saving.owns_lock()) {  // a call waits for no thread that saves or loads
        return wanted;
    }
    if (writer_.due(step) && before != nullptr) {
        if (const std::optional<Saving> of = next(step)) {
            writer_.save(
                *of, from_,
                GatheredStep{value, before, steps.calls, steps.path, group, state->rank == 0});
        }
    }
    if (!std::exchange(gathers_.prepared, true) || writer_.due(step + 1)) {
        writer_.prepare();
    }
    return wanted;
}

// Communicators that recall go on as they would, as other ranks do.
void StateRing::overruled() {
    const std::lock_guard lock(mutex_);
    overruled_ = true;
    waiting_.reset();
    from_.reset();
    decided();
}

// Saving.

void StateRing::marked(uint64_t step) {
    if (decides_yet()) {
        PendingCreationTable::instance().wait_for_all(split_timeout_us(runtime_));
    }
    const std::lock_guard saving(state_in_use());
    std::optional<Saving> due, from;
    {
        const std::lock_guard lock(mutex_);
        if (!begun_ || ranks_ == 0 || writer_.finished()) {
            return;
        }
        if (undecided()) {
            decide(step);
        }
        // At the first mark there is nothing but what was loaded.
        if (writer_.due(step) && training_state().marks.load(std::memory_order_relaxed) >= 2) {
            due = next(step);
            from = from_;
        }
    }
    if (due.has_value()) {
        writer_.save(*due, from, {});  // may wait
    }
}

// None where the one before is late.
std::optional<Saving> StateRing::next(uint64_t step) {
    if (writer_.late(step)) {
        return std::nullopt;
    }
    run_ += step <= last_ ? 1 : 0;  // the job went back
    last_ = step;
    return Saving{run_, step, ranks_};
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
