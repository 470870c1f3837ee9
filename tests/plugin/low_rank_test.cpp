// PowerSGD call after call on one to four ranks, against a slow oracle in fp64 that knows nothing
// of how factors are drawn or stored: what a call delivers is the sum of what the ranks gave and
// owe, projected on the columns that the rows of the call before lead to. One process, emulated
// devices, a policy of the test's own. With TEST_LINEAR_AE of the linear autoencoder, which
// projects rows on those directions that the call before has seen vary most.
#include <cmath>
#include <string>
#include <vector>

#include "codecs/float16.h"
#include "plugin/capi/slimwire.h"
#include "tests/plugin/oracles.h"
#include "tests/plugin/several_devices.h"

namespace {

constexpr size_t kLowRankRows = 60, kCols = 40, kRaw = 17;
constexpr size_t kLowRankCount = kLowRankRows * kCols + kRaw;
constexpr int kFactors = 3;
#ifdef TEST_LINEAR_AE
constexpr bool kAutoencoder = true;
#define TEST_CODEC(number) "linear_ae:width=" #number
#else
constexpr bool kAutoencoder = false;
#define TEST_CODEC(number) "powersgd:rank=" #number
#endif

using Values = std::vector<float>;
using Matrix = slimwire::test::code::Values;  // row after row
using slimwire::test::code::distance, slimwire::test::code::drawn_values;
using slimwire::test::code::norm, slimwire::test::code::orthonormal, slimwire::test::code::times;

// What a rank gives in a step: few strong directions that turn slowly, and noise.
Values low_rank_input(int rank, int step) {
    Values values(kLowRankCount);
    const Matrix noise = drawn_values(10 * rank + step, kLowRankCount);
    for (size_t i = 0; i < kLowRankCount; ++i) {
        const double row = static_cast<double>(i / kCols), column = static_cast<double>(i % kCols);
        double value = 0.3 * noise[i];
        for (int k = 0; k < kFactors + 1; ++k) {
            value += 4.0 / (1 + k) * std::sin((k + 1) * 0.21 * row + 0.1 * rank + 0.05 * step) *
                     std::cos((k + 2) * 0.33 * column + 0.02 * step * k);
        }
        values[i] = static_cast<float>(value);
    }
    return values;
}

Matrix matrix_of(const Values& values, double factor = 1) {
    Matrix matrix(kLowRankRows * kCols);
    for (size_t i = 0; i < matrix.size(); ++i) {
        matrix[i] = factor * values[i];
    }
    return matrix;
}

class LowRank : public slimwire::test::SeveralDevices<4> {
  protected:
    LowRank() : SeveralDevices(kLowRankCount) {}
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n"
            "[[rule]]\nname = \"plain\"\nmatch = { dtype = [\"f16\", \"bf16\"] }\n"
            "codec = \"" TEST_CODEC(3) ",row=40\"\n"
            "[[rule]]\nname = \"rounded\"\nmatch = { bytes = \"9000..9600\" }\n"
            "codec = \"" TEST_CODEC(2) ",row=32,seed=5\"\nef = \"ef14\"\nresidual = \"bf16\"\n"
            "[[rule]]\nname = \"fed\"\ncodec = \"" TEST_CODEC(3) ",row=40\"\nef = \"ef14\"\n");
    }
    void SetUp() override {
        SeveralDevices::SetUp();
        mark();
    }
    static std::vector<Values> inputs(int step) {
        std::vector<Values> given;
        for (int rank = 0; rank < ranks(); ++rank) {
            given.push_back(low_rank_input(rank, step));
        }
        return given;
    }
    // The sum of all ranks' matrices, times `factor`.
    static Matrix sum_of(const std::vector<Values>& given, double factor) {
        Matrix sum(kLowRankRows * kCols);
        for (const Values& of : given) {
            for (size_t i = 0; i < sum.size(); ++i) {
                sum[i] += factor * of[i];
            }
        }
        return sum;
    }

    // What a call delivers of `whole`, after one that delivered `before` of `whole_before`.
    static Matrix projected(const Matrix& whole, const Matrix& before, const Matrix& whole_before) {
        const Matrix any = drawn_values(3, kLowRankRows * kFactors);
        if (kAutoencoder) {
            // Rows of what was delivered span the old directions D; M^T M D the new ones.
            const Matrix old = times(before, any, kCols, kLowRankRows, kFactors, true);
            const Matrix seen = times(whole_before,
                                      times(whole_before, orthonormal(old, kCols, kFactors),
                                            kLowRankRows, kCols, kFactors),
                                      kCols, kLowRankRows, kFactors, true);
            const Matrix rows = orthonormal(seen, kCols, kFactors);
            Matrix back(kFactors * kCols);
            for (size_t k = 0; k < kFactors; ++k) {
                for (size_t j = 0; j < kCols; ++j) {
                    back[k * kCols + j] = rows[j * kFactors + k];
                }
            }
            return times(times(whole, rows, kLowRankRows, kCols, kFactors), back, kLowRankRows,
                         kFactors, kCols);
        }
        const Matrix rows =
            orthonormal(times(before, any, kCols, kLowRankRows, kFactors, true), kCols, kFactors);
        const Matrix columns =
            orthonormal(times(whole, rows, kLowRankRows, kCols, kFactors), kLowRankRows, kFactors);
        return times(columns, times(columns, whole, kFactors, kLowRankRows, kCols, true),
                     kLowRankRows, kFactors, kCols);
    }

    // `scale`: of what each rank gives; `share`: of the sum that is delivered.
    void expect_oracle(ncclRedOp_t op, double scale, double share, bool in_place) {
        Matrix owed(kLowRankRows * kCols), before, whole_before;
        double given_norm = 0, first_error = 0, last_error = 0;
        for (int step = 0; step < 10; ++step) {
            SCOPED_TRACE("step " + std::to_string(step));
            std::vector<Values> given = inputs(step);
            const bool broken = step == 5;
            if (broken) {
                given[static_cast<size_t>(ranks() - 1)][7] = step % 2 == 1 ? NAN : INFINITY;
            }
            const Values got = reduce(given, op, in_place);
            mark();
            for (size_t i = kLowRankRows * kCols; i < kLowRankCount; ++i) {
                double raw = 0;
                for (const Values& of : given) {
                    raw += scale * share * of[i];
                }
                ASSERT_NEAR(got[i], raw, 1e-5 * (1 + std::abs(raw))) << "a raw element";
            }
            if (broken) {
                // A row's code is of the row alone.
                const size_t poisoned = kAutoencoder ? kCols : kLowRankRows * kCols;
                for (size_t i = 0; i < kLowRankRows * kCols; ++i) {
                    ASSERT_EQ(std::isnan(got[i]), i < poisoned) << i;
                }
                // Elements that are none of the broken one's rank and place keep what they owe, and
                // what was given in this call is gone.
                const Matrix sum = sum_of(given, scale);
                for (size_t i = poisoned; i < kLowRankRows * kCols; ++i) {
                    owed[i] += sum[i] - got[i] / share;
                }
                continue;
            }
            Matrix whole = sum_of(given, scale);
            given_norm = norm(whole);
            for (size_t i = 0; i < whole.size(); ++i) {
                whole[i] += owed[i];
            }
            const Matrix delivered = matrix_of(got, 1 / share);
            if (!before.empty()) {
                const Matrix expected = projected(whole, before, whole_before);
                EXPECT_LT(distance(delivered, expected), 2e-4 * norm(whole));
            }
            owed = whole;
            for (size_t i = 0; i < owed.size(); ++i) {
                owed[i] -= delivered[i];
            }
            before = delivered;
            whole_before = whole;
            // A projection leaves what is at right angles to it.
            double product = 0;
            for (size_t i = 0; i < owed.size(); ++i) {
                product += owed[i] * delivered[i];
            }
            EXPECT_LT(std::abs(product), 1e-4 * norm(whole) * norm(whole));
            (step == 0 ? first_error : last_error) = norm(owed) / norm(whole);
        }
        EXPECT_LT(norm(owed), 3 * given_norm) << "what is owed does not grow";
        EXPECT_GT(first_error, 0.0);
        EXPECT_GT(last_error, 0.01) << "there is more than so many factors";
    }
};

