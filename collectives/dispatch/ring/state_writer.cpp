#include "collectives/dispatch/ring/state_writer.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "codecs/base/blocked_signals.h"
#include "codecs/base/device_scope.h"
#include "collectives/call/log.h"
#include "collectives/communicator/device_objects.h"
#include "collectives/dispatch/save_state.h"
#include "collectives/dispatch/session.h"
#include "collectives/plan/layout.h"

namespace slimwire {
namespace {

constexpr uint64_t kExitPatienceUs = 10'000'000;
constexpr size_t kMostWaiting = 4;
constexpr const char* kWhat = "copy of the state";

// A scope alone would leave the writer's thread, which has no device yet, on the first.
DeviceScope scope_of_thread(const DeviceApi& api, int device) noexcept {
    tolerate(api, api.set_device(device));
    return {api, device};
}

}  // namespace

void warn_of_ring(const std::string& text) {
    log_line(LogLevel::kWarn, "SLIMWIRE_STATE: " + text);
}

std::optional<WeightsPrint> GatheredValue::print() const {
    if (failed) {
        return std::nullopt;
    }
    Measured found{};
    std::memcpy(&found, measured.bytes.data(), sizeof found);
    return WeightsPrint(found);
}

StateWriter::~StateWriter() {
    finish();
    for (auto& [device, of] : devices_) {
        const DeviceScope scope(runtime_.api(), device);
        tolerate(runtime_.api(), runtime_.api().event_destroy(of.copied));
        tolerate(runtime_.api(), runtime_.api().stream_destroy(of.stream));
    }
    free(&pinned_);
}

bool StateWriter::due(uint64_t step) const noexcept {
    return step % (runtime_.config.settings.state_ring.every * stride_) == 0;
}

// All ranks come to write the same steps, since every stride is a multiple of smaller ones, and
// those whose savings wait for slower ranks save less often, too.
std::string StateWriter::fewer() {
    stride_ = 2 * stride_;
    return "; this rank saves every " +
           std::to_string(runtime_.config.settings.state_ring.every * stride_) +
           " steps from here on";
}

bool StateWriter::late(uint64_t step) {
    const std::lock_guard lock(mutex_);
    if (job_ != nullptr) {
        warn_of_ring("the state of step " + std::to_string(job_->saving.step) +
                     " is still being written at step " + std::to_string(step) + fewer());
    }
    return job_ != nullptr;
}

void StateWriter::save(const Saving& saving,
                       const std::optional<Saving>& from,
                       const std::optional<GatheredStep>& gathered) {
    auto job = std::make_unique<Job>();
    job->saving = saving;
    job->from = from;
    job->gathered = gathered;
    if (const Status made = copy(job.get()); !made.ok()) {
        warn_of_ring("the state of step " + std::to_string(saving.step) +
                     " is not saved: " + made.message());
        return;
    }
    if (const uint64_t left_out = job->all.index.left_out; left_out > 0) {
        log_once(LogLevel::kWarn, "state by address",
                 "not in '" + folder() + "': " + left_out_text(left_out));
    }
    const std::lock_guard lock(mutex_);
    job_ = std::move(job);
    if (!thread_.joinable()) {
        start_thread();
    }
    changed_.notify_all();
}

Result<cudaStream_t> StateWriter::stream_of(int device) {
    const DeviceApi& api = runtime_.api();
    OfDevice& of = devices_[device];
    if (of.copied == nullptr) {
        SLIMWIRE_TRY(cuda_status(api, make_internal_stream(api, &of.stream), kWhat));
        SLIMWIRE_TRY(cuda_status(
            api, api.event_create_with_flags(&of.copied, cudaEventDisableTiming), kWhat));
    }
    return of.stream;
}

Result<Pinned> StateWriter::allocate(uint64_t bytes) const {
    Pinned made{nullptr, bytes};
    SLIMWIRE_TRY(cuda_status(runtime_.api(),
                             runtime_.api().host_alloc(&made.memory, bytes, cudaHostAllocPortable),
                             "pinned memory for the state"));
    return made;
}

void StateWriter::free(Pinned* pinned) const noexcept {
    if (void* const memory = std::exchange(*pinned, {}).memory; memory != nullptr) {
        tolerate(runtime_.api(), runtime_.api().free_host(memory));
    }
}

// By the thread, as it may wait for work that other ranks, or other threads, end behind this call:
// it is there later.
Status StateWriter::reserve(uint64_t bytes, int device) {
    const Status later(Code::kOutOfMemory, "pinned memory for the state is not there yet");
    std::unique_lock lock(mutex_);
    if (wanted_.bytes > 0) {
        wanted_.bytes = std::max(wanted_.bytes, bytes);
        return later;
    }
    if (bytes <= pinned_.bytes) {
        return {};
    }
    const Status before = std::exchange(wanted_, {bytes, device, {}}).made;
    if (!thread_.joinable()) {
        start_thread();
    }
    changed_.notify_all();
    return before.ok() ? later : before;
}

Status StateWriter::await_reserved() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return wanted_.bytes == 0; });
    return std::exchange(wanted_.made, {});
}

