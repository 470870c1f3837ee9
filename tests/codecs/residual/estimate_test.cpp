// EF21's operations on estimates: host bodies against plain arithmetic, their kernels on the
// execution model of tests/support/cuda_on_host.h against the host bodies.
#include "tests/support/cuda_on_host.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "codecs/numeric.h"
#include "codecs/residual/estimate.h"
#include "tests/codecs/fixture.h"

#include "codecs/residual/estimate.cu"

namespace slimwire::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> draw(int64_t count, std::mt19937& random) {
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) {
        value = normal(random);
    }
    return values;
}

TEST(Estimate, DifferenceOfEveryTypeAndScale) {
    std::mt19937 random(test_seed());
    for (const DType dtype : kFloatTypes) {
        for (const int64_t count : {1, 7, 8, 500, 4099}) {
            for (const int64_t shift : {0, 1}) {  // of the input, in elements
                SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + std::to_string(count));
                const auto bytes = static_cast<int64_t>(dtype_bytes(dtype));
                Guarded input = random_input(dtype, count, 1.0, random, shift * bytes);
                // A NaN that is not the canonical one, and an infinity.
                std::memset(input.data() + (count / 3) * bytes, 0xFF, static_cast<size_t>(bytes));
                const std::vector<float> x = values_of(input, dtype, count);
                std::vector<float> estimate = draw(count, random);
                estimate[static_cast<size_t>(count / 2)] = -kInfinity;
                float scalar = 0;
                reference::set_element(&scalar, dtype, 0, 0.75f);  // exact in every type
                std::vector<float> on_host = guarded(std::vector<float>(x.size())),
                                   on_cuda = on_host;
                DifferenceArgs args{.input = input.data(),
                                    .estimate = estimate.data(),
                                    .output = on_host.data(),
                                    .scale_ptr = shift == 0 ? nullptr : &scalar,
                                    .count = count,
                                    .scale = 0.3f,
                                    .dtype = dtype};
                difference_on_host(args);
                for (size_t i = 0; i < x.size(); ++i) {
                    volatile float factor = shift == 0 ? 0.3f : 0.3f * 0.75f;
                    volatile float scaled = factor * x[i];
                    volatile float expected = scaled - estimate[i];
                    ASSERT_TRUE(on_host[i] == expected ||
                                (std::isnan(expected) &&
                                 std::bit_cast<uint32_t>(on_host[i]) == kNanFloat32))
                        << i;
                }
                args.output = on_cuda.data();
                ASSERT_EQ(difference_on_cuda(args, nullptr), cudaSuccess);
                EXPECT_TRUE(same_bits(on_cuda, on_host));
                EXPECT_TRUE(margin_intact(on_cuda));
            }
        }
    }
}

TEST(Estimate, StaysWithinTheRangeOfTheType) {
    const float largest = std::numeric_limits<float>::max();
    for (const auto difference : {difference_on_host, +[](const DifferenceArgs& args) {
                                      EXPECT_EQ(difference_on_cuda(args, nullptr), cudaSuccess);
                                  }}) {
        const float input[] = {largest, -largest, largest, kInfinity};
        const float estimate[] = {-largest, largest / 2, largest, -largest};
        float output[4] = {};
        difference({.input = input,
                    .estimate = estimate,
                    .output = output,
                    .count = 4,
                    .dtype = DType::kFloat32});
        EXPECT_EQ(std::vector<float>(output, output + 4),
                  (std::vector<float>{largest, -largest, 0.0f, kInfinity}));
    }
    for (const auto settle : {settle_on_host, +[](const SettleArgs& args) {
                                  EXPECT_EQ(settle_on_cuda(args, nullptr), cudaSuccess);
                              }}) {
        float estimate[] = {65600.0f, -131007.0f, 65504.0f, kInfinity, -131008.0f};
        uint16_t output[5] = {};
        const uint32_t mark = 0;
        settle({.estimate = estimate,
                .output = output,
                .marks = &mark,
                .count = 5,
                .chunk_elems = 16,
                .dtype = DType::kFloat16,
                .sum_limit = {65504.0f, 2.0f}});
        EXPECT_EQ(std::vector<uint16_t>(output, output + 5),
                  (std::vector<uint16_t>{0x7BFF, 0xFBFF, 0x7BFF, 0x7C00, 0xFC00}));
        EXPECT_EQ(estimate[0], 65600.0f);
    }
}

