// Times that ranks agreed on when a communicator was made: from which size they make calls
// compressed, when sizes go on, and what ranks have to say. Times are given.
#include "collectives/plan/timed_calls.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "collectives/plan/comm_costs.h"

namespace slimwire {
namespace {

const TimedKind kSums{Op::kAllReduce, DType::kFloat32, "int8:block=256", "two_shot"};

// Of a link of `ns_per_kib` and a codec that sends a quarter of the bytes and takes `codec_ns` more
// a call, on top of a latency.
TimedCalls times_on(double ns_per_kib, double codec_ns, size_t sizes) {
    TimedCalls times;
    for (size_t size = 0; size < sizes; ++size) {
        const double kib = static_cast<double>(TimedCalls::kBytes[size]) / 1024;
        times.pairs[0][size] = {static_cast<uint32_t>(20000 + ns_per_kib * kib),
                                static_cast<uint32_t>(20000 + codec_ns + ns_per_kib * kib / 4)};
    }
    return times;
}

std::shared_ptr<const CommCosts> costs_of(const TimedCalls& times,
                                          const std::vector<TimedKind>& kinds = {kSums}) {
    return CommCosts::make(
        std::make_shared<const std::vector<Calibration>>(calibrations_of(kinds, times, 4, 2)), 4, 2,
        1250, "as timed");
}

TEST(TimedCalls, SayFromWhichSizeCallsPay) {
    // 5 % of 20 us + 8 us a KiB are saved from 6 us a KiB * n = 51 us + 0.4 us * n on: 9.1 KiB.
    const auto costs = costs_of(times_on(8000, 50000, 3));
    ASSERT_NE(costs, nullptr);
    EXPECT_STREQ(costs->how(), "as timed");
    const std::vector<CostThreshold> all = costs->thresholds();
    ASSERT_EQ(all.size(), 1u);
    EXPECT_EQ(all[0].codec, kSums.codec);
    EXPECT_EQ(all[0].algorithm, "two_shot");
    ASSERT_TRUE(all[0].pays_from_bytes.has_value());
    EXPECT_NEAR(static_cast<double>(*all[0].pays_from_bytes), 9.1 * 1024, 300);
}

// Straight on beyond the largest size: on a fast link the codec's latency is paid for later.
TEST(TimedCalls, SayThatLargerOnesPay) {
    const auto costs = costs_of(times_on(8, 200000, TimedCalls::kBytes.size()));
    const std::vector<CostThreshold> all = costs->thresholds();
    ASSERT_TRUE(all.at(0).pays_from_bytes.has_value());
    EXPECT_NEAR(static_cast<double>(*all[0].pays_from_bytes), 36.75e6, 1e6);
    const CommCosts::Call call =
        costs->find(Op::kAllReduce, DType::kFloat32, kSums.codec, 256 << 20);
    ASSERT_EQ(call.ways.size(), 1u);
    EXPECT_NEAR(call.native_s, 20e-6 + 8e-9 * (256 << 10), 1e-6);
    EXPECT_NEAR(call.ways[0].seconds, 220e-6 + 2e-9 * (256 << 10), 1e-6);
}

TEST(TimedCalls, SayThatACodecNeverPays) {
    TimedCalls times = times_on(8000, 50000, 3);
    for (TimedCalls::Pair& pair : times.pairs[0]) {
        std::swap(pair.native_ns, pair.compressed_ns);
    }
    EXPECT_FALSE(costs_of(times)->thresholds().at(0).pays_from_bytes.has_value());
}

TEST(TimedCalls, SayNothingByOneSizeOrForAnotherShape) {
    EXPECT_EQ(costs_of(times_on(8000, 50000, 1)), nullptr);
    const auto all = std::make_shared<const std::vector<Calibration>>(
        calibrations_of({kSums}, times_on(8000, 50000, 3), 4, 2));
    EXPECT_EQ(CommCosts::make(all, 4, 1, 0), nullptr);
    EXPECT_NE(CommCosts::make(all, 4, 2, 0), nullptr) << "a part of the same shape";
}

TEST(TimedCalls, OfOneOperationAreOneCalibration) {
    TimedCalls times = times_on(8000, 50000, 3);
    times.pairs[1] = times.pairs[2] = times.pairs[0];
    TimedKind other = kSums, scattered = kSums;
    other.codec = "int4:block=64";
    scattered.op = Op::kReduceScatter;
    const auto all = calibrations_of({kSums, other, scattered}, times, 4, 2);
    ASSERT_EQ(all.size(), 2u);
    EXPECT_EQ(all[0].ways.size(), 3u);
    EXPECT_EQ(all[1].ways.size(), 2u);
    EXPECT_EQ(costs_of(times, {kSums, other, scattered})->thresholds().size(), 3u);
}

TEST(TimedCalls, AreTheMedianOfRanks) {
    std::vector<TimedCalls> ranks(3);
    ranks[0].pairs[0][1] = {7000000, 900};
    ranks[1].pairs[0][1] = {7, 300};
    ranks[2].pairs[0][1] = {5000, 8000000};
    const TimedCalls times = TimedCalls::median_of(ranks);
    EXPECT_EQ(times.pairs[0][1].native_ns, 5000u);
    EXPECT_EQ(times.pairs[0][1].compressed_ns, 900u);
    EXPECT_EQ(times.pairs[0][0].native_ns, 0u);
}

TEST(TimedCalls, GoOnWithinTheBudget) {
    const size_t sizes = TimedCalls::kBytes.size();
    EXPECT_TRUE(TimedCalls().goes_on(0));
    EXPECT_TRUE(times_on(8, 5000, 2).goes_on(2));
    EXPECT_TRUE(times_on(8, 5000, sizes - 1).goes_on(sizes - 1));
    EXPECT_FALSE(times_on(8, 5000, sizes).goes_on(sizes));
    // 1 Gbit/s: 12 us a KiB. 64 KiB take 1 ms natively and 512 KiB 6 ms; 4 MiB would take 50 ms.
    EXPECT_TRUE(times_on(12000, 50000, 2).goes_on(2));
    EXPECT_FALSE(times_on(12000, 50000, 3).goes_on(3));
}

}  // namespace
}  // namespace slimwire
