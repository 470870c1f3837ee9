// A rule with a start step and a ramp: other codecs travel until a tensor's calls have been so
// many, and what they owe stays with the tensor. Calls count that ran: those of a group that was
// dropped or that failed never were. One process, two emulated devices, a policy of the test's own.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/plugin/several_devices.h"

namespace {

constexpr size_t kRampCount = 20480;

class Ramp : public slimwire::test::TwoDevices {
  protected:
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n"
            "[[rule]]\nname = \"sparse\"\nmatch = { dtype = \"f32\", bytes = \"81920..81920\" }\n"
            "codec = \"topk:fraction=0.01\"\nef = \"ef14\"\nstart_step = 1\n"
            "ramp = [{ until = 3, codec = \"topk:fraction=0.25\" },\n"
            "        { until = 5, codec = \"topk:fraction=0.0625\" }, { until = 6, codec = "
            "\"native\" }]\n"
            "[[rule]]\nname = \"dense\"\nmatch = { bytes = \"40960..40960\" }\n"
            "codec = \"int8:block=64\"\nef = \"ef14\"\n"
            "ramp = [{ until = 10, codec = \"int2:block=64\" }]\n"
            "[[rule]]\nname = \"late\"\nmatch = { bytes = \"48000..48000\" }\n"
            "codec = \"int8\"\nstart_step = 2\n"
            "[[rule]]\nname = \"unlike\"\ncodec = \"int8:block=64\"\nef = \"ef14\"\n"
            "ramp = [{ until = 2, codec = \"topk:fraction=0.1\" }]\n");
    }
    Ramp() : TwoDevices(kRampCount) {}
    void SetUp() override {
        TwoDevices::SetUp();
        for (size_t i = 0; i < kRampCount; ++i) {
            sent_[i] = std::sin(1.3f * static_cast<float>(i)) + 0.1f;
        }
        for (int rank = 0; rank < kRanks; ++rank) {
            fill(rank, sent_);
        }
    }
    static double delivered(const Values& values) {
        return static_cast<double>(
                   std::count_if(values.begin(), values.end(), [](float x) { return x != 0.0f; })) /
               static_cast<double>(values.size());
    }

    Values sent_ = Values(kRampCount);
};

TEST_F(Ramp, CodecsFollowEachOther) {
    // Both ranks give the same, so they choose the same, and the sum is as full as one of them.
    const double kWanted[] = {1, 0.25, 0.25, 0.0625, 0.0625, 1, 0.01, 0.01, 0.01};
    for (const double wanted : kWanted) {
        EXPECT_NEAR(delivered(reduce(kRampCount)), wanted, 0.05 * wanted);
    }
}

TEST_F(Ramp, CallsOfDroppedAndFailedGroupsWereNone) {
    constexpr size_t kLate = 12000;
    const Values late(sent_.begin(), sent_.begin() + kLate);
    for (int i = 0; i < 3; ++i) {
        for (const size_t count : {kRampCount, kLate}) {
            simulate_sum(count);
            ASSERT_EQ(ncclGroupStart(), ncclSuccess);
            on_all([&](int rank) { return sum_of(rank, count); });
            EXPECT_NE(
                ncclBroadcast(send_[0], recv_[0], count, ncclFloat32, kRanks, comms_[0], nullptr),
                ncclSuccess);
            EXPECT_NE(ncclGroupEnd(), ncclSuccess);
        }
    }
    EXPECT_EQ(delivered(reduce(kRampCount)), 1);
    EXPECT_NEAR(delivered(reduce(kRampCount)), 0.25, 0.01);
    for (const bool native : {true, true, false, false}) {
        EXPECT_EQ(is_native(late, reduce(kLate)), native);
    }
}

// What codes of two bits owe comes with the first of eight.
TEST_F(Ramp, WhatIsOwedStays) {
    constexpr size_t kHalf = kRampCount / 2;
    std::vector<double> total(kHalf);
    double off[2] = {};
    for (int call = 0; call < 12; ++call) {
        const Values got = reduce(kHalf);
        double worst = 0;
        for (size_t i = 0; i < kHalf; ++i) {
            total[i] += got[i];
            worst = std::max(worst, std::abs(total[i] - 2.0 * (call + 1) * sent_[i]));
        }
        if (call == 9 || call == 10) {
            off[call - 9] = worst;
        }
    }
    EXPECT_GT(off[0], 0.3) << "two bits lose something";
    EXPECT_LT(off[1], 0.06) << "what was owed is gone";
}

// A codec whose residuals would lie otherwise does not come in between.
TEST_F(Ramp, AnotherAlgorithmIsNative) {
    constexpr size_t kThird = 7000;
    Values third = sent_;
    third.resize(kThird);
    EXPECT_TRUE(is_native(third, reduce(kThird)));
    EXPECT_TRUE(is_native(third, reduce(kThird)));
    EXPECT_FALSE(is_native(third, reduce(kThird)));
}

}  // namespace
