// What `bounded` promises of a job's all-reduces: no element off by more than the bounds of those
// who encoded it, where there is room, and nothing lost where there is not.
#include "tests/plugin/several_devices.h"

#include <algorithm>
#include <cmath>

namespace {

constexpr size_t kErrorBoundCount = 20011;
constexpr double kError = 0.01;

// Of very different magnitudes: from far below the bound to a thousand times it.
float value(int rank, size_t i) {
    const double x = static_cast<double>(i);
    return static_cast<float>(10 * std::sin(0.37 * x + rank) *
                              std::exp(-4 - 4 * std::cos(0.001 * x)));
}

class ErrorBound : public slimwire::test::TwoDevices {
  protected:
    ErrorBound() : TwoDevices(kErrorBoundCount) {}
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n"
            "[[rule]]\nname = \"roomy\"\ncodec = \"bounded:error=0.01,capacity=0.9\"\n"
            "min_bytes = 0\n");
    }
    // The exact sum, of what fill_all() gave.
    Values fill_all(size_t count) {
        Values exact(count);
        for (int rank = 0; rank < kRanks; ++rank) {
            Values given(count);
            for (size_t i = 0; i < count; ++i) {
                given[i] = value(rank, i);
                exact[i] += given[i];
            }
            fill(rank, given);
        }
        return exact;
    }
};

TEST_F(ErrorBound, HoldsForEveryElementOfASum) {
    const Values exact = fill_all(kErrorBoundCount);
    const Values got = reduce(kErrorBoundCount);
    double worst = 0, largest = 0;
    for (size_t i = 0; i < kErrorBoundCount; ++i) {
        worst = std::max(worst, std::abs(static_cast<double>(got[i]) - exact[i]));
        largest = std::max(largest, std::abs(static_cast<double>(exact[i])));
    }
    // Each rank's part once, and the sum once more.
    EXPECT_LE(worst, (kRanks + 1) * kError + 1e-6);
    EXPECT_GT(worst, kError / 10) << "nothing was quantised";
    EXPECT_GT(largest, 1000 * kError) << "the values are no test";
}

}  // namespace
