// Relative errors (L2) of the quantisers, to 5 %, on Gaussian values (as activations are), uniform
// ones (as weights are initialised) and Gaussian ones whose scale varies from element to element
// (as gradients do). For int8 and int4 they follow from the block's largest element; those of
// uniform values under a power of two depend on where the ends of the range lie between two powers.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/codecs/fixture.h"

namespace slimwire::testing {
namespace {

struct Row {
    const char* spec;
    double gaussian;
    double uniform;
    double mixture;
};

constexpr Row kRows[] = {
    {"bf16", 0.00166, 0.00176, 0.00166},
    {"fp16", 0.000207, 0.00022, 0.000207},
    {"fp8e4m3", 0.0251, 0.0250, 0.0251},
    {"fp8e4m3:rounding=stochastic", 0.0358, 0.0355, 0.0358},
    {"fp8e5m2", 0.0499, 0.0500, 0.0499},
    {"mxfp4", 0.116, 0.120, 0.120},
    {"nvfp4", 0.095, 0.101, 0.094},
    {"int8", 0.0059, 0.0040, 0.0066},
    {"int4:block=32", 0.096, 0.0684, 0.105},
    {"int4", 0.107, 0.0700, 0.118},
    {"int4:block=128", 0.118, 0.0715, 0.136},
    {"int4:rotate=64", 0.108, 0.108, 0.108},
    {"int4:rounding=stochastic", 0.151, 0.100, 0.168},
    {"int2", 0.66, 0.478, 0.66},
    {"sign", 0.603, 0.500, 0.626},
    {"ternary", 1.12, 0.699, 1.19},
    {"ternary:scale=clip", 0.996, 0.697, 0.992},
    {"ternary:rounding=nearest", 0.765, 0.493, 0.787},
    {"natural", 0.287, 0.283, 0.287},
    {"natural:rounding=nearest", 0.196, 0.166, 0.196},
    {"natural:bits=4", 0.289, 0.284, 0.288},
    {"qsgd", 0.0363, 0.0363, 0.0364},
    {"qsgd:levels=7", 0.660, 0.642, 0.659},
    {"qsgd:levels=7,scale=max", 0.165, 0.100, 0.184},
    // A uniform error within half a step, 2^-9 and 2^-13: step / sqrt(12) over the data's own size.
    {"bounded:error=0.001", 0.0282, 0.0488, 0.0269},
    {"bounded:error=0.0001", 0.00176, 0.00305, 0.00168},
};

double relative_error(const CodecSpec& spec, DType dtype, const Guarded& input, int64_t count) {
    const Encoded encoded = encode(spec, dtype, input, count);
    Guarded output(4 * count);
    decode(spec, DType::kFloat32, encoded.bytes.data(), count, output);
    double error = 0;
    double total = 0;
    for (int64_t i = 0; i < count; ++i) {
        const double value = reference::element(input.data(), dtype, i);
        const double lost = value - reference::element(output.data(), DType::kFloat32, i);
        error += lost * lost;
        total += value * value;
    }
    return std::sqrt(error / total);
}

constexpr int64_t kCount = 1 << 17;

TEST(Accuracy, OfGaussianAndUniformData) {
    std::mt19937 random(7);
    const Guarded gaussian = random_input(DType::kFloat32, kCount, 0.02, random);
    Guarded uniform(4 * kCount);
    std::uniform_real_distribution<float> between(-0.02f, 0.02f);
    for (int64_t i = 0; i < kCount; ++i) {
        reference::set_element(uniform.data(), DType::kFloat32, i, between(random));
    }
    Guarded mixture = random_input(DType::kFloat32, kCount, 0.02, random);
    std::normal_distribution<double> exponent(0.0, 0.22);
    for (int64_t i = 0; i < kCount; ++i) {
        const double value = reference::element(mixture.data(), DType::kFloat32, i);
        reference::set_element(mixture.data(), DType::kFloat32, i,
                               static_cast<float>(value * std::exp(exponent(random))));
    }
    for (const Row& row : kRows) {
        const CodecSpec spec = spec_of(row.spec);
        const std::pair<const Guarded*, double> kinds[] = {
            {&gaussian, row.gaussian}, {&uniform, row.uniform}, {&mixture, row.mixture}};
        for (const auto& [input, expected] : kinds) {
            const double error = relative_error(spec, DType::kFloat32, *input, kCount);
            EXPECT_NEAR(error / expected, 1, 0.05)
                << row.spec << " " << error << " instead of " << expected;
        }
    }
}

// Sends `count` Gaussian fp32 values `steps` times with error feedback: how far the mean of what
// was sent is from the values, relative, L2.
double error_of_mean_sent(const CodecSpec& spec, int64_t count, int steps, std::mt19937& random) {
    const Guarded input = random_input(DType::kFloat32, count, 1.0, random);
    const std::vector<float> p = values_of(input, DType::kFloat32, count);
    std::vector<float> residual(p.size());
    std::vector<double> sent(p.size());
    Guarded output(4 * count);
    for (int step = 0; step < steps; ++step) {
        const Encoded encoded = encode(spec, DType::kFloat32, input, count, &residual);
        decode(spec, DType::kFloat32, encoded.bytes.data(), count, output);
        for (int64_t i = 0; i < count; ++i) {
            sent[static_cast<size_t>(i)] += reference::element(output.data(), DType::kFloat32, i);
        }
    }
    double error = 0;
    double total = 0;
    for (size_t i = 0; i < p.size(); ++i) {
        error += std::pow(sent[i] / steps - double{p[i]}, 2);
        total += std::pow(double{p[i]}, 2);
    }
    return std::sqrt(error / total);
}

// What is owed stays bounded, so the mean of what was sent goes to the values.
TEST(Accuracy, ErrorFeedbackTakesEveryElementToItsMean) {
    std::mt19937 random(test_seed());
    const struct {
        const char* spec;
        int64_t count;
        int steps;
        double most;
    } kSent[] = {{"mxfp4", 1024, 64, 1.0 / 64},
                 {"nvfp4", 1024, 64, 1.0 / 64},
                 {"sign", 2048, 400, 0.06},
                 {"sign:scale=l2", 2048, 400, 0.06},
                 {"ternary:rounding=nearest", 2048, 400, 0.06},
                 {"natural", 2048, 400, 0.06},
                 {"qsgd:levels=7,scale=max", 2048, 400, 0.06},
                 {"bounded:error=0.05,capacity=0.25", 8192, 40, 0.02}};
    for (const auto& sent : kSent) {
        EXPECT_LE(error_of_mean_sent(spec_of(sent.spec), sent.count, sent.steps, random), sent.most)
            << sent.spec;
    }
}

}  // namespace
}  // namespace slimwire::testing
