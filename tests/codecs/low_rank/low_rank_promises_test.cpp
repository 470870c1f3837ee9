// What PowerSGD promises of matrices whose singular values are known, of ranks together, and of
// input that is not finite, tiny or huge.
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

#include "tests/codecs/low_rank/low_rank_fixture.h"

namespace slimwire::testing {
namespace {

class LowRankPromises : public ::testing::Test {
  protected:
    std::mt19937 random_{test_seed()};
};

// U diag(values) V^T with orthonormal random U and V.
std::vector<float> with_singular_values(int64_t rows,
                                        int64_t cols,
                                        const std::vector<double>& values,
                                        std::mt19937& random) {
    std::normal_distribution<double> normal;
    const auto orthonormal = [&](int64_t n) {
        std::vector<std::vector<double>> columns(values.size(),
                                                 std::vector<double>(static_cast<size_t>(n)));
        for (size_t k = 0; k < columns.size(); ++k) {
            for (double& x : columns[k]) {
                x = normal(random);
            }
            for (int twice = 0; twice < 2; ++twice) {
                for (size_t t = 0; t < k; ++t) {
                    const double along = std::inner_product(columns[k].begin(), columns[k].end(),
                                                            columns[t].begin(), 0.0);
                    for (size_t i = 0; i < columns[k].size(); ++i) {
                        columns[k][i] -= along * columns[t][i];
                    }
                }
            }
            const double length = std::sqrt(
                std::inner_product(columns[k].begin(), columns[k].end(), columns[k].begin(), 0.0));
            for (double& x : columns[k]) {
                x /= length;
            }
        }
        return columns;
    };
    const auto u = orthonormal(rows);
    const auto v = orthonormal(cols);
    std::vector<float> m(static_cast<size_t>(rows * cols));
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < cols; ++j) {
            double sum = 0;
            for (size_t k = 0; k < values.size(); ++k) {
                sum += values[k] * u[k][static_cast<size_t>(i)] * v[k][static_cast<size_t>(j)];
            }
            m[static_cast<size_t>(i * cols + j)] = static_cast<float>(sum);
        }
    }
    return m;
}

double square_sum_of_difference(const std::vector<float>& a, const std::vector<float>& b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0, std::plus<>(),
                              [](float x, float y) { return std::pow(double{x} - y, 2); });
}
double square_sum(const std::vector<float>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0,
                           [](double sum, float x) { return sum + static_cast<double>(x) * x; });
}

// One call of one rank with the steps in their order; what was delivered comes back.
std::vector<float> call(const Job& job, Buffers& buffers, const std::vector<float>& m) {
    std::memcpy(buffers.input.data(), m.data(), m.size() * sizeof(float));
    for (const LowRankStep step : kAllSteps) {
        on_host(step, job.args(buffers));
    }
    return values_of(buffers.output, DType::kFloat32, static_cast<int64_t>(m.size()));
}

Job one_matrix(int32_t rows, int32_t cols, int rank, bool fed, int ranks = 1) {
    Job job;
    job.rank = rank;
    job.state_rank = rank;
    job.fed = fed;
    const MatrixShape shape{0, rows, cols};
    job.layout = low_rank_layout({&shape, 1}, rank);
    LowRankArgs args{};
    args.dtype = job.dtype;
    choose_scales(job.layout, ranks, false, &args);
    job.product_scale = args.product_scale;
    job.mean = args.mean;
    job.result = args.result;
    job.sum_limit = args.sum_limit;
    return job;
}

TEST_F(LowRankPromises, AMatrixOfThatRankIsDeliveredWhole) {
    const std::vector<float> m = with_singular_values(90, 70, {9, 4, 1, 0.5}, random_);
    for (const int rank : {4, 5, 8}) {
        const Job job = one_matrix(90, 70, rank, false);
        Buffers buffers(job.layout, job.dtype, 90 * 70, rank, 0);
        const double error = square_sum_of_difference(m, call(job, buffers, m));
        EXPECT_LT(std::sqrt(error / square_sum(m)), 2e-6) << rank;
    }
}

