// THC call after call on two to eight ranks: errors as large as its levels make them, no bias, the
// same bits on all ranks, and what a call owes delivered by later ones. One process, emulated
// devices, a policy of the test's own.
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "codecs/float16.h"
#include "tests/plugin/several_devices.h"
#include "tests/support/seed.h"

namespace {

constexpr size_t kGroup = 1024;
constexpr size_t kPlain = 5000, kFed = 6000, kRounded = 7000;  // elements; rules go by bytes
constexpr size_t kRoom = 4 * kRounded * sizeof(float);

using Values = std::vector<float>;
using Sums = std::vector<double>;

double norm(const Sums& of, size_t begin, size_t end) {
    double sum = 0;
    for (size_t i = begin; i < end; ++i) {
        sum += of[i] * of[i];
    }
    return std::sqrt(sum);
}
double norm(const Sums& of) {
    return norm(of, 0, of.size());
}

void add(Sums* sums, const Values& values, double factor = 1) {
    for (size_t i = 0; i < values.size(); ++i) {
        (*sums)[i] += factor * values[i];
    }
}

Sums difference(const Values& values, const Sums& sums) {
    Sums rest(values.begin(), values.end());
    for (size_t i = 0; i < rest.size(); ++i) {
        rest[i] -= sums[i];
    }
    return rest;
}

class SharedScale : public slimwire::test::SeveralDevices<8> {
  protected:
    SharedScale() : SeveralDevices(kRoom) {}
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n"
            "[[rule]]\nname = \"half\"\nmatch = { dtype = [\"f16\", \"bf16\"] }\n"
            "codec = \"thc:levels=127,block=64\"\n"
            "[[rule]]\nname = \"plain\"\nmatch = { bytes = \"20000..20003\" }\ncodec = \"thc\"\n"
            "[[rule]]\nname = \"fed\"\nmatch = { bytes = \"24000..24003\" }\n"
            "codec = \"thc:levels=7,block=256,clip=0.5,seed=3\"\nef = \"ef14\"\n"
            "[[rule]]\nname = \"rounded\"\ncodec = \"thc:clip=0.7\"\nef = \"ef14\"\n"
            "residual = \"bf16\"\n");
    }

    std::vector<Values> drawn(size_t count) {
        std::normal_distribution<float> values(0.0f, 1.0f);
        std::vector<Values> given(static_cast<size_t>(ranks()), Values(count));
        for (Values& of : given) {
            for (float& value : of) {
                value = values(random_);
            }
        }
        return given;
    }
    static Sums sum_of(const std::vector<Values>& given, double factor = 1) {
        Sums sum(given[0].size());
        for (const Values& of : given) {
            add(&sum, of, factor);
        }
        return sum;
    }

    // Error of the sum that levels of the default make of such draws: rounding is off by a step
    // times sqrt(f (1 - f)), in the mean 1 / 6 of its square, independent on all ranks; the largest
    // magnitude of n normal values lies near 0.89 sqrt(2 ln 2n) of their deviation.
    static double expected_error(size_t count, bool alike = false) {
        const double values = 2.0 * kGroup * (alike ? 1 : ranks());
        return std::sqrt(static_cast<double>(ranks()) / 6 * static_cast<double>(count)) * 2 * 0.89 *
               std::sqrt(2 * std::log(values)) / 15;
    }
    // `scale`: of what each rank gives; `share`: of the sum that is delivered.
    void expect_errors_of_levels(ncclRedOp_t op, double scale, double share, bool in_place) {
        for (const bool alike : {false, true}) {
            std::vector<Values> given = drawn(kPlain);
            for (Values& of : given) {
                of = alike ? given[0] : of;
            }
            const Sums exact = sum_of(given, scale * share);
            Sums errors(kPlain);
            double once = 0;
            constexpr int kCalls = 64;
            for (int call = 0; call < kCalls; ++call) {
                const Sums error = difference(reduce(given, op, in_place), exact);
                for (size_t i = 0; i < kPlain; ++i) {
                    errors[i] += error[i] / kCalls;
                }
                once = norm(error) / (scale * share);
                // Ranks that drew alike would err by as much as all together.
                ASSERT_GT(once, 0.8 * expected_error(kPlain, alike)) << call;
                ASSERT_LT(once, 1.25 * expected_error(kPlain, alike)) << call;
            }
            EXPECT_LT(norm(errors) / (scale * share), 1.25 * once / 8) << "there is a bias";
        }
    }

    std::mt19937 random_{slimwire::test_seed()};
};

TEST_P(SharedScale, SumsErrByTheirLevelsWithoutBias) {
    expect_errors_of_levels(ncclSum, 1, 1, false);
}

TEST_P(SharedScale, AveragesInPlaceErrByTheirLevelsWithoutBias) {
    expect_errors_of_levels(ncclAvg, 1, 1.0 / ranks(), true);
}

TEST_P(SharedScale, PremultipliedSumsErrByTheirLevelsWithoutBias) {
    expect_errors_of_levels(half_sum(), 0.5, 1, false);
}

