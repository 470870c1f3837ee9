// Thresholds that follow the data, below a job: as many elements are sent as the policy wants,
// whatever the gradients' scale, and what is not comes with later calls.
#include "tests/plugin/several_devices.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace {

constexpr size_t kThresholdControlCount = 65536;
// Of each rank's half: what has room, and what is wanted.
constexpr double kRoom = 0.02 * kThresholdControlCount / 2, kWanted = 0.8 * kRoom;

class ThresholdControl : public slimwire::test::TwoDevices {
  protected:
    ThresholdControl() : TwoDevices(kThresholdControlCount) {}
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n"
            "[[rule]]\nname = \"scattered\"\nmatch = { op = \"reducescatter\" }\n"
            "codec = \"threshold:fraction=0.02,refresh=50\"\nmin_bytes = 0\n"
            "[[rule]]\nname = \"fed\"\nmatch = { bytes = \"262144..262144\" }\n"
            "codec = \"threshold:fraction=0.02,refresh=50\"\nef = \"ef14\"\nmin_bytes = 0\n"
            "[[rule]]\nname = \"averaged\"\n"
            "codec = \"threshold:fraction=0.02,refresh=50\"\nef = \"ema\"\nmin_bytes = 0\n");
    }
    Values gaussian(size_t count, double scale) {
        Values values(count);
        for (float& value : values) {
            value = static_cast<float>(scale * normal_(random_));
        }
        return values;
    }
    static double sent_in(const Values& values, size_t begin, size_t end) {
        return static_cast<double>(std::count_if(values.begin() + static_cast<ptrdiff_t>(begin),
                                                 values.begin() + static_cast<ptrdiff_t>(end),
                                                 [](float value) { return value != 0; }));
    }

    std::mt19937 random_{11};
    std::normal_distribution<double> normal_;
};

// What is delivered went through both thresholds, so the owner's decides how many elements it is.
TEST_F(ThresholdControl, AsManyElementsArriveAsAreWantedAcrossJumpsOfTheScale) {
    for (const size_t count :
         {kThresholdControlCount, kThresholdControlCount - 64}) {  // EF14 and EMA
        double scale = 1e-7;
        for (int step = 0; step < 30; ++step) {
            scale *= step == 10 ? 0.1 : step == 20 ? 1e6 : 1.0;
            for (int rank = 0; rank < kRanks; ++rank) {
                fill(rank, gaussian(count, scale));
            }
            const Values got = reduce(count);
            for (const size_t half : {size_t{0}, count / 2}) {
                const double sent = sent_in(got, half, half + count / 2);
                EXPECT_GE(sent, 0.75 * kWanted) << "step " << step;
                EXPECT_LE(sent, kRoom) << "step " << step;
            }
        }
    }
}

// Without error feedback, too, a tensor keeps its thresholds; each rank's part has its own.
TEST_F(ThresholdControl, HoldsForAReduceScatterWithoutErrorFeedback) {
    constexpr size_t kBlock = kThresholdControlCount / 2;
    for (int step = 0; step < 12; ++step) {
        for (int rank = 0; rank < kRanks; ++rank) {
            fill(rank, gaussian(kThresholdControlCount, step < 6 ? 1.0 : 0.01));
        }
        group([&](int rank) {
            return ncclReduceScatter(send_[rank], recv_[rank], kBlock, ncclFloat32, ncclSum,
                                     comms_[rank], nullptr);
        });
        for (int rank = 0; rank < kRanks; ++rank) {
            // Of two ranks' choices few are the same.
            const double sent = sent_in(result(rank, kBlock), 0, kBlock);
            EXPECT_GE(sent, 2 * 0.75 * kWanted) << "step " << step;
            EXPECT_LE(sent, 2 * kRoom) << "step " << step;
        }
    }
}

}  // namespace
