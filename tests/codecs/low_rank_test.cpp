// PowerSGD's operations: host bodies of every instruction set against the slow words of FORMAT.md,
// their kernels on the execution model of tests/support/cuda_on_host.h against the host bodies, and
// what the algorithm promises of matrices whose singular values are known.
#include "tests/support/cuda_on_host.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "codecs/base/emulator_abi.h"
#include "codecs/float16.h"
#include "codecs/low_rank.h"
#include "codecs/numeric.h"
#include "tests/codecs/fixture.h"

#include "codecs/low_rank.cu"

namespace slimwire::testing {
namespace {

constexpr float kMargin = 77.0f;
constexpr size_t kMarginElems = 16;

std::vector<float> guarded(size_t count) {
    std::vector<float> values(count + kMarginElems, 0.0f);
    std::fill(values.end() - kMarginElems, values.end(), kMargin);
    return values;
}
bool margin_intact(const std::vector<float>& values) {
    return std::all_of(values.end() - kMarginElems, values.end(),
                       [](float x) { return x == kMargin; });
}
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// All buffers of one rank.
struct Buffers {
    Guarded input;
    Guarded output;
    std::vector<float> residual, left, right, state, work;

    Buffers(const LowRankLayout& layout, DType dtype, int64_t count, int state_rank, int64_t shift)
        : input(count * static_cast<int64_t>(dtype_bytes(dtype)), shift),
          output(count * static_cast<int64_t>(dtype_bytes(dtype)), shift),
          residual(guarded(static_cast<size_t>(count))),
          left(guarded(static_cast<size_t>(layout.left_elems))),
          right(guarded(static_cast<size_t>(layout.right_elems))),
          state(guarded(static_cast<size_t>(layout.state_elems(state_rank)))),
          work(guarded(static_cast<size_t>(layout.work_elems))) {}

    [[nodiscard]] bool margins_intact() const {
        return output.margins_intact() && input.margins_intact() && margin_intact(residual) &&
               margin_intact(left) && margin_intact(right) && margin_intact(state) &&
               margin_intact(work);
    }
    bool operator==(const Buffers& other) const {
        return output.copy(output.size()) == other.output.copy(other.output.size()) &&
               same_bits(residual, other.residual) && same_bits(left, other.left) &&
               same_bits(right, other.right) && same_bits(state, other.state);
    }
};

struct Job {
    LowRankLayout layout;
    DType dtype = DType::kFloat32;
    int rank = 4;
    int state_rank = 4;
    bool fed = true;
    float scale = 1.0f;
    const void* scale_ptr = nullptr;
    float mean = 1.0f;
    float result = 1.0f;
    RandomKey random = {.seed = 5, .tensor = 3, .rank = 1, .step = 9};

