// A rule with a start step counts the calls that ran: those of a group that was dropped or that
// failed never were, on any rank. One process, two emulated devices, a policy of the test's own.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <cmath>
#include <vector>

#include "tests/plugin/two_devices.h"

namespace {

constexpr size_t kStartStepCount = 20000;

class StartStep : public slimwire::test::TwoDevices {
  protected:
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n[[rule]]\nname = \"late\"\nmatch = { op = \"allreduce\" }\n"
            "codec = \"int8\"\nstart_step = 2\n");
    }
    StartStep() : TwoDevices(kStartStepCount) {}
    void SetUp() override {
        TwoDevices::SetUp();
        for (size_t i = 0; i < kStartStepCount; ++i) {
            sent_[i] = std::sin(static_cast<float>(i));
        }
        for (int rank = 0; rank < kRanks; ++rank) {
            fill(rank, sent_);
        }
    }

    void queue_all() {
        for (int rank = 0; rank < kRanks; ++rank) {
            queue_sum(rank, kStartStepCount);
        }
    }
    // A call of all ranks.
    bool call_is_compressed() { return !is_native(sent_, sum(sent_)); }

    void expect_two_native_calls_first() {
        EXPECT_FALSE(call_is_compressed());
        EXPECT_FALSE(call_is_compressed());
        EXPECT_TRUE(call_is_compressed());
        EXPECT_TRUE(call_is_compressed());
    }

    Values sent_ = Values(kStartStepCount);
};

TEST_F(StartStep, CallsUntilItAreNative) {
    expect_two_native_calls_first();
}

TEST_F(StartStep, CallsOfASimulatedGroupWereNone) {
    for (int i = 0; i < 3; ++i) {
        ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
        ASSERT_EQ(ncclGroupStart(), ncclSuccess);
        queue_all();
        ASSERT_EQ(ncclGroupSimulateEnd(&info), ncclSuccess);
    }
    expect_two_native_calls_first();
}

TEST_F(StartStep, CallsOfAFailedGroupWereNone) {
    for (int i = 0; i < 3; ++i) {
        ASSERT_EQ(ncclGroupStart(), ncclSuccess);
        queue_all();
        EXPECT_NE(ncclBroadcast(send_[0], recv_[0], kStartStepCount, ncclFloat32, kRanks, comms_[0],
                                nullptr),
                  ncclSuccess);
        EXPECT_NE(ncclGroupEnd(), ncclSuccess);
    }
    expect_two_native_calls_first();
}

}  // namespace
