// The report says how much tensors are owed: squared norms of what a rank gave and of its
// residuals, now and then. One process, two emulated devices.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/plugin/two_devices.h"

namespace {

constexpr size_t kCount = 20000;

class Owed : public slimwire::test::TwoDevices {
  protected:
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n[[rule]]\nname = \"sums\"\nmatch = { op = \"allreduce\" }\n"
            "codec = \"topk:fraction=0.1\"\nerror_feedback = \"ef14\"\n");
        report_ = testing::TempDir() + "owed_report_" + std::to_string(getpid());
        ::setenv("SLIMWIRE_REPORT", report_.c_str(), 1);
    }
    static void TearDownTestSuite() {
        std::remove(report_.c_str());
        TwoDevices::TearDownTestSuite();
    }
    Owed() : TwoDevices(kCount) {}
    static inline std::string report_;
};

TEST_F(Owed, NormsOfGradientsAndResiduals) {
    // Of magnitudes that all differ, the largest tenth of each half, a rank's part, leaves.
    Values values(kCount);
    for (size_t i = 0; i < kCount; ++i) {
        values[i] = (i % 2 == 0 ? 1.0f : -1.0f) *
                    (0.5f + static_cast<float>(i * 7919 % kCount) / static_cast<float>(kCount));
    }
    for (int call = 0; call < 150; ++call) {
        (void)sum(values);
    }
    double given = 0, left = 0;
    for (size_t part = 0; part < 2; ++part) {
        Values half(values.begin() + static_cast<std::ptrdiff_t>(part * kCount / 2),
                    values.begin() + static_cast<std::ptrdiff_t>((part + 1) * kCount / 2));
        std::sort(half.begin(), half.end(),
                  [](float a, float b) { return std::abs(a) < std::abs(b); });
        for (size_t i = 0; i < half.size(); ++i) {
            const double square = static_cast<double>(half[i]) * half[i];
            given += square;
            left += i < half.size() * 9 / 10 ? square : 0;
        }
    }
    for (int rank = 0; rank < kRanks; ++rank) {
        ASSERT_EQ(ncclCommDestroy(comms_[rank]), ncclSuccess);
    }
    int found = 0;
    std::ifstream file(report_);
    for (std::string line; std::getline(file, line);) {
        const nlohmann::json record = nlohmann::json::parse(line);
        if (record.at("record") != "key" || !record.contains("owed")) {
            continue;
        }
        ++found;
        const nlohmann::json& owed = record.at("owed");
        ASSERT_EQ(owed.size(), 3u);
        for (size_t i = 0; i < owed.size(); ++i) {
            EXPECT_EQ(owed[i].at("call"), 61 * i);
            EXPECT_NEAR(owed[i].at("gradient_square").get<double>() / given, 1, 1e-6);
        }
        EXPECT_NEAR(owed[0].at("owed_square").get<double>() / left, 1, 1e-5);
        // What waits adds up until it is large enough.
        EXPECT_GT(owed[1].at("owed_square"), 4 * left);
        EXPECT_LT(owed[1].at("owed_square"), 100 * left);
        EXPECT_NEAR(
            owed[2].at("owed_square").get<double>() / owed[1].at("owed_square").get<double>(), 1,
            0.3)
            << "and not for ever";
    }
    EXPECT_EQ(found, kRanks);
    ASSERT_EQ(ncclCommInitAll(comms_, kRanks, nullptr), ncclSuccess);
}

}  // namespace