// What was given and what was delivered are the same sum: after calls with gradients come some with
// zeros, which deliver what is owed. Two tensors of one group have residuals of their own. In one
// call a group is not finite on one rank: it is NaN everywhere and leaves what is owed alone.
TEST_P(SharedScale, WhatIsOwedComesInTheEnd) {
    constexpr size_t kOffset = kFed * sizeof(float);
    constexpr int kGiving = 12, kBroken = 5, kCalls = 80;
    Sums given_sum[2] = {Sums(kFed), Sums(kFed)}, delivered[2] = {Sums(kFed), Sums(kFed)};
    double first = 0;
    for (int call = 0; call < kCalls; ++call) {
        std::vector<Values> given[2] = {drawn(kFed), drawn(kFed)};
        for (std::vector<Values>& of : given) {
            for (Values& values : of) {
                values = call < kGiving ? values : Values(kFed);
            }
        }
        std::vector<Values> spoiled = given[1];
        if (call == kBroken) {
            spoiled[static_cast<size_t>(ranks() - 1)][kGroup + 7] = INFINITY;
        }
        ASSERT_EQ(ncclGroupStart(), ncclSuccess);
        queue_floats(given[0], 0, ncclSum, false);
        queue_floats(spoiled, kOffset, ncclSum, false);
        ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
        for (size_t tensor = 0; tensor < 2; ++tensor) {
            const Values got = result<float>(tensor * kOffset, kFed, false);
            const Sums exact = sum_of(given[tensor]);
            for (size_t i = 0; i < kFed; ++i) {
                const bool lost = tensor == 1 && call == kBroken && i / kGroup == 1;
                ASSERT_EQ(std::isnan(got[i]), lost) << call << " element " << i;
                given_sum[tensor][i] += lost ? 0 : exact[i];
                delivered[tensor][i] += lost ? 0 : got[i];
            }
            if (call == 0) {
                first = norm(difference(got, exact)) / norm(exact);
            }
        }
    }
    EXPECT_GT(first, 0.2) << "few levels and a clip";
    for (size_t tensor = 0; tensor < 2; ++tensor) {
        Sums rest = delivered[tensor];
        for (size_t i = 0; i < kFed; ++i) {
            rest[i] -= given_sum[tensor][i];
        }
        EXPECT_LT(norm(rest), 2e-6 * norm(given_sum[tensor])) << tensor;
    }
}

// Residuals of 16 bits, taken into the scratch for each call: they are rounded, and nothing more.
TEST_P(SharedScale, ResidualsOfSixteenBits) {
    Sums given_sum(kRounded), delivered(kRounded);
    double first = 0;
    for (int call = 0; call < 50; ++call) {
        const std::vector<Values> given =
            call < 10 ? drawn(kRounded)
                      : std::vector<Values>(static_cast<size_t>(ranks()), Values(kRounded));
        const Values got = reduce(given);
        const Sums exact = sum_of(given);
        add(&delivered, got);
        for (size_t i = 0; i < kRounded; ++i) {
            given_sum[i] += exact[i];
        }
        first = call == 0 ? norm(difference(got, exact)) / norm(exact) : first;
    }
    EXPECT_GT(first, 0.1);
    for (size_t i = 0; i < kRounded; ++i) {
        delivered[i] -= given_sum[i];
    }
    EXPECT_LT(norm(delivered), 3e-3 * norm(given_sum));
    EXPECT_GT(norm(delivered), 1e-5 * norm(given_sum)) << "they are no fp32";
}

TEST_P(SharedScale, SixteenBitsArriveInTheirType) {
    for (const ncclDataType_t type : {ncclFloat16, ncclBfloat16}) {
        const auto to = [&](float value) {
            return type == ncclFloat16 ? slimwire::float_to_float16(value)
                                       : slimwire::float_to_bfloat16(value);
        };
        const auto from = [&](uint16_t bits) {
            return type == ncclFloat16 ? slimwire::float16_to_float(bits)
                                       : slimwire::bfloat16_to_float(bits);
        };
        std::vector<std::vector<uint16_t>> given;
        std::vector<const void*> pointers;
        Sums exact(kPlain);
        for (const Values& of : drawn(kPlain)) {
            std::vector<uint16_t>& bits = given.emplace_back();
            for (size_t i = 0; i < kPlain; ++i) {
                bits.push_back(to(of[i]));
                exact[i] += from(bits[i]);
            }
        }
        for (const std::vector<uint16_t>& of : given) {
            pointers.push_back(of.data());
        }
        ASSERT_EQ(ncclGroupStart(), ncclSuccess);
        queue(pointers, 0, 2 * kPlain, kPlain, type, ncclSum, true);
        ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
        const std::vector<uint16_t> bits = result<uint16_t>(0, kPlain, true);
        Values got;
        for (const uint16_t of : bits) {
            got.push_back(from(of));
        }
        const double error = norm(difference(got, exact)) / norm(exact);
        EXPECT_LT(error, 0.05);
        EXPECT_GT(error, 0.005) << "it is compressed";
    }
}

// Replays of a graph draw anew, alike on all ranks, and the calls between them, too.
TEST_P(SharedScale, GraphsDrawAnewWithEachReplay) {
    const std::vector<Values> given = drawn(kPlain);
    const Sums exact = sum_of(given);
    Values last = reduce(given);
    capture_sum(kPlain);
    for (int round = 0; round < 3; ++round) {
        const Values replayed = replay(kPlain);
        const Values called = reduce(given);
        for (const Values* got : {&replayed, &called}) {
            const double error = norm(difference(*got, exact));
            EXPECT_GT(error, 0.8 * expected_error(kPlain));
            EXPECT_LT(error, 1.25 * expected_error(kPlain));
            EXPECT_NE(*got, last) << "drawn as before";
            last = *got;
        }
    }
    drop_graphs();
}

INSTANTIATE_TEST_SUITE_P(Ranks,
                         SharedScale,
                         testing::Values(2, 3, 4, 8),
                         testing::PrintToStringParamName());

}  // namespace
