// A DeviceApi that stands before the emulator's: counts calls by function, lets chosen ones fail,
// and notes the operations that are launched with the thread blocks that they were allowed.
//
// One for the process; any thread. set_up() before the first use.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "codecs/base/device.h"
#include "codecs/base/emulator_abi.h"
#include "codecs/codec.h"
#include "codecs/copy_lines.h"
#include "codecs/launch.h"
#include "collectives/backend.h"

namespace slimwire::net {

enum class DeviceCall : uint8_t {
#define SLIMWIRE_CALL(member, function) member,
    SLIMWIRE_DEVICE_FUNCTIONS(SLIMWIRE_CALL)
#undef SLIMWIRE_CALL
        launch,
};
inline constexpr size_t kDeviceCalls = static_cast<size_t>(DeviceCall::launch) + 1;

struct SeenLaunch {
    std::string what;  // "encode", "decode", "copy_lines"
    int64_t elements;  // or bytes
    int32_t max_blocks;
};

class GpuSpy {
  public:
    static GpuSpy& get() {
        static GpuSpy spy;
        return spy;
    }

    // The table to hand out; empty where no emulator is mapped.
    [[nodiscard]] const DeviceApi& api() const { return api_; }
    [[nodiscard]] bool good() const { return api_.emulator != nullptr; }

    void reset() {
        for (auto& count : counts_) {
            count = 0;
        }
        fail_ = -1;
        delay_us = 0;
        const std::lock_guard lock(mutex_);
        launches_.clear();
    }
    [[nodiscard]] uint64_t count(DeviceCall call) const {
        return counts_[static_cast<size_t>(call)];
    }
    // The `nth` call from now on (from 0) of that function fails with `error`.
    void fail(DeviceCall call, int nth, cudaError_t error) {
        error_ = error;
        left_ = nth;
        fail_ = static_cast<int>(call);
    }
    void reset_launches() {
        const std::lock_guard lock(mutex_);
        launches_.clear();
    }
    [[nodiscard]] std::vector<SeenLaunch> launches() {
        const std::lock_guard lock(mutex_);
        return launches_;
    }

    // That long the GPU does nothing before each operation.
    std::atomic<unsigned> delay_us{0};

    // 0, or the error to return.
    cudaError_t on_call(DeviceCall call) {
        ++counts_[static_cast<size_t>(call)];
        if (fail_ == static_cast<int>(call) && left_-- <= 0) {
            fail_ = -1;
            return error_;
        }
        return cudaSuccess;
    }
    void on_launch(const SeenLaunch& launch) {
        const std::lock_guard lock(mutex_);
        launches_.push_back(launch);
    }

  private:
    GpuSpy();

    DeviceApi api_;
    EmulatorApi emulator_{};
    std::array<std::atomic<uint64_t>, kDeviceCalls> counts_{};
    std::atomic<int> fail_{-1}, left_{0};
    std::atomic<cudaError_t> error_{cudaSuccess};
    std::mutex mutex_;
    std::vector<SeenLaunch> launches_;
};

namespace spy {

template <DeviceCall kCall, class Function>
struct Wrap;
template <DeviceCall kCall, class Result, class... Args>
struct Wrap<kCall, Result (*)(Args...)> {
    static inline Result (*real)(Args...) = nullptr;
    static Result call(Args... args) {
        const cudaError_t error = GpuSpy::get().on_call(kCall);
        if constexpr (std::is_same_v<Result, cudaError_t>) {
            if (error != cudaSuccess) {
                return error;
            }
        }
        return real(args...);
    }
};

inline cudaError_t (*real_launch)(
    cudaStream_t, void (*)(const void*), const void*, size_t, const char*) = nullptr;

template <class Args>
const Args& args_of(const void* launch) {
    return static_cast<const HostLaunch<Args>*>(launch)->args;
}

inline cudaError_t launch(cudaStream_t stream,
                          void (*body)(const void*),
                          const void* args,
                          size_t bytes,
                          const char* name) {
    if (const cudaError_t error = GpuSpy::get().on_call(DeviceCall::launch); error != cudaSuccess) {
        return error;
    }
    SeenLaunch seen{name, 0, 0};
    if (body == run_host_launch<EncodeArgs>) {
        seen = {"encode", args_of<EncodeArgs>(args).count, args_of<EncodeArgs>(args).max_blocks};
    } else if (body == run_host_launch<DecodeArgs>) {
        seen = {"decode", args_of<DecodeArgs>(args).count, args_of<DecodeArgs>(args).max_blocks};
    } else if (body == run_host_launch<CopyLinesArgs>) {
        seen = {"copy_lines", args_of<CopyLinesArgs>(args).bytes,
                args_of<CopyLinesArgs>(args).max_blocks};
    }
    GpuSpy::get().on_launch(seen);
    if (const unsigned delay_us = GpuSpy::get().delay_us; delay_us > 0) {
        const auto sleep = [](const void* us) {
            std::this_thread::sleep_for(
                std::chrono::microseconds(*static_cast<const unsigned*>(us)));
        };
        (void)real_launch(stream, sleep, &delay_us, sizeof delay_us, "delay");
    }
    return real_launch(stream, body, args, bytes, name);
}

}  // namespace spy

inline GpuSpy::GpuSpy() {
    Result<DeviceApi> loaded = load_device_api();
    if (!loaded.ok() || loaded.value().emulator == nullptr) {
        return;
    }
    api_ = loaded.value();
#define SLIMWIRE_WRAP(member, function)                                       \
    spy::Wrap<DeviceCall::member, decltype(api_.member)>::real = api_.member; \
    api_.member = spy::Wrap<DeviceCall::member, decltype(api_.member)>::call;
    SLIMWIRE_DEVICE_FUNCTIONS(SLIMWIRE_WRAP)
#undef SLIMWIRE_WRAP
    emulator_ = *api_.emulator;
    spy::real_launch = emulator_.launch;
    emulator_.launch = spy::launch;
    api_.emulator = &emulator_;
}

}  // namespace slimwire::net