TEST_P(LowRank, OfASumAsTheOracleSays) {
    expect_oracle(ncclSum, 1, 1, false);
}

TEST_P(LowRank, OfAnAverageInPlaceAsTheOracleSays) {
    expect_oracle(ncclAvg, 1, 1.0 / ranks(), true);
}

TEST_P(LowRank, OfAPremultipliedSumAsTheOracleSays) {
    expect_oracle(half_sum(), 0.5, 1, false);
}

// A gradient that stays, with residuals of 16 bits, which are taken into the scratch for each call:
// what is delivered over many calls is what was given.
TEST_P(LowRank, ResidualsOfSixteenBits) {
    constexpr size_t kElems = 48 * 48;  // 72 rows of 32
    std::vector<Values> given;
    for (int rank = 0; rank < ranks(); ++rank) {
        Values values = low_rank_input(rank, 3);
        values.resize(kElems);
        given.push_back(values);
    }
    Matrix delivered(kElems), sum(kElems);
    constexpr int kCalls = 80;
    for (int call = 0; call < kCalls; ++call) {
        const Values got = reduce(given, ncclSum, false);
        for (size_t i = 0; i < kElems; ++i) {
            delivered[i] += got[i] / static_cast<double>(kCalls);
        }
        mark();
    }
    for (const Values& of : given) {
        for (size_t i = 0; i < kElems; ++i) {
            sum[i] += of[i];
        }
    }
    EXPECT_LT(distance(delivered, sum), 0.15 * norm(sum));
}

