// What tests ask of non-blocking communicators: how they are made and when they are not busy any
// more. For programs that link an NCCL and GoogleTest.
#pragma once

#include <gtest/gtest.h>
#include <nccl.h>

#include <chrono>
#include <thread>

namespace slimwire::test {

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

// What a communicator says once it is not busy any more; ncclInProgress after 15 s.
inline ncclResult_t settled(ncclComm_t comm) {
    using Clock = std::chrono::steady_clock;
    const auto limit = Clock::now() + std::chrono::seconds(15);
    ncclResult_t state = state_of(comm);
    while (state == ncclInProgress && Clock::now() < limit) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        state = state_of(comm);
    }
    return state;
}

}  // namespace slimwire::test
