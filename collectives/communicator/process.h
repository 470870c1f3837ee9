// Everything slimwire holds in one process, made at the first NCCL call that reaches us and never
// destroyed (work may outlive main). Before that nothing exists: no thread, no file, no CUDA call.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "codecs/base/emulator_abi.h"
#include "collectives/call/nccl_libraries.h"
#include "collectives/communicator/device_memory.h"
#include "collectives/communicator/graph_memory.h"
#include "collectives/communicator/listener.h"
#include "collectives/communicator/registry.h"
#include "collectives/observe/stats.h"
#include "collectives/policy/config.h"

namespace slimwire {

class Runtime;
using MakeListener = std::unique_ptr<CommunicatorListener> (*)(Runtime& runtime);

class Runtime {
  public:
    // The process's runtime; null when the NCCL of the code at `caller` cannot be found (an error
    // line is then logged once). `make_listener` where it is made now.
    static Runtime* get(const void* caller, MakeListener make_listener) noexcept {
        Runtime* runtime = g_runtime.load(std::memory_order_acquire);
        return runtime != nullptr ? runtime : create(caller, make_listener);
    }
    // The same if there is one; never makes it.
    static const Runtime* peek() noexcept { return g_runtime.load(std::memory_order_acquire); }

    // Whether this process was forked from one that had made communicators. Such a child has none
    // of our threads and no usable device: it only forwards, so that it still has an NCCL. The
    // child of one that made no more than a unique id begins anew.
    [[nodiscard]] static bool forked() noexcept { return g_forked.load(std::memory_order_relaxed); }

    NcclLibraries libraries;
    Config config;
    // What is wrong with the configuration; reaches all ranks through the agreement.
    Status config_status;
    CommRegistry comms;
    MemoryBudget memory;
    DeviceMemory device_memory;
    GraphMemory graph_memory{&memory, &device_memory};
    std::unique_ptr<CommunicatorListener> listener;

    // Whether this process takes part in agreements: a rule compresses, or the configuration is
    // wrong, unless it would only observe.
    [[nodiscard]] bool engaged() const noexcept {
        return config.active || (!config_status.ok() && !observes(config.settings.mode));
    }

    // The device table, loaded at the first communicator.
    const Result<DeviceApi>& device();
    // Another table instead, for tests and benchmarks; before the first communicator.
    void use_device(Result<DeviceApi> table);
    [[nodiscard]] const DeviceApi& api() const noexcept { return device_->value(); }
    // Null on a GPU, and before the first communicator, which another thread may be making.
    [[nodiscard]] const EmulatorApi* emulator() const noexcept {
        return emulator_.load(std::memory_order_acquire);
    }
    // The reporter, made at the first communicator.
    Reporter& reporter();

    // Text for ncclGetLastError of the calling thread; empty when our last word was success.
    static std::string& last_error() noexcept;
    // Logs the failure, keeps its text and converts it: the one boundary.
    ncclResult_t fail(const Status& status) noexcept;

  private:
    static Runtime* create(const void* caller, MakeListener make_listener) noexcept;
    static void begin_child() noexcept;
    static std::atomic<Runtime*> g_runtime;
    static std::atomic<bool> g_forked;
    std::mutex mutex_;
    std::unique_ptr<Result<DeviceApi>> device_;
    std::atomic<const EmulatorApi*> emulator_{nullptr};  // of device_
    std::unique_ptr<Reporter> reporter_;
};

// Marks that the calling thread is inside slimwire's own NCCL calls, so that exported functions
// which the real NCCL calls back forward at once. Restores the former state.
class ReentryGuard {
  public:
    ReentryGuard() noexcept : former_(t_inside) { t_inside = true; }
    ~ReentryGuard() { t_inside = former_; }
    ReentryGuard(const ReentryGuard&) = delete;
    ReentryGuard& operator=(const ReentryGuard&) = delete;
    [[nodiscard]] static bool inside() noexcept { return t_inside; }

  private:
    static constinit thread_local bool t_inside;
    bool former_;
};

// Tells the emulator that the thread is in a data call, or ends a group of them: nothing there may
// wait on the host.
class DataCall {
  public:
    explicit DataCall(const Runtime& runtime) noexcept : emulator_(runtime.emulator()) {
        change(1);
    }
    ~DataCall() { change(-1); }
    DataCall(const DataCall&) = delete;
    DataCall& operator=(const DataCall&) = delete;

  private:
    void change(int by) const noexcept {
        if (emulator_ != nullptr && emulator_->data_call != nullptr) {
            emulator_->data_call(by);
        }
    }
    const EmulatorApi* const emulator_;
};

}  // namespace slimwire
