#include "collectives/dispatch/ring/state_ring.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "codecs/base/device_scope.h"
#include "collectives/call/launcher.h"
#include "collectives/call/log.h"
#include "collectives/call/training.h"
#include "collectives/communicator/device_objects.h"
#include "collectives/communicator/pending_creations.h"
#include "collectives/dispatch/dispatch_state.h"
#include "collectives/dispatch/save_state.h"
#include "collectives/dispatch/session.h"
#include "collectives/state/conversion.h"
#include "collectives/state/loaded_state.h"

namespace slimwire {
namespace {

constexpr uint64_t kAlignment = 256, kExitPatienceUs = 10'000'000;
constexpr size_t kMostWaiting = 4;
constexpr const char* kWhat = "copy of the state";

void warn(const std::string& text) {
    log_line(LogLevel::kWarn, "SLIMWIRE_STATE: " + text);
}

}  // namespace

StateRing::StateRing(Runtime& runtime)
    : runtime_(runtime),
      rank_(launcher_rank().value_or(0)),
      ranks_(launcher_rank().has_value() ? launcher_size().value_or(0) : 0) {}

StateRing::~StateRing() {
    finish();
    for (auto& [device, of] : devices_) {
        const DeviceScope scope(runtime_.api(), device);
        tolerate(runtime_.api(), runtime_.api().event_destroy(of.copied));
        tolerate(runtime_.api(), runtime_.api().stream_destroy(of.stream));
    }
    if (pinned_ != nullptr) {
        tolerate(runtime_.api(), runtime_.api().free_host(pinned_));
    }
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
    const auto by_atoms = [path = folder() + "/" + saving.name(), ranks = ranks_, rank = rank_] {
        std::vector<std::string> left_out;
        Result<StateContent> content =
            converted_state(path, ranks, &left_out, kMostOpenFiles, rank);
        for (const std::string& one : left_out) {
            warn("begins anew on " + std::to_string(ranks) + " ranks: " + one);
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
        warn(status.message() + "; this rank begins without it");
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
        warn(
            "no launcher said this process's rank and the number of ranks (RANK, WORLD_SIZE); "
            "nothing is saved or loaded");
        return;
    }
    if (const Status usable = make_folder(folder()); !usable.ok()) {
        warn(usable.message() + "; nothing is saved or loaded");
        stop_ = true;
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
            gathers_.steps = wait_with(*named) ? named->step : 0;
        } else {
            warn("'" + folder() + "' has no complete saving for load=" + load +
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
    warn(text + "; nothing is loaded");
}

std::optional<WeightsPrint> GatheredValue::print() const {
    if (failed) {
        return std::nullopt;
    }
    Measured found{};
    std::memcpy(&found, measured.bytes.data(), sizeof found);
    return WeightsPrint(found);
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
                state.stats->host_waits.fetch_add(std::exchange(waits, true) ? 0 : 1,
                                                  std::memory_order_relaxed);
            }
        });
        status = !there || steady_us() >= deadline_us ? lost : Status();
    }
    return status;
}

