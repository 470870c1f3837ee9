// The report says how much tensors are owed: squared norms of what a rank gave and of its
// residuals, now and then. One process, two emulated devices.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/plugin/several_devices.h"

namespace {

constexpr size_t kOwedCount = 20000, kRounded = 30000;
// Takes more runs than are measured.
constexpr size_t kOwedLarge = 5'000'000;

class Owed : public slimwire::test::TwoDevices {
  protected:
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n[[rule]]\nname = \"rounded\"\n"
            "match = { op = \"allreduce\", bytes = \"100KiB..\" }\n"
            "codec = \"topk:fraction=0.1\"\nerror_feedback = \"ef14\"\nresidual = \"int8\"\n"
            "[[rule]]\nname = \"sums\"\nmatch = { op = \"allreduce\" }\n"
            "codec = \"topk:fraction=0.1\"\nerror_feedback = \"ef14\"\n"
            "[runtime]\nslice_bytes = \"256KiB\"\n");
        ask_for_report();
    }
    Owed() : TwoDevices(kOwedLarge) {}

    // Of magnitudes that all differ.
    static Values values_of(size_t count) {
        Values values(count);
        for (size_t i = 0; i < count; ++i) {
            values[i] = (i % 2 == 0 ? 1.0f : -1.0f) *
                        (0.5f + static_cast<float>(i * 7919 % count) / static_cast<float>(count));
        }
        return values;
    }
    struct Squares {
        double given = 0, left = 0;
    };
    // Where the largest tenth of each half, a rank's part, leaves.
    static Squares squares_of(const Values& values) {
        Squares squares;
        const size_t count = values.size();
        for (size_t part = 0; part < 2; ++part) {
            Values half(values.begin() + static_cast<std::ptrdiff_t>(part * count / 2),
                        values.begin() + static_cast<std::ptrdiff_t>((part + 1) * count / 2));
            std::sort(half.begin(), half.end(),
                      [](float a, float b) { return std::abs(a) < std::abs(b); });
            for (size_t i = 0; i < half.size(); ++i) {
                const double square = static_cast<double>(half[i]) * half[i];
                squares.given += square;
                squares.left += i < half.size() * 9 / 10 ? square : 0;
            }
        }
        return squares;
    }
    // What each rank's report says of calls of `count` elements, once their communicators are gone.
    static std::vector<nlohmann::json> reported(size_t count) {
        std::vector<nlohmann::json> found;
        for (const nlohmann::json& record : report()) {
            if (record.at("record") == "key" && record.contains("owed") &&
                record.at("count") == count) {
                found.push_back(record.at("owed"));
            }
        }
        return found;
    }
};

TEST_F(Owed, NormsOfGradientsAndResiduals) {
    const Values values = values_of(kOwedCount);
    for (int call = 0; call < 150; ++call) {
        (void)sum(values);
    }
    renew_communicators();
    const auto [given, left] = squares_of(values);
    const std::vector<nlohmann::json> ranks = reported(kOwedCount);
    EXPECT_EQ(ranks.size(), size_t{kRanks});
    for (const nlohmann::json& owed : ranks) {
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
}

// Stored as int8, whole and in part: to the rounding, and to where the measured runs lie.
TEST_F(Owed, NormsOfRoundedResiduals) {
    for (const size_t count : {kRounded, kOwedLarge}) {
        const Values values = values_of(count);
        for (int call = 0; call < 2; ++call) {
            (void)sum(values);
        }
    }
    renew_communicators();
    for (const size_t count : {kRounded, kOwedLarge}) {
        const auto [given, left] = squares_of(values_of(count));
        const std::vector<nlohmann::json> ranks = reported(count);
        EXPECT_EQ(ranks.size(), size_t{kRanks});
        for (const nlohmann::json& owed : ranks) {
            ASSERT_EQ(owed.size(), 1u);
            EXPECT_NEAR(owed[0].at("gradient_square").get<double>() / given, 1, 1e-6);
            EXPECT_NEAR(owed[0].at("owed_square").get<double>() / left, 1, 0.01) << count;
        }
    }
}

}  // namespace
