#include "tools/emulator/cudart/machine/runtime.h"

#include <execinfo.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "tools/emulator/cudart/api/exports.h"

namespace slimwire::emulator {
namespace {

// Plain data, so that no destructor runs when a thread ends.
thread_local int t_device = 0;
thread_local cudaError_t t_last_error = cudaSuccess;
thread_local int t_data_calls = 0;

std::atomic<Runtime*> g_runtime{nullptr};
std::atomic<bool> g_forked{false};

// A thread's own default streams, one for each device it used; they end with the thread.
struct ThreadStreams {
    std::vector<std::shared_ptr<Stream>> by_device;
    ~ThreadStreams() {
        for (const std::shared_ptr<Stream>& stream : by_device) {
            if (stream != nullptr) {
                stream->retire();
            }
        }
    }
};
thread_local ThreadStreams t_streams;

}  // namespace

void change_data_calls(int change) {
    t_data_calls += change;
}

void may_wait(const Runtime& runtime, const char* function) {
    if (t_data_calls <= 0 || runtime.settings().may_wait_in_calls) {
        return;
    }
    say("%s may wait for work of the device, in a data call of NCCL, which "
        "SLIMWIRE_EMU_STRICT=calls forbids. Called by:",
        function);
    void* frames[64];
    backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
    std::abort();
}

void wait_for_device(Runtime& runtime, const char* function) {
    may_wait(runtime, function);
    if (runtime.settings().strict && !Stream::on_worker()) {
        runtime.device(current_device()).synchronize();
    }
}

int current_device() {
    return t_device;
}

void set_current_device(int ordinal) {
    t_device = ordinal;
}

cudaError_t remember(cudaError_t error) {
    // A query that is not ready is an answer, not an error.
    if (error != cudaSuccess && error != cudaErrorNotReady) {
        t_last_error = error;
    }
    return error;
}

cudaError_t last_error(bool clear) {
    const cudaError_t error = t_last_error;
    if (clear) {
        t_last_error = cudaSuccess;
    }
    return error;
}

Device::Device(int ordinal, int connections) : ordinal_(ordinal) {
    for (int i = 0; i < connections; ++i) {
        queues_.push_back(std::make_shared<HardwareQueue>());
    }
}

std::shared_ptr<Stream> Device::make_stream(Stream::Kind kind, int priority, uint64_t id) {
    use();
    // That of the fewest streams.
    const auto queue = std::min_element(
        queues_.begin(), queues_.end(),
        [](const auto& one, const auto& other) { return one.use_count() < other.use_count(); });
    streams_.push_back(std::make_shared<Stream>(*this, kind, priority, id,
                                                queue != queues_.end() ? *queue : nullptr));
    return streams_.back();
}

std::shared_ptr<Stream> Device::legacy_stream() {
    const std::lock_guard lock(mutex_);
    if (legacy_ == nullptr) {
        legacy_ = make_stream(Stream::Kind::kLegacy, 0, 1);
        legacy_fast_.store(legacy_.get(), std::memory_order_release);
    }
    return legacy_;
}

std::shared_ptr<Stream> Device::create_stream(Stream::Kind kind, int priority) {
    static std::atomic<uint64_t> last_id{15};
    const std::lock_guard lock(mutex_);
    return make_stream(kind, priority, ++last_id);
}

void Device::forget(const Stream& stream) {
    std::shared_ptr<Stream> forgotten;  // dies after the lock
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(streams_.begin(), streams_.end(), [&](const auto& candidate) {
        return candidate.get() == &stream;
    });
    if (found != streams_.end()) {
        forgotten = std::move(*found);
        streams_.erase(found);
    }
}

std::vector<Dependency> Device::implicit_dependencies(const Stream& stream) {
    std::vector<Dependency> dependencies;
    switch (stream.kind()) {
        case Stream::Kind::kNonBlocking:
            break;
        case Stream::Kind::kBlocking: {
            Stream* legacy = legacy_fast_.load(std::memory_order_acquire);
            if (legacy != nullptr) {
                const uint64_t ticket = legacy->last_ticket();
                if (!legacy->reached(ticket)) {
                    dependencies.push_back({legacy->shared_from_this(), ticket});
                }
            }
            break;
        }
        case Stream::Kind::kLegacy: {
            const std::lock_guard lock(mutex_);
            for (const std::shared_ptr<Stream>& other : streams_) {
                const uint64_t ticket = other->last_ticket();
                if (other->kind() == Stream::Kind::kBlocking && !other->reached(ticket)) {
                    dependencies.push_back({other, ticket});
                }
            }
            break;
        }
    }
    return dependencies;
}

std::vector<Dependency> Device::pending() {
    std::vector<Dependency> pending;
    const std::lock_guard lock(mutex_);
    for (const std::shared_ptr<Stream>& stream : streams_) {
        const uint64_t ticket = stream->last_ticket();
        if (!stream->reached(ticket)) {
            pending.push_back({stream, ticket});
        }
    }
    return pending;
}

void Device::synchronize() {
    for (const Dependency& dependency : pending()) {
        dependency.stream->wait(dependency.ticket);
    }
}

void Device::poison(cudaError_t error, const char* operation, const char* text) {
    cudaError_t expected = cudaSuccess;
    if (sticky_.compare_exchange_strong(expected, error, std::memory_order_acq_rel)) {
        say("device %d: %s failed with %s%s%s; its later calls return that error until "
            "cudaDeviceReset",
            ordinal_, operation, cudaGetErrorName(error), *text != '\0' ? ": " : "", text);
    }
}

Runtime* Runtime::get(cudaError_t* error) {
    Runtime* runtime = g_runtime.load(std::memory_order_acquire);
    if (runtime == nullptr) {
        static std::mutex creation;
        const std::lock_guard lock(creation);
        runtime = g_runtime.load(std::memory_order_relaxed);
        if (runtime == nullptr) {
            runtime = new Runtime(read_settings());
            pthread_atfork(nullptr, nullptr, [] { g_forked.store(true); });
            g_runtime.store(runtime, std::memory_order_release);
        }
    }
    *error = g_forked.load(std::memory_order_relaxed) ? cudaErrorInitializationError
                                                      : runtime->settings_.error;
    return *error == cudaSuccess ? runtime : nullptr;
}

Runtime::Runtime(const Settings& settings) : memory(settings), settings_(settings) {
    (void)faults_.parse(settings.faults);  // checked when it was read
    for (int ordinal = 0; ordinal < settings.device_count; ++ordinal) {
        devices_.push_back(std::make_unique<Device>(ordinal, settings.connections));
        make_default_pool(ordinal);
    }
}

void Runtime::make_default_pool(int device) {
    this->device(device).default_pool = pools.add(std::make_shared<Pool>(memory, device, 0));
}

std::shared_ptr<Stream> Runtime::stream(cudaStream_t handle) {
    if (handle == nullptr || handle == cudaStreamLegacy) {
        return device(current_device()).legacy_stream();
    }
    if (handle != cudaStreamPerThread) {
        return streams.find(handle);
    }
    t_streams.by_device.resize(static_cast<size_t>(settings_.device_count));
    std::shared_ptr<Stream>& own = t_streams.by_device[static_cast<size_t>(current_device())];
    if (own == nullptr) {
        own = device(current_device()).create_stream(Stream::Kind::kBlocking, 0);
    }
    return own;
}

cudaError_t submit(Runtime& runtime,
                   Stream& stream,
                   cudaGraphNodeType type,
                   OperationRef operation) {
    if (stream.capturing()) {
        NodeWork work;
        work.type = type;
        work.operation = std::move(operation);
        return runtime.captures.add(stream, std::move(work));
    }
    stream.enqueue(std::move(operation));
    return cudaSuccess;
}

}  // namespace slimwire::emulator
