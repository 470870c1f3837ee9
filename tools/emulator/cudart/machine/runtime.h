// The process's emulated machine: devices with their streams, the tables of handles, device and
// host memory. Created by the first CUDA call, never destroyed, so that workers may outlive main().
// No thread starts here. In a forked child every CUDA call fails: the parent's workers do not exist
// there.
#pragma once

#include <driver_types.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <type_traits>
#include <vector>

#include "tools/emulator/cudart/machine/capture.h"
#include "tools/emulator/cudart/machine/event.h"
#include "tools/emulator/cudart/machine/graph.h"
#include "tools/emulator/cudart/machine/handle_table.h"
#include "tools/emulator/cudart/machine/memory.h"
#include "tools/emulator/cudart/machine/pool.h"
#include "tools/emulator/cudart/machine/settings.h"
#include "tools/emulator/cudart/machine/stream.h"
#include "tools/emulator/fault_plan.h"

// Returns what `expression` gives unless that is cudaSuccess.
#define SLIMWIRE_EMU_TRY(expression)                      \
    do {                                                  \
        const cudaError_t slimwire_error_ = (expression); \
        if (slimwire_error_ != cudaSuccess) {             \
            return slimwire_error_;                       \
        }                                                 \
    } while (false)

namespace slimwire::emulator {

class Device {
  public:
    // `connections`: hardware queues that streams share; 0: each has one of its own.
    Device(int ordinal, int connections);

    [[nodiscard]] int ordinal() const { return ordinal_; }

    // A call that makes the device's context, where there is none yet.
    void use() { context_.store(true, std::memory_order_relaxed); }
    [[nodiscard]] bool has_context() const { return context_.load(std::memory_order_relaxed); }

    std::shared_ptr<Stream> legacy_stream();
    std::shared_ptr<Stream> create_stream(Stream::Kind kind, int priority);
    // Called once by a retired stream whose work is done.
    void forget(const Stream& stream);

    // What an operation enqueued now on `stream` has to wait for beyond its own stream: the legacy
    // stream and the blocking streams of a device are ordered with each other.
    std::vector<Dependency> implicit_dependencies(const Stream& stream);
    // The last ticket of every stream of this device that still has work.
    std::vector<Dependency> pending();
    // Waits for all work enqueued so far. Not on a worker.
    void synchronize();

    // An asynchronous failure: later calls return it until the device is reset. Says once on stderr
    // which operation failed.
    void poison(cudaError_t error, const char* operation, const char* text);
    [[nodiscard]] cudaError_t sticky() const { return sticky_.load(std::memory_order_acquire); }
    void clear_sticky() { sticky_.store(cudaSuccess, std::memory_order_release); }

    std::atomic<cudaMemPool_t> default_pool{nullptr};  // of cudaMallocAsync

  private:
    std::shared_ptr<Stream> make_stream(Stream::Kind kind, int priority, uint64_t id);

    const int ordinal_;
    std::atomic<cudaError_t> sticky_{cudaSuccess};
    std::atomic<bool> context_{false};
    std::mutex mutex_;
    std::vector<std::shared_ptr<HardwareQueue>> queues_;
    std::vector<std::shared_ptr<Stream>>
        streams_;  // legacy stream included; retired ones until they end
    std::shared_ptr<Stream> legacy_;
    std::atomic<Stream*> legacy_fast_{nullptr};  // legacy_.get(); never changes once set
};

class Runtime {
  public:
    // Null, with the reason in *error, when this process cannot use CUDA.
    static Runtime* get(cudaError_t* error);

    explicit Runtime(const Settings& settings);

    [[nodiscard]] const Settings& settings() const { return settings_; }
    Device& device(int ordinal) { return *devices_[static_cast<size_t>(ordinal)]; }
    [[nodiscard]] bool valid_device(int ordinal) const {
        return ordinal >= 0 && ordinal < settings_.device_count;
    }

    void make_default_pool(int device);
    // The stream behind a handle, the three special ones included; null for a handle that is none.
    std::shared_ptr<Stream> stream(cudaStream_t handle);
    // What SLIMWIRE_EMU_FAULT wants of a call of `function`: an error, or success after a delay.
    cudaError_t injected_fault(const char* function) {
        return faults_.empty()
                   ? cudaSuccess
                   : static_cast<cudaError_t>(faults_.on_call(function, cudaErrorMemoryAllocation));
    }

    HandleTable<cudaStream_t, Stream, 0x51> streams;
    HandleTable<cudaEvent_t, Event, 0x52> events;
    HandleTable<cudaMemPool_t, Pool, 0x53> pools;
    HandleTable<cudaGraph_t, Graph, 0x54> graphs;
    HandleTable<cudaGraphExec_t, GraphExec, 0x56> graph_execs;
    HandleTable<cudaUserObject_t, UserObject, 0x57> user_objects;
    CaptureTable captures;
    DeviceMemory memory;
    HostMemory host_memory;