void StateWriter::prepare() {
    if (busy()) {
        return;
    }
    (void)gather_state(&runtime_, runtime_.config.hash, false, [&](const GatheredState& all) {
        uint64_t bytes = 0;
        int device = 0;
        for (size_t i = 0; i < all.sources.size(); ++i) {
            if (all.sources[i].on_host() == nullptr) {
                bytes += aligned(all.index.tensors[i].bytes);
                device = all.sources[i].device;
            }
        }
        return reserve(bytes, device);
    });
}

bool StateWriter::busy() const {
    bool busy = false;
    for_each_session(runtime_, [&](Session& state) { busy |= state.users.load() > 0; });
    return busy;
}

Status StateWriter::enqueue_copies(GatheredState& all, Job* job) {
    const DeviceApi& api = runtime_.api();
    uint64_t bytes = 0;
    int device = 0;
    job->at.clear();
    for (size_t i = 0; i < all.sources.size(); ++i) {
        StateSource& source = all.sources[i];
        const uint64_t size = all.index.tensors[i].bytes;
        job->at.push_back(bytes);
        if (source.on_host() == nullptr) {
            bytes += aligned(size);
            device = source.device;
        } else if (source.own.empty()) {  // what waits, which a call may take meanwhile
            source.own.assign(source.host, source.host + size);
        }
    }
    SLIMWIRE_TRY(reserve(bytes, device));
    for (size_t i = 0; i < all.sources.size(); ++i) {
        const StateSource& source = all.sources[i];
        if (source.on_host() == nullptr) {
            const DeviceScope scope(api, source.device);
            SLIMWIRE_TRY_ASSIGN(const cudaStream_t stream, stream_of(source.device));
            SLIMWIRE_TRY(cuda_status(
                api,
                api.memcpy_async(pinned_.as<std::byte>() + job->at[i], source.memory,
                                 all.index.tensors[i].bytes, cudaMemcpyDeviceToHost, stream),
                kWhat));
        }
    }
    job->all = std::move(all);
    return {};
}

// Has the streams wait for the calls so far, and then calls to come for the copies: as calls of one
// communicator wait for each other.
Status StateWriter::chain_copies(bool before) {
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

Status StateWriter::copy(Job* job) {
    const DeviceApi& api = runtime_.api();
    if (busy()) {
        return {Code::kInvalidUsage, job->gathered.has_value()
                                         ? "calls of a group, or of another thread, are under way"
                                         : "a step is marked while another thread makes a call"};
    }
    SLIMWIRE_TRY(chain_copies(true));
    const auto gather = [&](bool idle) {
        return gather_state(&runtime_, runtime_.config.hash, idle,
                            [&](GatheredState& all) { return enqueue_copies(all, job); });
    };
    Status gathered = gather(false);
    const bool waits = !job->gathered.has_value();  // a step is marked, and no call is made
    const bool idle = waits && gathered.code() == Code::kUnsupported;
    if (idle) {
        SLIMWIRE_TRY(settle(&runtime_));
        gathered = gather(true);
    }
    constexpr int kLooks = 8;  // other threads' calls may make more of it meanwhile
    for (int look = 0; look < kLooks && waits && gathered.code() == Code::kOutOfMemory; ++look) {
        SLIMWIRE_TRY(await_reserved());
        gathered = gather(idle);
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
    job->all.index.step = job->saving.step;
    return gathered;
}

void StateWriter::start_thread() {
    const BlockedSignals blocked;
    try {
        thread_ = std::thread([this] { run(); });
    } catch (const std::exception& error) {
        const std::string why = std::string("no thread: ") + error.what();
        warn_of_ring("nothing is saved, " + why);
        job_.reset();
        wanted_ = {0, 0, Status(Code::kSystemError, why)};
    }
}

void StateWriter::run() noexcept {
    ::pthread_setname_np(::pthread_self(), "slimwire-state");
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [&] { return stop_ || job_ != nullptr || wanted_.bytes > 0; });
        if (job_ != nullptr) {  // first, as it is in the memory that would be replaced
            lock.unlock();
            write_job();
            lock.lock();
            job_.reset();
        } else if (wanted_.bytes > 0) {
            allocate_wanted(&lock);
        } else {
            return;
        }
    }
}

