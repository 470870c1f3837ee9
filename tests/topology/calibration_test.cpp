// Calibrations: what is measured comes back, other sizes and links follow, and nonsense is refused.
#include "topology/cost/calibration.h"

#include <gtest/gtest.h>

namespace slimwire {
namespace {

// Of a link of `gb_s`, 100 us of latency; the codec sends an eighth and takes 1 ns a byte.
Calibration measured(double gb_s) {
    Calibration calibration;
    calibration.ranks = calibration.nodes = 2;
    calibration.nominal_gb_s = 0.125;
    calibration.ways = {{"native", "native", {}, {}}, {"int4:block=64", "two_shot", {}, {}}};
    for (double bytes = 4096; bytes <= 64 << 20; bytes *= 4) {
        calibration.ways[0].samples.push_back({bytes, bytes, 1e-4 + bytes / (gb_s * 1e9)});
        calibration.ways[1].samples.push_back(
            {bytes, bytes / 8, 2e-4 + bytes * 1e-9 + bytes / 8 / (gb_s * 1e9)});
    }
    return calibration;
}

TEST(Calibration, OtherSizesAndLinksFollow) {
    const Calibration fitted = fit_calibration(measured(0.11)).value();
    EXPECT_NEAR(fitted.link.gb_s, 0.11, 0.001);
    EXPECT_LT(fitted.quality.median_error, 0.01);
    const CalibratedWay& native = *fitted.find("native", "native");
    const CalibratedWay& int4 = *fitted.find("int4:block=64", "two_shot");
    for (const double bytes : {10e3, 100e3, 3e6, 40e6}) {
        EXPECT_NEAR(native.seconds(bytes, 0.11), 1e-4 + bytes / 0.11e9,
                    0.02 * native.seconds(bytes, 0.11));
        EXPECT_NEAR(int4.seconds(bytes, 0.11), 2e-4 + bytes * 1e-9 + bytes / 8 / 0.11e9,
                    0.02 * int4.seconds(bytes, 0.11));
        // Ten times slower, what is no wire stays.
        EXPECT_NEAR(int4.seconds(bytes, 0.011), 2e-4 + bytes * 1e-9 + bytes / 8 / 0.011e9,
                    0.02 * int4.seconds(bytes, 0.011));
    }
    EXPECT_NEAR(fitted.expected_gb_s(1.25), 1.1, 0.01);
    EXPECT_EQ(fitted.find("int8", "two_shot"), nullptr);
    EXPECT_EQ(fitted.find("int4:block=64", "gather"), nullptr);
}

TEST(Calibration, ThresholdsFollowTheLink) {
    const Calibration fitted = fit_calibration(measured(0.11)).value();
    const CalibratedWay& int4 = *fitted.find("int4:block=64", "two_shot");
    const Threshold slow = fitted.threshold(int4, 0.011, 0.05);
    const Threshold fast = fitted.threshold(int4, 0.11, 0.05);
    ASSERT_TRUE(slow.pays);
    ASSERT_TRUE(fast.pays);
    EXPECT_LT(slow.enter_bytes, fast.enter_bytes);
    // 100 us more against 7/8 of the bytes' time less 1 ns a byte: 14.3 KiB at 0.11 GB/s.
    EXPECT_NEAR(static_cast<double>(fast.leave_bytes), 1e-4 / (7 / 8.0 / 0.11e9 - 1e-9), 600);
    // The codec is slower than the link.
    EXPECT_FALSE(fitted.threshold(int4, 2.0, 0.05).pays);
}

TEST(Calibration, NonsenseIsRefused) {
    Calibration calibration = measured(0.1);
    calibration.ways[1].samples[2].seconds = 0;
    EXPECT_FALSE(fit_calibration(calibration).ok());
    calibration = measured(0.1);
    calibration.ways[1].samples[2].bytes = 4096;
    EXPECT_FALSE(fit_calibration(calibration).ok());
    calibration = measured(0.1);
    calibration.ways[0].samples.resize(1);
    EXPECT_FALSE(fit_calibration(calibration).ok());
    calibration = measured(0.1);
    calibration.ways.erase(calibration.ways.begin());
    EXPECT_FALSE(fit_calibration(calibration).ok());
}

}  // namespace
}  // namespace slimwire
