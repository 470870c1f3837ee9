// The model of demo_train: gradients against finite differences of a float64 reference, the update
// against its formula, and how tensors lie in buckets.
#include "tools/demo_train/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

#include "tests/support/seed.h"

namespace demo {
namespace {

struct Model {
    Model(const std::vector<int>& widths, int rows)
        : widths(widths), rows(rows), mlp(widths, rows) {
        for (const Tensor& tensor : mlp.tensors()) {
            parameters.emplace_back(tensor.elems);
            gradients.emplace_back(tensor.elems, std::nanf(""));
        }
        for (size_t i = 0; i < parameters.size(); ++i) {
            mlp.bind(i, parameters[i].data(), gradients[i].data());
        }
    }

    LossSum run(const std::vector<float>& input,
                const std::vector<uint8_t>& labels,
                bool gradient) {
        std::copy(input.begin(), input.end(), mlp.input());
        for (int layer = 0; layer < mlp.layers(); ++layer) {
            mlp.forward_layer(layer, rows);
        }
        const LossSum sum = mlp.loss(labels.data(), rows, gradient);
        for (int layer = mlp.layers() - 1; gradient && layer >= 0; --layer) {
            mlp.backward_layer(layer, rows);
        }
        return sum;
    }

    // Mean loss in float64 by the textbook formula, independent of the code under test.
    double reference(const std::vector<float>& input,
                     const std::vector<uint8_t>& labels,
                     const std::vector<std::vector<double>>& values) const {
        double total = 0;
        for (int row = 0; row < rows; ++row) {
            std::vector<double> x(input.begin() + row * widths[0],
                                  input.begin() + (row + 1) * widths[0]);
            for (size_t layer = 0; layer + 1 < widths.size(); ++layer) {
                std::vector<double> z(static_cast<size_t>(widths[layer + 1]));
                for (size_t o = 0; o < z.size(); ++o) {
                    z[o] = values[2 * layer + 1][o];
                    for (size_t i = 0; i < x.size(); ++i) {
                        z[o] += values[2 * layer][o * x.size() + i] * x[i];
                    }
                    if (layer + 2 < widths.size()) {
                        z[o] = std::max(z[o], 0.0);
                    }
                }
                x = z;
            }
            double normaliser = 0;
            for (const double z : x) {
                normaliser += std::exp(z);
            }
            total += std::log(normaliser) - x[labels[static_cast<size_t>(row)]];
        }
        return total / rows;
    }

