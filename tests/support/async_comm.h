// What tests ask of non-blocking communicators: how they are made and when they are not busy any
// more. For programs that link an NCCL and GoogleTest.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <chrono>
#include <thread>

#include "codecs/base/emulator_abi.h"

namespace slimwire::test {

// While it lives, data calls of this thread may wait on the host, for the reason given.
class CallsMayWait {
  public:
    explicit CallsMayWait(const char* /*why*/) { change(-kMany); }
    ~CallsMayWait() { change(kMany); }
    CallsMayWait(const CallsMayWait&) = delete;
    CallsMayWait& operator=(const CallsMayWait&) = delete;

  private:
    static constexpr int kMany = 1 << 20;
    static void change(int by) {
        const auto get =
            reinterpret_cast<EmulatorApiFunction>(dlsym(RTLD_DEFAULT, kEmulatorApiSymbol));
        get(kEmulatorAbiVersion)->data_call(by);
    }
};

inline ncclConfig_t non_blocking() {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return config;
}

inline ncclResult_t state_of(ncclComm_t comm) {
    ncclResult_t state = ncclInternalError;
    EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
    return state;
}

// What a communicator says once it is not busy any more, nor in the state `passing`; the last state
// after a minute, which ends a hang.
inline ncclResult_t settled(ncclComm_t comm, ncclResult_t passing = ncclInProgress) {
    using Clock = std::chrono::steady_clock;
    const auto limit = Clock::now() + std::chrono::minutes(1);
    ncclResult_t state = state_of(comm);
    while ((state == ncclInProgress || state == passing) && Clock::now() < limit) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        state = state_of(comm);
    }
    return state;
}

}  // namespace slimwire::test