TEST_F(LowRankPromises, ColumnsAreOrthonormalHoweverBadlyConditioned) {
    const std::vector<double> values = {1e3, 30, 1, 1e-2, 1e-3, 1e-3};
    const std::vector<float> m = with_singular_values(200, 64, values, random_);
    const Job job = one_matrix(200, 64, 4, false);
    Buffers buffers(job.layout, job.dtype, 200 * 64, 4, 0);
    for (int steps = 0; steps < 12; ++steps) {
        (void)call(job, buffers, m);
        for (int a = 0; a < 4; ++a) {
            for (int b = 0; b <= a; ++b) {
                const float* const p = buffers.left.data();
                const double product =
                    std::inner_product(p + a * 200, p + (a + 1) * 200, p + b * 200, 0.0);
                // A column that depends on others is zero; one of which 2^-36 is left has lost
                // bits.
                EXPECT_NEAR(product, a == b && product > 0.5 ? 1.0 : 0.0, 3e-4)
                    << a << " " << b << " after " << steps;
            }
        }
    }
}

TEST_F(LowRankPromises, WarmStartsComeToTheBestApproximation) {
    std::vector<double> values;
    for (int k = 0; k < 30; ++k) {
        values.push_back(std::pow(0.7, k));
    }
    const std::vector<float> m = with_singular_values(120, 80, values, random_);
    double best = 0;
    for (size_t k = 4; k < values.size(); ++k) {
        best += values[k] * values[k];
    }
    const Job job = one_matrix(120, 80, 4, false);
    Buffers buffers(job.layout, job.dtype, 120 * 80, 4, 0);
    double first = 0;
    double last = 0;
    for (int steps = 0; steps < 25; ++steps) {
        last = square_sum_of_difference(m, call(job, buffers, m));
        first = steps == 0 ? last : first;
    }
    EXPECT_GT(first, 1.05 * best);
    EXPECT_LT(last, 1.0001 * best);
    EXPECT_GT(last, 0.9999 * best);
}

// A larger rank goes on from the columns that there are, a smaller one keeps them.
TEST_F(LowRankPromises, AChangeOfRankKeepsTheWarmStart) {
    const std::vector<float> m = with_singular_values(120, 80, {8, 4, 2, 1, 0.5, 0.25}, random_);
    const auto error_of = [&](Buffers& buffers, int rank, uint32_t step) {
        Job job = one_matrix(120, 80, rank, false);
        job.state_rank = 4;
        job.random.step = step;
        return square_sum_of_difference(m, call(job, buffers, m));
    };
    Buffers buffers(one_matrix(120, 80, 4, false).layout, DType::kFloat32, 120 * 80, 4, 0);
    for (uint32_t steps = 0; steps < 20; ++steps) {
        (void)error_of(buffers, 2, steps);
    }
    const double best2 = 4 + 1 + 0.25 + 0.0625;
    EXPECT_NEAR(error_of(buffers, 2, 20), best2, 1e-3);
    // The two new columns are drawn and find at once what a first step finds.
    EXPECT_LT(error_of(buffers, 4, 21), best2 - 1);
    for (uint32_t steps = 22; steps < 40; ++steps) {
        (void)error_of(buffers, 4, steps);
    }
    EXPECT_NEAR(error_of(buffers, 4, 40), 0.25 + 0.0625, 1e-3);
    EXPECT_NEAR(error_of(buffers, 2, 41), best2, 1e-3);
    EXPECT_NEAR(error_of(buffers, 4, 42), 0.25 + 0.0625, 1e-3);
}

