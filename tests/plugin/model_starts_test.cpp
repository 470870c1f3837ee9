// A model of PyTorch's DDP that begins on a communicator may get its buckets at the addresses of
// one that is gone, and must not find what that one was owed. One process, two emulated devices.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/plugin/several_devices.h"

namespace {

constexpr size_t kModelStartsCount = 2048;

class ModelStarts : public slimwire::test::TwoDevices {
  protected:
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n[defaults]\ncodec = \"int4\"\nerror_feedback = \"ef14\"\n"
            "[[rule]]\nname = \"sums\"\nmatch = { op = \"allreduce\" }\n");
    }
    ModelStarts() : TwoDevices(kModelStartsCount) {}

    void gather_counts() {
        group([&](int rank) {
            return ncclAllGather(send_[rank], recv_[rank], 1, ncclInt64, comms_[rank], nullptr);
        });
    }
    void broadcast(ncclDataType_t type, size_t count) {
        group([&](int rank) {
            return ncclBroadcast(send_[rank], recv_[rank], count, type, 0, comms_[rank], nullptr);
        });
    }
    // What a buffer is owed comes out of a sum of nothing. Leaves something owed behind.
    [[nodiscard]] bool owed() {
        const Values nothing = sum(Values(kModelStartsCount, 0.0f));
        const bool owed =
            std::any_of(nothing.begin(), nothing.end(), [](float value) { return value != 0.0f; });
        Values values(kModelStartsCount);
        for (size_t i = 0; i < kModelStartsCount; ++i) {
            values[i] = std::sin(0.7f * static_cast<float>(i));
        }
        (void)sum(values);
        return owed;
    }
};

TEST_F(ModelStarts, AnotherModelBeginsAtZero) {
    EXPECT_FALSE(owed());
    EXPECT_TRUE(owed()) << "residuals stay from call to call";
    for (int model = 0; model < 3; ++model) {
        gather_counts();
        broadcast(ncclInt64, 8);
        broadcast(ncclFloat32, 100);
        EXPECT_FALSE(owed()) << "model " << model;
        EXPECT_TRUE(owed());
    }
}

TEST_F(ModelStarts, CallsThatOnlyLookAlikeLeaveResidualsAlone) {
    (void)owed();
    gather_counts();
    EXPECT_TRUE(owed());  // sums in between
    broadcast(ncclInt64, 8);
    broadcast(ncclFloat32, 100);
    EXPECT_TRUE(owed());
    gather_counts();
    broadcast(ncclInt64, 7);
    broadcast(ncclFloat32, 100);
    EXPECT_TRUE(owed());
    gather_counts();
    broadcast(ncclInt64, 8);
    broadcast(ncclInt64, 8);
    EXPECT_TRUE(owed());
    broadcast(ncclFloat32, 100);
    EXPECT_TRUE(owed());
}

// A program that does the like in each step must not lose its residuals for ever.
TEST_F(ModelStarts, AfterManyStartsResidualsStay) {
    (void)owed();
    for (int step = 0; step < 70; ++step) {
        gather_counts();
        broadcast(ncclInt64, 8);
        broadcast(ncclFloat32, 100 + static_cast<size_t>(step));  // no step that comes again
        EXPECT_EQ(owed(), step >= 64) << "step " << step;
    }
}

}  // namespace