void StateWriter::allocate_wanted(std::unique_lock<std::mutex>* lock) noexcept {
    const Wanted wanted{wanted_.bytes, wanted_.device, {}};
    lock->unlock();
    const DeviceScope scope = scope_of_thread(runtime_.api(), wanted.device);
    free(&pinned_);
    Result<Pinned> made = allocate(wanted.bytes);
    lock->lock();
    pinned_ = made.ok() ? made.value() : Pinned();
    // More may be wanted meanwhile.
    const bool more = made.ok() && wanted_.bytes > wanted.bytes;
    wanted_ = {more ? wanted_.bytes : 0, wanted.device, made.status()};
    changed_.notify_all();
}

void StateWriter::write_job() noexcept {
    try {
        const std::string step = "the state of step " + std::to_string(job_->saving.step);
        size_t waiting = 0;
        const Status written = write(*job_, &waiting);
        if (waiting >= kMostWaiting) {
            warn_of_ring(std::to_string(waiting) + " savings wait for files of other ranks" +
                         fewer());
        }
        if (written.ok()) {
            log_line(LogLevel::kInfo, step + " is saved in '" + folder() + "'");
        } else {
            warn_of_ring(step + " is not saved: " + written.message());
        }
    } catch (...) {
        // Out of memory: the next saving tries again.
    }
}

// Looks until it is there; not for long when the job ends.
Status StateWriter::wait_for(const std::function<Result<bool>()>& there) const {
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

Result<SavedWeights> StateWriter::weights_of(const GatheredStep& step) const {
    SLIMWIRE_TRY(
        wait_for([&] { return Result<bool>(step.weights->there() && step.before->there()); }));
    const std::optional<WeightsPrint> print = step.weights->print(), before = step.before->print();
    if (!print.has_value() || !before.has_value()) {
        return Status(Code::kUnsupported, "the gather that begins the step was not made");
    }
    if (print->same(*before)) {
        return Status(
            Code::kUnsupported,
            "the parameters that it gathers first are those of the step before: gradients are "
            "accumulated, or these parameters are not trained (slimwire_mark_step tells steps)");
    }
    return SavedWeights{*print, step.calls, step.path};
}

Status StateWriter::write(const Job& job, size_t* waiting) const {
    const DeviceApi& api = runtime_.api();
    for (const auto& of : devices_) {
        const DeviceScope scope = scope_of_thread(api, of.first);
        SLIMWIRE_TRY(wait_for([&]() -> Result<bool> {
            const cudaError_t done = api.event_query(of.second.copied);
            if (!tolerate(api, done) && done != cudaErrorNotReady) {
                return cuda_status(api, done, kWhat);
            }
            return done == cudaSuccess;
        }));
    }
    std::optional<SavedWeights> weights;
    if (job.gathered.has_value()) {
        SLIMWIRE_TRY_ASSIGN(weights, weights_of(*job.gathered));
    }
    SLIMWIRE_TRY(make_room(folder(), job.saving, rank_, waiting, job.from));
    if (weights.has_value() && job.gathered->tells) {  // in front of its state: complete has both
        const std::string place = folder() + "/" + job.saving.name();
        SLIMWIRE_TRY(write_weights(weights_path(place, job.gathered->group), *weights));
    }
    return write_state(job.saving.path(folder(), rank_), job.all.index, {}, [&](size_t i) {
        const std::byte* const host = job.all.sources[i].on_host();
        return host != nullptr ? host : pinned_.as<std::byte>() + job.at[i];
    });
}

bool StateWriter::writing() {
    const std::lock_guard lock(mutex_);
    return job_ != nullptr || wanted_.bytes > 0;
}

void StateWriter::finish() noexcept {
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