// Without error feedback: a sum of so few factors arrives whole, in its type.
TEST_P(LowRank, SumsOfFewFactorsArriveInTheirType) {
    for (const ncclDataType_t type : {ncclFloat16, ncclBfloat16}) {
        const auto to = [&](float value) {
            return type == ncclFloat16 ? slimwire::float_to_float16(value)
                                       : slimwire::float_to_bfloat16(value);
        };
        const auto from = [&](uint16_t bits) {
            return type == ncclFloat16 ? slimwire::float16_to_float(bits)
                                       : slimwire::bfloat16_to_float(bits);
        };
        Matrix sum(kLowRankCount);
        std::vector<std::vector<uint16_t>> given(static_cast<size_t>(ranks()));
        for (int rank = 0; rank < ranks(); ++rank) {
            for (size_t i = 0; i < kLowRankCount; ++i) {
                // Powers of two, so that products are exact.
                const float value = std::ldexp(i / kCols % 3 == 1 ? -1.0f : 1.0f,
                                               static_cast<int>(i % kCols % 4) + rank % 2);
                given[static_cast<size_t>(rank)].push_back(to(value));
                sum[i] += value;
            }
        }
        for (int call = 0; call < 3; ++call) {
            for (int rank = 0; rank < ranks(); ++rank) {
                upload(rank, send_[rank], given[static_cast<size_t>(rank)]);
            }
            const bool in_place = call == 1;
            group([&](int rank) {
                return ncclAllReduce(send_[rank], in_place ? send_[rank] : recv_[rank],
                                     kLowRankCount, type, ncclSum, comms_[rank], nullptr);
            });
            const std::vector<uint16_t> bits = equal_result<uint16_t>(kLowRankCount, 0, in_place);
            // Directions that were drawn lead to the sum's only in the next call.
            const bool learnt = !kAutoencoder || call > 0;
            for (size_t i = learnt ? 0 : kLowRankRows * kCols; i < kLowRankCount; ++i) {
                ASSERT_NEAR(from(bits[i]), sum[i], std::abs(sum[i]) / 128) << i;
            }
            mark();
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks,
                         LowRank,
                         testing::Values(2, 3, 4),
                         testing::PrintToStringParamName());

// Nothing crosses a wire, so nothing is approximated.
class OfOneRank : public LowRank {};
TEST_P(OfOneRank, IsExact) {
    const std::vector<Values> given = inputs(0);
    for (int call = 0; call < 2; ++call) {
        EXPECT_EQ(reduce(given, ncclSum, false), given[0]);
        mark();
    }
}
INSTANTIATE_TEST_SUITE_P(Ranks, OfOneRank, testing::Values(1));

}  // namespace
