// The model and the optimizer of demo_train: gradients against finite differences of a float64
// reference, and the update against its formula.
#include "tools/demo_train/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tests/support/seed.h"
#include "tools/demo_train/openblas_core.h"

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

TEST(DemoMlp, CountsHits) {
    Model model({2, 2}, 3);
    model.parameters[0] = {1, 0, 0, 1};  // identity: the larger input wins
    model.parameters[1] = {0, 0};
    EXPECT_EQ(model.run({1, 0, 0, 1, 5, 2}, {0, 1, 1}, false).hits, 2u);
}

TEST(DemoMlp, LargeOutputsGiveFiniteLoss) {
    Model model({1, 2}, 1);
    model.parameters[0] = {1e4f, -1e4f};
    model.parameters[1] = {0, 0};
    const LossSum sum = model.run({1}, {1}, true);
    EXPECT_NEAR(sum.loss, 2e4, 1);
    EXPECT_TRUE(std::isfinite(model.gradients[0][0]));
}

TEST(DemoMlp, InitialisationDependsOnTheSeedOnly) {
    Model first({20, 30, 10}, 1), second({20, 30, 10}, 1), other({20, 30, 10}, 1);
    first.mlp.initialise(7);
    second.mlp.initialise(7);
    other.mlp.initialise(8);
    EXPECT_EQ(first.parameters, second.parameters);
    EXPECT_NE(first.parameters, other.parameters);
    double sum = 0, squares = 0;
    for (const float value : first.parameters[0]) {
        sum += value;
        squares += static_cast<double>(value) * value;
    }
    EXPECT_NEAR(sum / 600, 0, 0.05);
    EXPECT_NEAR(squares / 600, 2.0 / 20, 0.02);  // variance 2 / fan-in
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

TEST(DemoOpenblas, CoreFollowsTheProcessor) {
    EXPECT_EQ(openblas_core({.avx2_fma = true, .avx512 = true}), "SkylakeX");
    EXPECT_EQ(openblas_core({.avx2_fma = true, .avx512 = false}), "Haswell");
    EXPECT_EQ(openblas_core({.avx2_fma = false, .avx512 = false}), "");
}

}  // namespace
}  // namespace demo