// All ranks add up their factors, as the all-reduce does: what was delivered and what they owe is
// what they gave, and with a gradient that stays all of it is delivered in the end.
TEST_F(LowRankPromises, NothingIsLostOverAllRanks) {
    constexpr int kRanks = 3;
    constexpr int64_t kCount = 60 * 50;
    const Job job = one_matrix(60, 50, 2, true, kRanks);
    std::vector<Buffers> ranks(kRanks, Buffers(job.layout, job.dtype, kCount, job.state_rank, 0));
    std::vector<double> given(kCount, 0.0);
    std::vector<double> delivered(kCount, 0.0);
    for (int step = 0; step < 60; ++step) {
        for (Buffers& rank : ranks) {
            const Guarded fresh = random_input(job.dtype, kCount, 1.0, random_);
            std::memcpy(rank.input.data(), fresh.data(), kCount * 4);
            const std::vector<float> values = values_of(fresh, job.dtype, kCount);
            for (size_t i = 0; i < kCount; ++i) {
                given[i] += values[i];
            }
        }
        for (const LowRankStep of_step : kAllSteps) {
            for (Buffers& rank : ranks) {
                on_host(of_step, job.args(rank));
            }
            if (of_step != LowRankStep::kMultiplyRight && of_step != LowRankStep::kMultiplyLeft) {
                continue;
            }
            const bool left = of_step == LowRankStep::kMultiplyRight;
            std::vector<float> sum = left ? ranks[0].left : ranks[0].right;
            for (size_t i = 0; i + kMarginElems < sum.size(); ++i) {
                sum[i] += (left ? ranks[1].left : ranks[1].right)[i];
                sum[i] += (left ? ranks[2].left : ranks[2].right)[i];
            }
            for (Buffers& rank : ranks) {
                (left ? rank.left : rank.right) = sum;
            }
        }
        const std::vector<float> out = values_of(ranks[0].output, job.dtype, kCount);
        double worst = 0;
        double largest = 0;
        for (size_t i = 0; i < kCount; ++i) {
            delivered[i] += out[i];
            const double owed = static_cast<double>(ranks[0].residual[i]) + ranks[1].residual[i] +
                                ranks[2].residual[i];
            worst = std::max(worst, std::fabs(given[i] - delivered[i] - owed));
            largest = std::max(largest, std::fabs(owed));
        }
        EXPECT_LT(worst, 2e-6 * (step + 1) * largest) << step;
        for (int rank = 1; rank < kRanks; ++rank) {
            EXPECT_TRUE(same_bits(ranks[static_cast<size_t>(rank)].state, ranks[0].state));
            EXPECT_EQ(ranks[static_cast<size_t>(rank)].output.copy(kCount * 4),
                      ranks[0].output.copy(kCount * 4));
        }
    }
}

TEST_F(LowRankPromises, WhatIsNotFinitePoisonsItsMatrixAloneAndLeavesNoTrace) {
    int64_t count = 0;
    Job job;
    job.rank = 2;
    job.state_rank = 2;
    job.layout = low_rank_layout(place({{20, 30}, {25, 15}}, 0, &count), 2);
    Buffers buffers(job.layout, job.dtype, count, 2, 0);
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        std::vector<float> m =
            values_of(random_input(job.dtype, count, 1.0, random_), job.dtype, count);
        (void)call(job, buffers, m);
        const Buffers before = buffers;
        m[333] = bad;
        const std::vector<float> out = call(job, buffers, m);
        for (size_t i = 0; i < out.size(); ++i) {
            ASSERT_EQ(std::isnan(out[i]), i < 600) << i;
            ASSERT_EQ(std::bit_cast<uint32_t>(buffers.residual[i]) ==
                          std::bit_cast<uint32_t>(before.residual[i]),
                      i < 600)
                << i;
        }
        for (size_t i = 0; i < 60; ++i) {
            ASSERT_EQ(buffers.state[i], before.state[i]);
        }
        EXPECT_NE(buffers.state[60], before.state[60]);
    }
}

