// FORMAT.md, "Low rank", word by word.
#include <bit>
#include <cmath>

#include "codecs/numeric.h"
#include "tests/codecs/low_rank/low_rank_fixture.h"

namespace slimwire::testing {
namespace {

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

}  // namespace

void reference_low_rank(LowRankStep step, const Job& job, Buffers& buffers) {
    const std::vector<float> input =
        values_of(buffers.input, job.dtype,
                  buffers.input.size() / static_cast<int64_t>(dtype_bytes(job.dtype)));
    float factor = job.scale;
    if (job.scale_ptr != nullptr) {
        factor *= reference::element(job.scale_ptr, job.dtype, 0);
    }
    for (const LowRankMatrix& matrix : job.layout.matrices) {
        const int64_t rows = matrix.rows;
        const int64_t cols = matrix.cols;
        float* const p = buffers.left.data() + matrix.left;
        float* const q = buffers.right.data() + matrix.right;
        float* const state = buffers.state.data() + int64_t{matrix.state} * job.state_rank;
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
                                volatile float factor = job.product_scale * q[k * cols + j];
                                lane = std::fma(m(i, j), factor, lane);
                            }
                            const float run = tree(lanes);
                            sum = first == 0 ? run : sum + run;
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
                                volatile float factor = job.product_scale * p[k * rows + i];
                                run = std::fma(m(i, j), factor, run);
                            }
                            sum = first == 0 ? run : sum + run;
                        }
                        q[k * cols + j] = canonical_of(sum);
                    }
                    break;
                case LowRankStep::kKeep:
                    if (std::all_of(q + k * cols, q + (k + 1) * cols,
                                    [](float x) { return std::isfinite(x); })) {
                        const float whole = 1.0f / job.product_scale;
                        const bool fits =
                            std::all_of(q + k * cols, q + (k + 1) * cols,
                                        [&](float x) { return std::isfinite(x * whole); });
                        std::transform(q + k * cols, q + (k + 1) * cols, column,
                                       [&](float x) { return fits ? whole * x : x; });
                    }
                    break;
                case LowRankStep::kOverflow: {
                    std::vector<float> lanes(256, 0.0f);
                    for (int64_t i = 0; i < rows; ++i) {
                        lanes[static_cast<size_t>(i % 256)] += std::fabs(p[k * rows + i]);
                    }
                    volatile float most = tree(lanes) * job.sum_limit;
                    most = most * (1 + 0x1p-10f);
                    for (int64_t j = 0; j < cols; ++j) {
                        q[k * cols + j] *= std::fabs(q[k * cols + j]) > most
                                               ? std::numeric_limits<float>::infinity()
                                               : 1.0f;
                    }
                    break;
                }
                case LowRankStep::kBalance: {
                    float largest = 0;
                    for (int64_t i = 0; i < rows; ++i) {
                        const float x = std::fabs(p[k * rows + i]);
                        largest = x <= largest ? largest : x;  // NaN if one is
                        if (std::isnan(x)) {
                            break;
                        }
                    }
                    const int by = largest > 0 && std::isfinite(largest)
                                       ? std::min(126, std::max(-126, -std::ilogb(largest)))
                                       : 0;
                    for (int64_t i = 0; i < rows; ++i) {
                        p[k * rows + i] = std::ldexp(p[k * rows + i], by);
                    }
                    for (int64_t j = 0; j < cols; ++j) {
                        q[k * cols + j] = std::ldexp(q[k * cols + j], -by);
                    }
                    break;
                }
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
                    if (std::isfinite(sum) && std::fabs(sum) > job.sum_limit) {
                        sum = std::copysign(job.sum_limit, sum);
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
                    reference::set_element(buffers.output.data(), job.dtype,
                                           static_cast<int64_t>(at), out);
                }
            }
        }
    }
}

}  // namespace slimwire::testing