    LowRankArgs args(Buffers& buffers) const {
        LowRankArgs args{};
        args.input = buffers.input.data();
        args.residual = fed ? buffers.residual.data() : nullptr;
        args.output = buffers.output.data();
        args.scale_ptr = scale_ptr;
        args.left = buffers.left.data();
        args.right = buffers.right.data();
        args.state = buffers.state.data();
        args.work = buffers.work.data();
        args.scale = scale;
        args.mean = mean;
        args.result = result;
        args.dtype = dtype;
        args.rank = rank;
        args.state_rank = state_rank;
        args.matrices = static_cast<int32_t>(layout.matrices.size());
        args.random = random;
        std::copy(layout.matrices.begin(), layout.matrices.end(), args.list);
        return args;
    }
};

constexpr LowRankStep kAllSteps[] = {LowRankStep::kBegin,         LowRankStep::kMultiplyRight,
                                     LowRankStep::kOrthogonalise, LowRankStep::kMultiplyLeft,
                                     LowRankStep::kRestore,       LowRankStep::kKeep};

void on_host(LowRankStep step, const LowRankArgs& args) {
    constexpr void (*kBodies[])(const LowRankArgs&) = {
        begin_low_rank_on_host, multiply_right_on_host,   orthogonalise_on_host,
        multiply_left_on_host,  restore_low_rank_on_host, keep_low_rank_on_host};
    kBodies[static_cast<size_t>(step)](args);
}

void on_model(LowRankStep step, const LowRankArgs& args) {
    constexpr cudaError_t (*kLaunchers[])(const LowRankArgs&, cudaStream_t) = {
        begin_low_rank_on_cuda, multiply_right_on_cuda,   orthogonalise_on_cuda,
        multiply_left_on_cuda,  restore_low_rank_on_cuda, keep_low_rank_on_cuda};
    ASSERT_EQ(kLaunchers[static_cast<size_t>(step)](args, nullptr), cudaSuccess);
}

// --- FORMAT.md, "Low rank", word by word

float canonical_of(float x) {
    return std::isnan(x) ? std::bit_cast<float>(kNanFloat32) : x;
}

template <class Number>
Number tree(std::vector<Number> lanes) {
    for (size_t half = lanes.size() / 2; half > 0; half /= 2) {
        for (size_t l = 0; l < half; ++l) {
            lanes[l] += lanes[l + half];
        }
    }
    return lanes[0];
}

void reference_step(LowRankStep step, const Job& job, Buffers& buffers) {
    const std::vector<float> input =
        values_of(buffers.input, job.dtype,
                  buffers.input.size() / static_cast<int64_t>(dtype_bytes(job.dtype)));
    float factor = job.scale;
    if (job.scale_ptr != nullptr) {
        uint16_t half = 0;
        float one = 0;
        std::memcpy(&half, job.scale_ptr, 2);
        std::memcpy(&one, job.scale_ptr, job.dtype == DType::kFloat32 ? 4 : 0);
        factor *= job.dtype == DType::kFloat32   ? one
                  : job.dtype == DType::kFloat16 ? float16_to_float(half)
                                                 : bfloat16_to_float(half);
    }
    for (const LowRankMatrix& matrix : job.layout.matrices) {
        const int64_t rows = matrix.rows;
        const int64_t cols = matrix.cols;
        float* const p = buffers.left.data() + matrix.left;
        float* const q = buffers.right.data() + matrix.right;
        float* const state = buffers.state.data() + matrix.right / job.rank * job.state_rank;
        const auto m = [&](int64_t i, int64_t j) {
            const auto at = static_cast<size_t>(matrix.element + i * cols + j);
            volatile float scaled = factor * input[at];
            return job.fed ? scaled + buffers.residual[at] : scaled;
        };
        for (int64_t k = 0; k < job.rank; ++k) {
            float* const column = state + k * cols;
            switch (step) {
                case LowRankStep::kBegin: {
                    float largest = 0;
                    for (int64_t j = 0; j < cols; ++j) {
                        largest = std::max(largest, std::fabs(column[j]));
                    }
                    for (int64_t j = 0; j < cols; ++j) {
                        const auto index = static_cast<uint64_t>(column + j - buffers.state.data());
                        uint32_t x[4] = {static_cast<uint32_t>(index / 4),
                                         static_cast<uint32_t>(index / 4 >> 32), job.random.step,
                                         0};
                        threefry(x, RandomWords{{job.random.seed, job.random.tensor, 0, 6}});
                        q[k * cols + j] =
                            largest < std::numeric_limits<float>::min()
                                ? static_cast<float>(x[index % 4] >> 8) * 0x1p-23f - 1.0f
                                : std::ldexp(column[j], -std::ilogb(largest));
                    }
                    break;
                }
                case LowRankStep::kMultiplyRight:
                    for (int64_t i = 0; i < rows; ++i) {
                        float sum = 0;
                        for (int64_t first = 0; first < cols; first += 1024) {
                            std::vector<float> lanes(32, 0.0f);
                            for (int64_t j = first; j < std::min(first + 1024, cols); ++j) {
                                float& lane = lanes[static_cast<size_t>(j % 32)];
                                lane = std::fma(m(i, j), q[k * cols + j], lane);
                            }
                            sum = first == 0 ? tree(lanes) : sum + tree(lanes);
                        }
                        p[k * rows + i] = canonical_of(sum);
                    }
                    break;
                case LowRankStep::kMultiplyLeft:
                    for (int64_t j = 0; j < cols; ++j) {
                        float sum = 0;
                        for (int64_t first = 0; first < rows; first += 256) {
                            float run = 0;
                            for (int64_t i = first; i < std::min(first + 256, rows); ++i) {
                                run = std::fma(m(i, j), p[k * rows + i], run);
                            }
                            sum = first == 0 ? run : sum + run;
                        }
                        q[k * cols + j] = canonical_of(sum);
                    }
                    break;
                case LowRankStep::kKeep:
                    if (std::all_of(q + k * cols, q + (k + 1) * cols,
                                    [](float x) { return std::isfinite(x); })) {
                        std::copy_n(q + k * cols, cols, column);
                    }
                    break;
                default:
                    break;
            }
        }
        if (step == LowRankStep::kOrthogonalise) {
            std::vector<std::vector<double>> lower(static_cast<size_t>(job.rank),
                                                   std::vector<double>(32));
            std::vector<double> inverse(static_cast<size_t>(job.rank));
            bool finite = true;
            for (int k = 0; k < job.rank; ++k) {
                for (int a = k; a < job.rank; ++a) {
                    std::vector<double> lanes(32, 0.0);
                    for (int64_t i = 0; i < rows; ++i) {
                        lanes[static_cast<size_t>(i % 32)] +=
                            static_cast<double>(p[a * rows + i]) * p[k * rows + i];
                    }
                    const double whole = tree(lanes);
                    double rest = whole;
                    for (int t = 0; t < k; ++t) {
                        rest -= lower[static_cast<size_t>(a)][static_cast<size_t>(t)] *
                                lower[static_cast<size_t>(k)][static_cast<size_t>(t)];
                    }
                    if (a == k) {
                        finite = finite && std::isfinite(whole);
                        inverse[static_cast<size_t>(k)] =
                            rest > whole * 0x1p-36 ? 1.0 / std::sqrt(rest) : 0.0;
                    }
                    lower[static_cast<size_t>(a)][static_cast<size_t>(k)] =
                        rest * inverse[static_cast<size_t>(k)];
                }
            }
            for (int64_t i = 0; i < rows; ++i) {
                std::vector<double> solved(static_cast<size_t>(job.rank));
                for (int k = 0; k < job.rank; ++k) {
                    double value = p[k * rows + i];
                    for (int t = 0; t < k; ++t) {
                        value -= lower[static_cast<size_t>(k)][static_cast<size_t>(t)] *
                                 solved[static_cast<size_t>(t)];
                    }
                    value *= inverse[static_cast<size_t>(k)];
                    solved[static_cast<size_t>(k)] = value;
                    p[k * rows + i] =
                        finite ? static_cast<float>(value) : std::bit_cast<float>(kNanFloat32);
                }
            }
        }
        if (step == LowRankStep::kRestore) {
            for (int64_t i = 0; i < rows; ++i) {
                for (int64_t j = 0; j < cols; ++j) {
                    float sum = 0;
                    for (int64_t k = 0; k < job.rank; ++k) {
                        sum = std::fma(p[k * rows + i], q[k * cols + j], sum);
                    }
                    const auto at = static_cast<size_t>(matrix.element + i * cols + j);
                    if (job.fed) {
                        volatile float mean = job.mean * sum;
                        const float rest = m(i, j) - mean;
                        if (std::isfinite(rest)) {
                            buffers.residual[at] = rest;
                        }
                    }
                    volatile float out = job.result * sum;
                    uint8_t* const to = buffers.output.data() + at * dtype_bytes(job.dtype);
                    if (job.dtype == DType::kFloat32) {
                        const float bits = canonical_of(out);
                        std::memcpy(to, &bits, 4);
                    } else {
                        const uint16_t bits = job.dtype == DType::kFloat16 ? float_to_float16(out)
                                                                           : float_to_bfloat16(out);
                        std::memcpy(to, &bits, 2);
                    }
                }
            }
        }
    }
}

// Matrices one after the other with gaps between, in a buffer of so many elements.
std::vector<MatrixShape> place(const std::vector<std::pair<int32_t, int32_t>>& extents,
                               int64_t gap,
                               int64_t* count) {
    std::vector<MatrixShape> shapes;
    *count = gap;
    for (const auto& [rows, cols] : extents) {
        shapes.push_back({*count, rows, cols});
        *count += int64_t{rows} * cols + gap;
    }
    return shapes;
}

class LowRank : public ::testing::Test {
  protected:
    void TearDown() override { ASSERT_TRUE(force_isa(all_isas().back()).ok()); }
    std::mt19937 random_{test_seed()};