std::optional<StateRing::Match> StateRing::match(const std::vector<Arrival>& arrivals) {
    std::vector<std::pair<Saving, SavedWeights>> saved;
    for (const Saving& one : savings_in(folder())) {
        const std::optional<SavedWeights> weights =
            read_weights(weights_path(folder() + "/" + one.name()));
        if (weights.has_value() && one.complete(folder())) {
            saved.emplace_back(one, *weights);
        }
    }
    for (const Arrival& arrival : arrivals) {
        if (saved.empty() || !await(arrival).ok()) {
            break;
        }
        const std::optional<WeightsPrint> print = arrival.value->print();
        for (const auto& [saving, weights] : saved) {
            if (print.has_value() && print->same(weights.print)) {
                return Match{saving, arrival, weights};
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
    gathers_.steps = last_ = found.saving.step;
    gathers_.leader = found.arrival.state_key;
    for_each_session(runtime_, [&](Session& state) {
        if (state.state_key == gathers_.leader && state.places != nullptr) {
            state.places->trust(found.arrival.call, found.weights.step_calls, found.weights.path);
        }
    });
    log_line(LogLevel::kInfo, "SLIMWIRE_STATE: the job begins with the weights of step " +
                                  std::to_string(gathers_.steps) + ", whose saving it takes");
}

void StateRing::warn_of_no_step() {
    const std::string step = waiting_.has_value() ? std::to_string(waiting_->step) : std::string();
    if (gathers_.any && waiting_.has_value()) {
        warn("no saving in '" + folder() +
             "' is of the weights that this job gathers first, so nothing is loaded (load=" + step +
             " takes the newest all the same)");
    } else if (!gathers_.any) {
        warn(
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
    if (state->world == 0 || state->places == nullptr) {
        return false;
    }
    const std::lock_guard lock(state_in_use());
    if (!begun_ || ranks_ == 0 || stop_) {
        return false;
    }
    gathers_.any = true;
    if (undecided()) {
        if (gathers_.arrivals.size() == kMostArrivals || savings_in(folder()).empty()) {
            return false;
        }
        gathers_.arrivals.push_back({state->state_key, state->places->calls() - 1, value});
        return true;
    }
    if (!place.begins || (gathers_.leader != 0 && gathers_.leader != state->state_key)) {
        return false;
    }
    gathers_.leader = state->state_key;
    const uint64_t step = ++gathers_.steps;
    const std::shared_ptr<GatheredValue> before = std::exchange(gathers_.weights, nullptr);
    const bool wanted = due(step) || due(step + 1);
    if (wanted) {
        gathers_.weights = value;
    }
    if (due(step) && before != nullptr) {
        auto write = std::make_unique<Write>();
        write->weights = value;
        write->before = before;
        write->step_calls = state->places->step_calls();
        write->path = place.path;
        save(step, std::move(write));
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

Result<cudaStream_t> StateRing::stream_of(int device) {
    const DeviceApi& api = runtime_.api();
    OfDevice& of = devices_[device];
    if (of.copied == nullptr) {
        SLIMWIRE_TRY(cuda_status(api, make_internal_stream(api, &of.stream), kWhat));
        SLIMWIRE_TRY(cuda_status(
            api, api.event_create_with_flags(&of.copied, cudaEventDisableTiming), kWhat));
    }
    return of.stream;
}

Status StateRing::reserve(uint64_t bytes) {
    const DeviceApi& api = runtime_.api();
    if (bytes <= pinned_bytes_) {
        return {};
    }
    if (pinned_ != nullptr) {
        tolerate(api, api.free_host(std::exchange(pinned_, nullptr)));
        pinned_bytes_ = 0;
    }
    void* memory = nullptr;
    SLIMWIRE_TRY(cuda_status(api, api.host_alloc(&memory, bytes, cudaHostAllocPortable),
                             "pinned memory for the state"));
    pinned_ = static_cast<std::byte*>(memory);
    pinned_bytes_ = bytes;
    return {};
}

// By the thread, as that may wait for work that other ranks end behind this call; not for long.
Status StateRing::reserve_beside(uint64_t bytes, int device) {
    constexpr auto kPatience = std::chrono::seconds(10);
    std::unique_lock lock(mutex_);
    if (bytes <= pinned_bytes_) {
        return {};
    }
    wanted_.bytes = bytes;
    wanted_.device = device;
    if (!thread_.joinable()) {
        start_thread();
    }
    changed_.notify_all();
    if (!changed_.wait_for(lock, kPatience, [&] { return wanted_.bytes == 0; })) {
        return {Code::kOutOfMemory, "pinned memory is not there yet"};
    }
    return wanted_.made;
}

Status StateRing::enqueue_copies(GatheredState& all, Write* write) {
    const DeviceApi& api = runtime_.api();
    uint64_t bytes = 0;
    int device = 0;
    for (size_t i = 0; i < all.sources.size(); ++i) {
        StateSource& source = all.sources[i];
        const uint64_t size = all.index.tensors[i].bytes;
        write->at.push_back(bytes);
        if (source.on_host() == nullptr) {
            bytes += (size + kAlignment - 1) / kAlignment * kAlignment;
            device = source.device;
        } else if (source.own.empty()) {  // what waits, which a call may take meanwhile
            source.own.assign(source.host, source.host + size);
        }
    }
    SLIMWIRE_TRY(write->weights != nullptr ? reserve_beside(bytes, device) : reserve(bytes));
    for (size_t i = 0; i < all.sources.size(); ++i) {
        const StateSource& source = all.sources[i];
        if (source.on_host() == nullptr) {
            const DeviceScope scope(api, source.device);
            SLIMWIRE_TRY_ASSIGN(const cudaStream_t stream, stream_of(source.device));
            SLIMWIRE_TRY(cuda_status(
                api,
                api.memcpy_async(pinned_ + write->at[i], source.memory, all.index.tensors[i].bytes,
                                 cudaMemcpyDeviceToHost, stream),
                kWhat));
        }
    }
    write->all = std::move(all);
    return {};
}

// Has the streams wait for the calls so far, and then calls to come for the copies: as calls of one
// communicator wait for each other.
Status StateRing::chain_copies(bool before) {
    const DeviceApi& api = runtime_.api();
    Status status;
    for_each_session(runtime_, [&](Session& state) {
        if (!state.objects.chained || state.ended || !status.ok()) {
            return;
        }
        const DeviceScope scope(api, state.device);
        const Result<cudaStream_t> stream = stream_of(state.device);
        status = stream.status();
        if (status.ok()) {
            const cudaError_t error =
                before ? api.stream_wait_event(stream.value(), state.objects.chain, 0)
                       : api.event_record(state.objects.chain, stream.value());
            status = cuda_status(api, error, kWhat);
        }
    });
    return status;
}

Status StateRing::copy(Write* write) {
    const DeviceApi& api = runtime_.api();
    bool busy = false;
    for_each_session(runtime_, [&](Session& state) { busy |= state.users.load() > 0; });
    if (busy) {
        return {Code::kInvalidUsage, write->weights != nullptr
                                         ? "calls of a group, or of another thread, are under way"
                                         : "a step is marked while another thread makes a call"};
    }
    SLIMWIRE_TRY(chain_copies(true));
    const auto gather = [&](bool idle) {
        return gather_state(&runtime_, runtime_.config.hash, idle,
                            [&](GatheredState& all) { return enqueue_copies(all, write); });
    };
    Status gathered = gather(false);
    if (gathered.code() == Code::kUnsupported && write->weights == nullptr) {
        SLIMWIRE_TRY(settle(&runtime_));
        gathered = gather(true);
    }
    SLIMWIRE_TRY(chain_copies(false));
    for (const auto& [device, of] : devices_) {
        const DeviceScope scope(api, device);
        SLIMWIRE_TRY(cuda_status(api, api.event_record(of.copied, of.stream), kWhat));
    }
    if (gathered.code() == Code::kUnsupported) {
        return {Code::kUnsupported,
                "what this policy keeps has to be read from the device, which no call waits for: "
                "slimwire_mark_step saves it"};
    }
    write->all.index.step = write->saving.step;
    return gathered;
}

bool StateRing::due(uint64_t step) const noexcept {
    return step % (runtime_.config.settings.state_ring.every * stride_) == 0;
}

void StateRing::marked(uint64_t step) {
    const std::lock_guard lock(state_in_use());
    if (!begun_ || ranks_ == 0 || stop_) {
        return;
    }
    if (undecided()) {
        decide(step);
    }
    // At the first mark there is nothing but what was loaded.
    if (due(step) && training_state().marks.load(std::memory_order_relaxed) >= 2) {
        save(step, std::make_unique<Write>());
    }
}

void StateRing::save(uint64_t step, std::unique_ptr<Write> write) {
    {
        const std::lock_guard here(mutex_);
        if (job_ != nullptr) {
            // All ranks come to write the same steps, since every stride is a multiple of smaller
            // ones, and those whose savings wait for slower ranks save less often, too.
            stride_ = 2 * stride_;
            warn("the state of step " + std::to_string(job_->saving.step) +
                 " is still being written at step " + std::to_string(step) +
                 "; this rank saves every " +
                 std::to_string(runtime_.config.settings.state_ring.every * stride_) +
                 " steps from here on");
            return;
        }
    }
    run_ += step <= last_ ? 1 : 0;  // the job went back
    last_ = step;
    write->saving = {run_, step, ranks_};
    write->from = from_;
    if (const Status made = copy(write.get()); !made.ok()) {
        warn("the state of step " + std::to_string(step) + " is not saved: " + made.message());
        return;
    }
    if (const uint64_t left_out = write->all.left_out; left_out > 0) {
        log_once(LogLevel::kWarn, "state by address",
                 "not in '" + folder() + "': " + left_out_text(left_out));
    }
    const std::lock_guard here(mutex_);
    job_ = std::move(write);
    if (!thread_.joinable()) {
        start_thread();
    }
    changed_.notify_all();
}

// Signals of the job must not be delivered to a thread it does not know.
void StateRing::start_thread() {
    sigset_t all;
    sigset_t before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        thread_ = std::thread([this] { run(); });
    } catch (const std::exception& error) {
        warn(std::string("nothing is saved, no thread: ") + error.what());
        job_.reset();
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void StateRing::run() noexcept {
    ::pthread_setname_np(::pthread_self(), "slimwire-state");
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [&] { return stop_ || job_ != nullptr || wanted_.bytes > 0; });
        if (wanted_.bytes > 0) {
            const uint64_t bytes = wanted_.bytes;
            lock.unlock();
            const DeviceScope scope(runtime_.api(), wanted_.device);
            Status made = reserve(bytes);
            lock.lock();
            wanted_.made = std::move(made);
            wanted_.bytes = 0;
            changed_.notify_all();
            continue;
        }
        if (job_ == nullptr) {
            return;
        }
        lock.unlock();
        write_job();
        lock.lock();
        job_.reset();
    }
}

void StateRing::write_job() noexcept {
    try {
        const std::string step = "the state of step " + std::to_string(job_->saving.step);
        size_t waiting = 0;
        const Status written = write(*job_, &waiting);
        if (waiting >= kMostWaiting) {
            stride_ = 2 * stride_;
            warn(std::to_string(waiting) +
                 " savings wait for files of other ranks; this rank "
                 "saves every " +
                 std::to_string(runtime_.config.settings.state_ring.every * stride_) +
                 " steps from here on");
        }
        if (written.ok()) {
            log_line(LogLevel::kInfo, step + " is saved in '" + folder() + "'");
        } else {
            warn(step + " is not saved: " + written.message());
        }
    } catch (...) {
        // Out of memory: the next saving tries again.
    }
}

// Looks until it is there; not for long when the job ends.
Status StateRing::wait_for(const std::function<Result<bool>()>& there) const {
    constexpr unsigned kPauseUs = 500;
    uint64_t deadline_us = 0;
    while (true) {
        SLIMWIRE_TRY_ASSIGN(const bool done, there());
        if (done) {
            return {};
        }
        if (stop_) {
            deadline_us = deadline_us == 0 ? steady_us() + kExitPatienceUs : deadline_us;
            if (steady_us() >= deadline_us) {
                return {Code::kCudaError, "the device has not copied it when the job ends"};
            }
        }
        usleep(kPauseUs);
    }
}

Status StateRing::write_weights_of(const Write& job) const {
    SLIMWIRE_TRY(
        wait_for([&] { return Result<bool>(job.weights->there() && job.before->there()); }));
    const std::optional<WeightsPrint> print = job.weights->print(), before = job.before->print();
    if (!print.has_value() || !before.has_value()) {
        return {Code::kUnsupported, "the gather that begins the step was not made"};
    }
    if (print->same(*before)) {
        return {
            Code::kUnsupported,
            "the parameters that it gathers first are those of the step before: gradients are "
            "accumulated, or these parameters are not trained (slimwire_mark_step tells steps)"};
    }
    SLIMWIRE_TRY(make_room(folder(), job.saving, rank_, nullptr, job.from));
    return rank_ != 0 ? Status()
                      : write_weights(weights_path(folder() + "/" + job.saving.name()),
                                      {*print, job.step_calls, job.path});
}

Status StateRing::write(const Write& job, size_t* waiting) const {
    const DeviceApi& api = runtime_.api();
    for (const auto& of : devices_) {
        SLIMWIRE_TRY(wait_for([&]() -> Result<bool> {
            const cudaError_t done = api.event_query(of.second.copied);
            if (!tolerate(api, done) && done != cudaErrorNotReady) {
                return cuda_status(api, done, kWhat);
            }
            return done == cudaSuccess;
        }));
    }
    SLIMWIRE_TRY(job.weights != nullptr ? write_weights_of(job) : Status());
    SLIMWIRE_TRY(make_room(folder(), job.saving, rank_, waiting, job.from));
    return write_state(job.saving.path(folder(), rank_), job.all.index, {}, [&](size_t i) {
        const std::byte* const host = job.all.sources[i].on_host();
        return host != nullptr ? host : pinned_ + job.at[i];
    });
}

bool StateRing::writing() {
    const std::lock_guard lock(mutex_);
    return job_ != nullptr;
}

void StateRing::finish() noexcept {
    {
        const std::lock_guard lock(mutex_);
        if (!stop_ && gathers_.any && gathers_.steps == 0 && !undecided() &&
            training_state().marks.load(std::memory_order_relaxed) == 0) {
            warn("nothing was saved: no step was marked (slimwire_mark_step), and none found");
        }
        stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) {
        thread_.join();
    }
}

}  // namespace slimwire
