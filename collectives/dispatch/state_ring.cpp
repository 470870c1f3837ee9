#include "collectives/dispatch/state_ring.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "codecs/base/device_scope.h"
#include "collectives/call/launcher.h"
#include "collectives/call/log.h"
#include "collectives/call/training.h"
#include "collectives/communicator/device_objects.h"
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
            wait_with(*named);
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

void StateRing::decide_without_step() {
    const std::lock_guard lock(state_in_use());
    if (!undecided()) {
        return;
    }
    warn(
        "a compressed call came before any step was marked (slimwire_mark_step); until one is, "
        "nothing is saved" +
        (waiting_.has_value()
             ? ", and whether the saving of step " + std::to_string(waiting_->step) + " in '" +
                   folder() + "' is of these weights is not known: it is not loaded (load=" +
                   std::to_string(waiting_->step) + " does)"
             : std::string()));
    if (waiting_.has_value()) {
        drop();
    }
    undecided_.store(false,
                     std::memory_order_release);  // other threads wait for the mutex till then
}

void StateRing::overruled() {
    undecided_.store(false, std::memory_order_release);
    waiting_.reset();
    from_.reset();
    held_.clear();
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

Status StateRing::enqueue_copies(GatheredState& all, Write* write) {
    const DeviceApi& api = runtime_.api();
    uint64_t bytes = 0;
    for (size_t i = 0; i < all.sources.size(); ++i) {
        StateSource& source = all.sources[i];
        const uint64_t size = all.index.tensors[i].bytes;
        write->at.push_back(bytes);
        if (source.on_host() == nullptr) {
            bytes += (size + kAlignment - 1) / kAlignment * kAlignment;
        } else if (source.own.empty()) {  // what waits, which a call may take meanwhile
            source.own.assign(source.host, source.host + size);
        }
    }
    SLIMWIRE_TRY(reserve(bytes));
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

Result<std::unique_ptr<StateRing::Write>> StateRing::copy(uint64_t step) {
    const DeviceApi& api = runtime_.api();
    bool busy = false;
    for_each_session(runtime_, [&](Session& state) { busy |= state.users.load() > 0; });
    if (busy) {
        return Status(Code::kInvalidUsage, "a step is marked while another thread makes a call");
    }
    auto write = std::make_unique<Write>();
    write->saving = {run_, step, ranks_};
    write->from = from_;
    SLIMWIRE_TRY(chain_copies(true));
    const auto gather = [&](bool idle) {
        return gather_state(&runtime_, runtime_.config.hash, idle,
                            [&](GatheredState& all) { return enqueue_copies(all, write.get()); });
    };
    Status gathered = gather(false);
    if (gathered.code() == Code::kUnsupported) {
        SLIMWIRE_TRY(settle(&runtime_));
        gathered = gather(true);
    }
    SLIMWIRE_TRY(chain_copies(false));
    for (const auto& [device, of] : devices_) {
        const DeviceScope scope(api, device);
        SLIMWIRE_TRY(cuda_status(api, api.event_record(of.copied, of.stream), kWhat));
    }
    SLIMWIRE_TRY(std::move(gathered));
    return write;
}

void StateRing::marked(uint64_t step) {
    const std::lock_guard lock(state_in_use());
    if (!begun_ || ranks_ == 0 || stop_) {
        return;
    }
    if (undecided()) {
        decide(step);
    }
    const uint64_t every = runtime_.config.settings.state_ring.every;
    // At the first mark there is nothing but what was loaded.
    if (step % (every * stride_) != 0 ||
        training_state().marks.load(std::memory_order_relaxed) < 2) {
        return;
    }
    {
        const std::lock_guard here(mutex_);
        if (job_ != nullptr) {
            // All ranks come to write the same steps, since every stride is a multiple of smaller
            // ones, and those whose savings wait for slower ranks save less often, too.
            stride_ = 2 * stride_;
            warn("the state of step " + std::to_string(job_->saving.step) +
                 " is still being written at step " + std::to_string(step) +
                 "; this rank saves every " + std::to_string(every * stride_) +
                 " steps from here on");
            return;
        }
    }
    run_ += step <= last_ ? 1 : 0;  // the job went back
    last_ = step;
    Result<std::unique_ptr<Write>> made = copy(step);
    if (!made.ok()) {
        warn("the state of step " + std::to_string(step) +
             " is not saved: " + made.status().message());
        return;
    }
    if (const uint64_t left_out = made.value()->all.left_out; left_out > 0) {
        log_once(LogLevel::kWarn, "state by address",
                 "not in '" + folder() + "': " + left_out_text(left_out));
    }
    const std::lock_guard here(mutex_);
    job_ = std::move(made).value();
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
        changed_.wait(lock, [&] { return stop_ || job_ != nullptr; });
        if (job_ == nullptr) {
            return;
        }
        lock.unlock();
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
        lock.lock();
        job_.reset();
    }
}

Status StateRing::write(const Write& job, size_t* waiting) const {
    constexpr unsigned kPauseUs = 500;
    const DeviceApi& api = runtime_.api();
    uint64_t deadline_us = 0;
    for (const auto& [device, of] : devices_) {
        cudaError_t done = cudaErrorNotReady;
        while (!tolerate(api, done = api.event_query(of.copied)) && done == cudaErrorNotReady) {
            if (stop_) {
                deadline_us = deadline_us == 0 ? steady_us() + kExitPatienceUs : deadline_us;
                if (steady_us() >= deadline_us) {
                    return {Code::kCudaError, "the device has not copied it when the job ends"};
                }
            }
            usleep(kPauseUs);
        }
        SLIMWIRE_TRY(cuda_status(api, done, kWhat));
    }
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
        stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) {
        thread_.join();
    }
}

}  // namespace slimwire