    // Three steps of training, so that the state is drawn, kept and scaled; each operation by
    // reference, host bodies and kernels, from the same bytes.
    void compare(const Job& job, int64_t count, int64_t shift, bool hostile) {
        Buffers expected(job.layout, job.dtype, count, job.state_rank, shift);
        for (int call = 0; call < 3; ++call) {
            const auto bytes = static_cast<int64_t>(dtype_bytes(job.dtype));
            const Guarded fresh = random_input(job.dtype, count, 0.5, random_, shift);
            std::memcpy(expected.input.data(), fresh.data(), static_cast<size_t>(fresh.size()));
            if (hostile && call == 1) {
                const int64_t at = static_cast<int64_t>(random_()) % count;
                std::memset(expected.input.data() + at * bytes, 0xFF, static_cast<size_t>(bytes));
            }
            for (const LowRankStep step : kAllSteps) {
                SCOPED_TRACE("call " + std::to_string(call) + " step " +
                             std::to_string(static_cast<int>(step)));
                const Buffers before = expected;
                reference_step(step, job, expected);
                for (const Isa isa : all_isas()) {
                    SCOPED_TRACE(isa_name(isa));
                    ASSERT_TRUE(force_isa(isa).ok());
                    Buffers host = before;
                    on_host(step, job.args(host));
                    ASSERT_TRUE(host == expected);
                    ASSERT_TRUE(host.margins_intact());
                }
                if (sampled(random_)) {
                    Buffers device = before;
                    LowRankArgs args = job.args(device);
                    args.max_blocks = static_cast<int32_t>(random_() % 4);
                    on_model(step, args);
                    ASSERT_TRUE(device == expected) << "the kernel";
                    ASSERT_TRUE(device.margins_intact());
                }
            }
        }
    }
};

TEST_F(LowRank, EveryTypeRankAndShapeGivesTheBitsOfTheFormat) {
    const std::vector<std::vector<std::pair<int32_t, int32_t>>> all_extents = {
        {{40, 33}}, {{3, 1025}, {300, 20}}, {{64, 64}, {5, 7}, {129, 31}}, {{260, 16}, {9, 2100}}};
    const int ranks[] = {1, 3, 4, 5};
    int which = 0;
    for (const DType dtype : kFloatTypes) {
        for (const auto& extents : all_extents) {
            int64_t count = 0;
            Job job;
            job.rank = std::min(ranks[which % 4], extents.size() == 3 || which % 2 == 0 ? 3 : 5);
            job.state_rank = job.rank + which % 2;
            const std::vector<MatrixShape> shapes = place(extents, which % 3, &count);
            job.layout = low_rank_layout(shapes, job.rank);
            job.dtype = dtype;
            job.fed = which % 3 != 1;
            job.scale = which % 2 == 0 ? 1.0f : 0.3f;
            const float one = 0.75f;
            const uint16_t half =
                dtype == DType::kFloat16 ? float_to_float16(one) : float_to_bfloat16(one);
            job.scale_ptr = which % 4 != 3             ? nullptr
                            : dtype == DType::kFloat32 ? static_cast<const void*>(&one)
                                                       : static_cast<const void*>(&half);
            job.mean = 0.25f;
            job.result = which % 2 == 0 ? 1.0f : 0.25f;
            SCOPED_TRACE(std::string(dtype_name(dtype)) + " situation " + std::to_string(which));
            ASSERT_NO_FATAL_FAILURE(compare(
                job, count, which % 2 * static_cast<int64_t>(dtype_bytes(dtype)), which % 3 == 2));
            ++which;
        }
    }
}

TEST_F(LowRank, HighRanksGiveTheBitsOfTheFormat) {
    for (const int rank : {8, 13, 32}) {
        int64_t count = 0;
        Job job;
        job.rank = rank;
        job.state_rank = rank;
        job.layout = low_rank_layout(place({{70, 90}, {300, 40}}, 0, &count), rank);
        SCOPED_TRACE(rank);
        ASSERT_NO_FATAL_FAILURE(compare(job, count, 0, false));
    }
}

// --- What the algorithm promises

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

Job one_matrix(int32_t rows, int32_t cols, int rank, bool fed) {
    Job job;
    job.rank = rank;
    job.state_rank = rank;
    job.fed = fed;
    const MatrixShape shape{0, rows, cols};
    job.layout = low_rank_layout({&shape, 1}, rank);
    return job;
}

TEST_F(LowRank, AMatrixOfThatRankIsDeliveredWhole) {
    const std::vector<float> m = with_singular_values(90, 70, {9, 4, 1, 0.5}, random_);
    for (const int rank : {4, 5, 8}) {
        const Job job = one_matrix(90, 70, rank, false);
        Buffers buffers(job.layout, job.dtype, 90 * 70, rank, 0);
        const std::vector<float> out = call(job, buffers, m);
        std::vector<float> error(m.size());
        std::transform(m.begin(), m.end(), out.begin(), error.begin(), std::minus<>());
        EXPECT_LT(std::sqrt(square_sum(error) / square_sum(m)), 2e-6) << rank;
    }
}

TEST_F(LowRank, ColumnsAreOrthonormalHoweverBadlyConditioned) {
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

TEST_F(LowRank, WarmStartsComeToTheBestApproximation) {
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
        const std::vector<float> out = call(job, buffers, m);
        std::vector<float> error(m.size());
        std::transform(m.begin(), m.end(), out.begin(), error.begin(), std::minus<>());
        last = square_sum(error);
        first = steps == 0 ? last : first;
    }
    EXPECT_GT(first, 1.05 * best);
    EXPECT_LT(last, 1.0001 * best);
    EXPECT_GT(last, 0.9999 * best);
}

// A larger rank goes on from the columns that there are, a smaller one keeps them.
TEST_F(LowRank, AChangeOfRankKeepsTheWarmStart) {
    const std::vector<float> m = with_singular_values(120, 80, {8, 4, 2, 1, 0.5, 0.25}, random_);
    const auto error_of = [&](Buffers& buffers, int rank, uint32_t step) {
        Job job = one_matrix(120, 80, rank, false);
        job.state_rank = 4;
        job.random.step = step;
        const std::vector<float> out = call(job, buffers, m);
        std::vector<float> error(m.size());
        std::transform(m.begin(), m.end(), out.begin(), error.begin(), std::minus<>());
        return square_sum(error);
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
TEST_F(LowRank, NothingIsLostOverAllRanks) {
    constexpr int kRanks = 3;
    constexpr int64_t kCount = 60 * 50;
    Job job = one_matrix(60, 50, 2, true);
    job.mean = 1.0f / kRanks;
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

TEST_F(LowRank, WhatIsNotFinitePoisonsItsMatrixAloneAndLeavesNoTrace) {
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

TEST_F(LowRank, ZerosTinyAndHugeMatricesKeepTheirScale) {
    const Job job = one_matrix(60, 50, 3, false);
    const std::vector<float> shape = with_singular_values(60, 50, {4, 2, 1}, random_);
    for (const float scale : {0.0f, 1e-18f, 1e-10f, 1e10f, 1e18f}) {
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

// Draws of the first columns differ by tensor, seed and step, not by rank.
TEST_F(LowRank, RanksDrawAlike) {
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

// --- Enqueuing

int launches;
cudaError_t run_launch(
    cudaStream_t, void (*body)(const void*), const void* args, size_t, const char*) {
    ++launches;
    body(args);
    return cudaSuccess;
}

TEST_F(LowRank, AsManyLaunchesAsTheNumberOfMatricesTakes) {
    std::vector<std::pair<int32_t, int32_t>> extents(kMostMatrices + 5, {12, 10});
    int64_t count = 0;
    Job job;
    job.rank = 2;
    job.state_rank = 2;
    job.layout = low_rank_layout(place(extents, 0, &count), 2);
    Buffers expected(job.layout, job.dtype, count, 2, 0);
    const Guarded fresh = random_input(job.dtype, count, 1.0, random_);
    std::memcpy(expected.input.data(), fresh.data(), static_cast<size_t>(fresh.size()));
    Buffers buffers = expected;
    EmulatorApi emulator{.size = sizeof(EmulatorApi),
                         .launch = run_launch,
                         .device_view = nullptr,
                         .node_of_device = nullptr};
    DeviceApi api;
    api.emulator = &emulator;
    for (const LowRankStep step : kAllSteps) {
        reference_step(step, job, expected);
        launches = 0;
        LowRankLayout none = job.layout;
        Job without = job;
        without.layout.matrices.clear();
        ASSERT_TRUE(enqueue(api, step, job.layout, without.args(buffers), nullptr).ok());
        EXPECT_EQ(launches, 2);
    }
    EXPECT_TRUE(buffers == expected);
}

TEST(LowRankShape, WorthItWhereFactorsTakeLessThanHalf) {
    EXPECT_TRUE(worth_low_rank(100, 100, 24));
    EXPECT_FALSE(worth_low_rank(100, 100, 25));
    EXPECT_FALSE(worth_low_rank(1, 10000, 1));
    EXPECT_FALSE(worth_low_rank(10000, 2, 1));
    EXPECT_TRUE(worth_low_rank(10000, 10, 2));
    EXPECT_FALSE(worth_low_rank(0, 0, 1));
}

}  // namespace
}  // namespace slimwire::testing