  private:
    const Settings settings_;
    FaultPlan faults_;
    std::vector<std::unique_ptr<Device>> devices_;
};

// Runs `allocate` again after cached blocks of the device went back, if it found no room.
template <class Allocate>
void* with_trimmed_pool(Runtime& runtime, int device, Allocate allocate) {
    try {
        return allocate();
    } catch (const std::bad_alloc&) {
        const std::shared_ptr<Pool> pool = runtime.pools.find(runtime.device(device).default_pool);
        if (pool != nullptr) {  // else the device is being reset
            pool->trim(0);
        }
        return allocate();
    }
}

// EmulatorApi::data_call.
void change_data_calls(int change);
// A call of `function` on this thread that may wait for work of a device.
void may_wait(const Runtime& runtime, const char* function);
// The same for what CUDA may do at any time: under SLIMWIRE_EMU_STRICT it waits for all work of the
// current device. Not on a worker.
void wait_for_device(Runtime& runtime, const char* function);

// The calling thread's device and last error.
int current_device();
void set_current_device(int ordinal);
cudaError_t remember(cudaError_t error);  // stores anything but success and "not ready", returns it
cudaError_t last_error(bool clear);

// Runs the body of an API function: with the runtime, exceptions turned into error codes, and the
// error remembered for cudaGetLastError. `function` is the API's name, by default the caller's own:
// SLIMWIRE_EMU_FAULT counts by it.
template <class Body>
cudaError_t call(Body&& body, const char* function = __builtin_FUNCTION()) noexcept {
    cudaError_t error = cudaSuccess;
    Runtime* runtime = Runtime::get(&error);
    if (runtime != nullptr) {
        try {
            error = runtime->injected_fault(function);
            if (error == cudaSuccess) {
                error = body(*runtime);
            }
        } catch (const std::bad_alloc&) {
            error = cudaErrorMemoryAllocation;
        } catch (const std::system_error&) {
            error = cudaErrorOperatingSystem;
        } catch (const std::exception&) {
            error = cudaErrorUnknown;
        }
    }
    return remember(error);
}

// The same for functions that a poisoned device refuses.
template <class Body>
cudaError_t device_call(Body&& body, const char* function = __builtin_FUNCTION()) noexcept {
    return call(
        [&](Runtime& runtime) {
            Device& device = runtime.device(current_device());
            device.use();
            const cudaError_t sticky = device.sticky();
            return sticky != cudaSuccess ? sticky : body(runtime);
        },
        function);
}

// The same for functions on a stream: body(runtime, stream).
template <class Body>
cudaError_t stream_call(cudaStream_t handle,
                        Body&& body,
                        const char* function = __builtin_FUNCTION()) noexcept {
    return call(
        [&](Runtime& runtime) {
            const std::shared_ptr<Stream> stream = runtime.stream(handle);
            if (stream == nullptr) {
                return cudaErrorInvalidResourceHandle;
            }
            const cudaError_t sticky = stream->device().sticky();
            return sticky != cudaSuccess ? sticky : body(runtime, *stream);
        },
        function);
}

// The same for functions that give the stream work: refused where a capture forbids it.
template <class Body>
cudaError_t work_call(cudaStream_t handle,
                      Body&& body,
                      const char* function = __builtin_FUNCTION()) noexcept {
    return stream_call(
        handle,
        [&](Runtime& runtime, Stream& stream) {
            const cudaError_t error = runtime.captures.admit(stream);
            return error != cudaSuccess ? error : body(runtime, stream);
        },
        function);
}

// device_call for functions that a capture would not observe.
template <class Body>
cudaError_t unsafe_call(Body&& body, const char* function = __builtin_FUNCTION()) noexcept {
    return device_call(
        [&](Runtime& runtime) {
            const cudaError_t error = runtime.captures.forbid_unsafe();
            return error != cudaSuccess ? error : body(runtime);
        },
        function);
}

// Answers a query: an invalid value where the program has no place for the answer.
template <class T>
cudaError_t give(T* out, std::type_identity_t<T> value) {
    if (out == nullptr) {
        return cudaErrorInvalidValue;
    }
    *out = value;
    return cudaSuccess;
}

// Puts an operation into the stream, or into the graph that the stream is captured into.
cudaError_t submit(Runtime& runtime,
                   Stream& stream,
                   cudaGraphNodeType type,
                   OperationRef operation);

}  // namespace slimwire::emulator