    std::vector<int> widths;
    int rows;
    Mlp mlp;
    std::vector<std::vector<float>> parameters, gradients;
};

TEST(DemoMlp, GradientsEqualFiniteDifferences) {
    const unsigned seed = slimwire::test_seed();
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    Model model({7, 11, 5, 4}, 6);
    model.mlp.initialise(seed);
    std::vector<float> input(7 * 6);
    std::generate(input.begin(), input.end(), [&] { return normal(random); });
    std::vector<uint8_t> labels(6);
    std::generate(labels.begin(), labels.end(), [&] { return static_cast<uint8_t>(random() % 4); });
    for (std::vector<float>& values : model.parameters) {
        for (float& value : values) {
            value += 0.1f * normal(random);  // biases too
        }
    }
    const LossSum sum = model.run(input, labels, true);

    std::vector<std::vector<double>> values;
    for (const std::vector<float>& tensor : model.parameters) {
        values.emplace_back(tensor.begin(), tensor.end());
    }
    EXPECT_NEAR(sum.loss / model.rows, model.reference(input, labels, values), 1e-5);
    constexpr double kStep = 1e-6;
    for (size_t tensor = 0; tensor < values.size(); ++tensor) {
        for (size_t i = 0; i < values[tensor].size(); ++i) {
            const double kept = values[tensor][i];
            values[tensor][i] = kept + kStep;
            const double above = model.reference(input, labels, values);
            values[tensor][i] = kept - kStep;
            const double below = model.reference(input, labels, values);
            values[tensor][i] = kept;
            EXPECT_NEAR(model.gradients[tensor][i], (above - below) / (2 * kStep), 2e-4)
                << model.mlp.tensors()[tensor].name << " " << i;
        }
    }
}

TEST(DemoMlp, LargeOutputsGiveFiniteLoss) {
    Model model({1, 2}, 1);
    model.parameters[0] = {1e4f, -1e4f};
    model.parameters[1] = {0, 0};
    const LossSum sum = model.run({1}, {1}, true);
    EXPECT_NEAR(sum.loss, 2e4, 1);
    EXPECT_TRUE(std::isfinite(model.gradients[0][0]));
}

TEST(DemoOptimizer, MomentumAndDecayFollowTheFormula) {
    const SgdSettings settings{0.9f, 0.01f};
    std::vector<float> gradient{1.0f, -2.0f}, velocity{0.5f, 0.0f}, parameter{10.0f, 1.0f};
    sgd_update(settings, 0.1f, gradient.data(), velocity.data(), parameter.data(), 2);
    EXPECT_FLOAT_EQ(velocity[0], 0.9f * 0.5f + 1.0f + 0.01f * 10.0f);
    EXPECT_FLOAT_EQ(velocity[1], -2.0f + 0.01f);
    EXPECT_FLOAT_EQ(parameter[0], 10.0f - 0.1f * velocity[0]);
    EXPECT_FLOAT_EQ(parameter[1], 1.0f - 0.1f * velocity[1]);
}

TEST(DemoOptimizer, RateWarmsUpAndFallsToZero) {
    EXPECT_FLOAT_EQ(learning_rate(0.1f, 0, 10, 100), 0.01f);
    EXPECT_FLOAT_EQ(learning_rate(0.1f, 9, 10, 100), 0.1f);
    EXPECT_FLOAT_EQ(learning_rate(0.1f, 10, 10, 100), 0.1f);
    EXPECT_NEAR(learning_rate(0.1f, 55, 10, 100), 0.05f, 1e-6);
    EXPECT_NEAR(learning_rate(0.1f, 100, 10, 100), 0.0f, 1e-6);
    for (int step = 10; step < 99; ++step) {
        EXPECT_GT(learning_rate(0.1f, step, 10, 100), learning_rate(0.1f, step + 1, 10, 100));
    }
}

// Whatever is laid out, nothing overlaps and nothing is lost.
void expect_consistent(const std::vector<Tensor>& tensors,
                       const BucketLayout& layout,
                       size_t ranks) {
    std::vector<int> used(layout.flat_elems, 0);
    for (size_t i = 0; i < tensors.size(); ++i) {
        const Placement place = layout.placements[i];
        const Bucket& bucket = layout.buckets.at(place.bucket);
        EXPECT_GE(place.offset, bucket.offset);
        EXPECT_LE(place.offset + tensors[i].elems, bucket.offset + bucket.elems);
        EXPECT_LE(bucket.first_layer, tensors[i].layer);
        EXPECT_GE(bucket.last_layer, tensors[i].layer);
        for (size_t j = 0; j < tensors[i].elems; ++j) {
            ASSERT_EQ(used.at(place.offset + j)++, 0) << tensors[i].name;
        }
    }
    size_t padding = 0;
    for (const Bucket& bucket : layout.buckets) {
        EXPECT_EQ(bucket.padded_elems % ranks, 0u);
        EXPECT_LT(bucket.padded_elems - bucket.elems, ranks);
        padding += bucket.padded_elems - bucket.elems;
    }
    EXPECT_EQ(std::accumulate(used.begin(), used.end(), size_t{0}) + padding, layout.flat_elems);
}

TEST(DemoBuckets, LieInTheOrderOfReadiness) {
    using Widths = std::vector<int>;
    const std::tuple<Widths, size_t, size_t, size_t> kCases[] = {
        {{784, 1024, 1024, 10}, size_t{4} << 20, 4, 2},
        {{3, 5, 2}, 1, 3, 4},                 // a bucket for each tensor
        {{3, 5, 2}, size_t{1} << 40, 7, 1}};  // one for all, of 32 elements and a padding of 3
    for (const auto& [widths, bytes, ranks, expected] : kCases) {
        const std::vector<Tensor> tensors = Mlp(widths, 1).tensors();
        const BucketLayout layout = make_buckets(tensors, bytes, static_cast<int>(ranks));
        ASSERT_EQ(layout.buckets.size(), expected);
        // The last layer comes first: its gradients are ready first.
        EXPECT_EQ(layout.placements.back().offset, 0u);
        EXPECT_EQ(layout.buckets.back().first_layer, 0);
        expect_consistent(tensors, layout, ranks);
    }
}

}  // namespace
}  // namespace demo
