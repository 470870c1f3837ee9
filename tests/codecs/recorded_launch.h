// A device that keeps what is enqueued on it: a test runs the body when it wants to. Device memory
// is at a shifted address, as on the emulator, so host code must ask for the view.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "codecs/base/device.h"
#include "codecs/base/emulator_abi.h"

namespace slimwire::testing {

struct Launched {
    cudaStream_t stream = nullptr;
    void (*body)(const void*) = nullptr;
    std::vector<uint8_t> args;
    std::string name;
    cudaError_t answer = cudaSuccess;
};

class RecordedLaunch : public ::testing::Test {
  protected:
    void SetUp() override {
        launched = {};
        api_.emulator = &emulator_;
    }
    void TearDown() override { set_device_view(nullptr); }

    template <class T>
    static T* on_device(T* pointer) {
        return static_cast<T*>(shifted_view(pointer));
    }
    static void* shifted_view(const void* pointer) {
        constexpr uintptr_t kShift = uintptr_t{1} << 46;
        return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(pointer) ^ kShift);
    }
    static void replay() {
        set_device_view(shifted_view);
        launched.body(launched.args.data());
        set_device_view(nullptr);
    }

    static inline Launched launched;
    DeviceApi api_;

  private:
    static cudaError_t record(cudaStream_t stream,
                              void (*body)(const void*),
                              const void* args,
                              size_t bytes,
                              const char* name) {
        const auto* begin = static_cast<const uint8_t*>(args);
        launched = {stream, body, {begin, begin + bytes}, name, launched.answer};
        return launched.answer;
    }

    EmulatorApi emulator_{.size = sizeof(EmulatorApi),
                          .launch = record,
                          .device_view = nullptr,
                          .node_of_device = nullptr,
                          .load_kernels = nullptr};
};

}  // namespace slimwire::testing