TEST(Estimate, MarksChunksWithWhatIsNotFinite) {
    std::mt19937 random(test_seed());
    for (const float bad : {kNan, kInfinity, -kInfinity}) {
        for (const int64_t chunk : {16, 100, 1000}) {
            const int64_t count = 901;
            std::vector<float> estimate = draw(count, random);
            const auto chunks = static_cast<size_t>((count + chunk - 1) / chunk);
            std::vector<uint32_t> expected(chunks + 1, 0);
            for (const size_t at : {size_t{0}, size_t{450}, size_t{900}}) {
                if (random() % 2 == 0) {
                    estimate[at] = bad;
                    expected[at / static_cast<size_t>(chunk)] = 1;
                }
            }
            std::vector<uint32_t> on_host(chunks + 1, 0), on_cuda(chunks + 1, 0);
            mark_on_host({.estimate = estimate.data(),
                          .marks = on_host.data(),
                          .count = count,
                          .chunk_elems = chunk});
            EXPECT_EQ(on_host, expected);
            ASSERT_EQ(mark_on_cuda({.estimate = estimate.data(),
                                    .marks = on_cuda.data(),
                                    .count = count,
                                    .chunk_elems = chunk},
                                   nullptr),
                      cudaSuccess);
            EXPECT_EQ(on_cuda, expected);
        }
    }
}

TEST(Estimate, SettlesTheOutputAndBeginsMarkedChunksAnew) {
    std::mt19937 random(test_seed());
    for (const DType dtype : kFloatTypes) {
        for (const int64_t chunk : {8, 33, 400}) {
            for (const bool has_own : {true, false}) {
                const int64_t count = 391;
                std::vector<float> estimate = draw(count, random), own = draw(count, random);
                estimate[5] = kNan;
                std::vector<uint32_t> marks(static_cast<size_t>((count + chunk - 1) / chunk));
                marks[0] = 1;
                marks.back() = 1;
                const auto settle = [&](bool cuda, std::vector<float>* w, std::vector<float>* h) {
                    Guarded output(count * static_cast<int64_t>(dtype_bytes(dtype)));
                    const SettleArgs args{.estimate = w->data(),
                                          .own = has_own ? h->data() : nullptr,
                                          .output = output.data(),
                                          .marks = marks.data(),
                                          .count = count,
                                          .chunk_elems = chunk,
                                          .dtype = dtype};
                    if (cuda) {
                        EXPECT_EQ(settle_on_cuda(args, nullptr), cudaSuccess);
                    } else {
                        settle_on_host(args);
                    }
                    EXPECT_TRUE(output.margins_intact());
                    return output;
                };
                std::vector<float> w = guarded(estimate), h = guarded(own);
                const Guarded output = settle(false, &w, &h);
                const std::vector<float> out = values_of(output, dtype, count);
                for (int64_t i = 0; i < count; ++i) {
                    const auto at = static_cast<size_t>(i);
                    const bool marked = marks[static_cast<size_t>(i / chunk)] != 0;
                    ASSERT_EQ(w[at], marked ? 0.0f : estimate[at]) << i;
                    ASSERT_EQ(h[at], marked && has_own ? 0.0f : own[at]) << i;
                    float rounded = 0;
                    reference::set_element(&rounded, dtype, 0, estimate[at]);
                    rounded = reference::element(&rounded, dtype, 0);
                    ASSERT_TRUE(out[at] == rounded || (i == 5 && std::isnan(out[at]))) << i;
                }
                std::vector<float> w_cuda = guarded(estimate), h_cuda = guarded(own);
                const Guarded by_kernel = settle(true, &w_cuda, &h_cuda);
                EXPECT_TRUE(same_bits(w_cuda, w));
                EXPECT_TRUE(same_bits(h_cuda, h));
                EXPECT_EQ(by_kernel.copy(by_kernel.size()), output.copy(output.size()));
            }
        }
    }
}

TEST(Estimate, NothingAndNoOutput) {
    float one = 1.0f;
    const uint32_t mark = 1;
    settle_on_host({.estimate = &one,
                    .output = nullptr,
                    .marks = &mark,
                    .count = 0,
                    .chunk_elems = 16,
                    .dtype = DType::kFloat32});
    EXPECT_EQ(one, 1.0f);
    const SettleArgs args{.estimate = &one,
                          .output = nullptr,
                          .marks = &mark,
                          .count = 1,
                          .chunk_elems = 16,
                          .dtype = DType::kFloat32};
    ASSERT_EQ(settle_on_cuda(args, nullptr), cudaSuccess);
    EXPECT_EQ(one, 0.0f);
}

}  // namespace
}  // namespace slimwire::testing