TEST_F(LowRankPromises, ZerosTinyAndHugeMatricesKeepTheirScale) {
    const Job job = one_matrix(60, 50, 3, false);
    const std::vector<float> shape = with_singular_values(60, 50, {4, 2, 1}, random_);
    for (const float scale : {0.0f, 1e-30f, 1e-18f, 1e-10f, 1e10f, 1e18f, 3e38f}) {
        Buffers buffers(job.layout, job.dtype, 60 * 50, 3, 0);
        std::vector<float> m = shape;
        for (float& x : m) {
            x *= scale;
        }
        for (int step = 0; step < 6; ++step) {
            const std::vector<float> out = call(job, buffers, m);
            double worst = 0;
            for (size_t i = 0; i < m.size(); ++i) {
                worst = std::max(worst, static_cast<double>(std::fabs(out[i] - m[i])));
            }
            EXPECT_LE(worst, 1e-5 * scale) << scale << " step " << step;
        }
    }
}

// Products of what is tiny or huge with itself are none of fp32.
TEST_F(LowRankPromises, AnAutoencoderLearnsAtAnyMagnitude) {
    const MatrixShape shape{0, 60, 50};
    Job job = one_matrix(60, 50, 3, false);
    const LowRankLayout transposed = transposed_layout({&shape, 1}, 3);
    const std::vector<float> like = with_singular_values(60, 50, {4, 2, 1}, random_);
    for (const float scale : {1e-35f, 1e-21f, 1.0f, 1e21f, 3e38f}) {
        Buffers buffers(job.layout, job.dtype, 60 * 50, 3, 0);
        std::vector<float> m = like;
        std::for_each(m.begin(), m.end(), [&](float& x) { x *= scale; });
        std::memcpy(buffers.input.data(), m.data(), m.size() * sizeof(float));
        double worst = 0;
        for (int step = 0; step < 12; ++step) {
            std::vector<float> next = guarded(std::vector<float>(150));
            on_host(LowRankStep::kBegin, job.args(buffers));
            LowRankArgs of_q = job.args(buffers);
            of_q.left = of_q.right;
            of_q.list[0] = transposed.matrices[0];
            on_host(LowRankStep::kOrthogonalise, of_q);
            on_host(LowRankStep::kMultiplyRight, job.args(buffers));
            on_host(LowRankStep::kBalance, job.args(buffers));
            LowRankArgs of_next = job.args(buffers);
            of_next.right = next.data();
            on_host(LowRankStep::kMultiplyLeft, of_next);
            on_host(LowRankStep::kRestore, job.args(buffers));
            on_host(LowRankStep::kKeep, of_next);
            const std::vector<float> out =
                values_of(buffers.output, DType::kFloat32, static_cast<int64_t>(m.size()));
            worst = 0;
            for (size_t i = 0; i < m.size(); ++i) {
                worst = std::max(worst, std::abs(double{out[i]} - m[i]));
            }
        }
        EXPECT_LE(worst, 1e-4 * scale) << scale;
    }
}

// Draws of the first columns differ by tensor, seed and step, not by rank.
TEST_F(LowRankPromises, RanksDrawAlike) {
    Job job = one_matrix(60, 50, 3, false);
    Buffers first(job.layout, job.dtype, 60 * 50, 3, 0);
    Buffers other = first;
    on_host(LowRankStep::kBegin, job.args(first));
    job.random.rank = 7;
    on_host(LowRankStep::kBegin, job.args(other));
    EXPECT_TRUE(same_bits(first.right, other.right));
    job.random.step += 1;
    on_host(LowRankStep::kBegin, job.args(other));
    EXPECT_FALSE(same_bits(first.right, other.right));
    uint32_t steps = 1;
    job.random.step -= 1;
    job.random.step_ptr = &steps;
    Buffers counted = first;
    on_host(LowRankStep::kBegin, job.args(counted));
    EXPECT_TRUE(same_bits(counted.right, other.right));
    double mean = 0;
    for (size_t i = 0; i < 150; ++i) {
        ASSERT_GE(first.right[i], -1.0f);
        ASSERT_LT(first.right[i], 1.0f);
        mean += first.right[i] / 150;
    }
    EXPECT_LT(std::fabs(mean), 0.25);
}

}  // namespace
}  // namespace slimwire::testing
