// Shapes read from what DDP broadcasts: of any model the true ones or none.
#include "collectives/identity/ddp/parameters.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "tests/collectives/identity/ddp/models.h"
#include "tests/support/seed.h"

namespace slimwire {
namespace {

using test::channels_last;
using test::contiguous;
using test::in_order;
using test::shapes_tensor;

using Model = std::vector<ParameterShape>;

std::optional<Model> read(const Model& model) {
    return read_parameter_shapes(shapes_tensor(model), model.size());
}

TEST(ParameterShapes, CountsElements) {
    EXPECT_EQ(contiguous({3, 4, 5}).count(), 60u);
    EXPECT_EQ(contiguous({7}).count(), 7u);
    EXPECT_EQ(contiguous({7, 0}).count(), 0u);
}

TEST(ParameterShapes, MemoryOrders) {
    const auto order = [](const ParameterShape& shape) {
        return memory_order(shape.sizes, shape.strides);
    };
    using enum MemoryOrder;
    EXPECT_EQ(order(contiguous({5})), kUsual);
    EXPECT_EQ(order(contiguous({8, 3, 3, 3})), kUsual);
    EXPECT_EQ(order(channels_last(8, 4, 3, 3)), kUsual);
    EXPECT_EQ(order(channels_last(8, 1, 3, 3)), kUsual);
    EXPECT_EQ(order(in_order({8, 4, 2, 3, 3}, {0, 2, 3, 4, 1})), kUsual);
    EXPECT_EQ(order(in_order({8, 4}, {1, 0})), kDense);
    EXPECT_EQ(order(in_order({8, 1, 4}, {2, 0, 1})), kDense);
    EXPECT_EQ(order({{5}, {2}}), kNotDense);
    EXPECT_EQ(order({{4, 4}, {8, 1}}), kNotDense);
    EXPECT_EQ(order({{4, 4}, {0, 1}}), kNotDense);
    EXPECT_EQ(order({{-4}, {1}}), kNotDense);
    EXPECT_EQ(order({}), kNotDense);
    EXPECT_EQ(order(contiguous(std::vector<int64_t>(9, 2))), kNotDense);
    EXPECT_EQ(order({{int64_t{1} << 40, int64_t{1} << 40}, {int64_t{1} << 40, 1}}), kNotDense);
}

TEST(ParameterShapes, OfUsualModels) {
    const Model convolutional = {contiguous({16, 3, 3, 3}), contiguous({16}),
                                 contiguous({16}),          contiguous({32, 16, 3, 3}),
                                 contiguous({32}),          contiguous({10, 1568}),
                                 contiguous({10})};
    EXPECT_EQ(read(convolutional), convolutional);
    const Model last = {channels_last(16, 3, 3, 3), contiguous({16}), channels_last(32, 16, 1, 1),
                        contiguous({32})};
    EXPECT_EQ(read(last), last);
    const Model head_of_one = {contiguous({77, 31}), contiguous({77}), contiguous({1, 77}),
                               contiguous({1})};
    EXPECT_EQ(read(head_of_one), head_of_one);
    const Model with_empty = {contiguous({0}), contiguous({5, 0, 3}), contiguous({5, 5})};
    EXPECT_EQ(read(with_empty), with_empty);
}

// A column and a pair of vectors look alike, and elsewhere the opposite: the number of parameters
// does not decide.
TEST(ParameterShapes, AmbiguousModelsHaveNone) {
    const Model model = {contiguous({1}), contiguous({1}), contiguous({9, 1})};
    EXPECT_EQ(read(model), std::nullopt);
}

TEST(ParameterShapes, WhatIsNoModelHasNone) {
    const Model model = {contiguous({6, 5}), contiguous({6})};
    std::vector<int64_t> values = shapes_tensor(model);
    EXPECT_EQ(read_parameter_shapes(values, 1), std::nullopt);
    EXPECT_EQ(read_parameter_shapes(values, 3), std::nullopt);
    EXPECT_EQ(read_parameter_shapes(values, 0), std::nullopt);
    EXPECT_EQ(read_parameter_shapes(values, ~0ull), std::nullopt);
    EXPECT_EQ(read_parameter_shapes({}, 1), std::nullopt);
    values.pop_back();
    EXPECT_EQ(read_parameter_shapes(values, 2), std::nullopt);
    const Model scalar = {contiguous({6, 5}), contiguous({}), contiguous({6})};
    EXPECT_EQ(read(scalar), std::nullopt);
}

// Never another reading than the true one; none where layers of one unit or transposed parameters
// leave several.
TEST(ParameterShapes, OfModelsDrawnAtRandom) {
    SCOPED_TRACE("seed " + std::to_string(test_seed()));
    std::mt19937 random(test_seed());
    for (const bool transposed : {false, true}) {
        int known = 0, wrong = 0;
        constexpr int kModels = 3000;
        for (int i = 0; i < kModels; ++i) {
            const Model model = test::draw_model(random, transposed);
            const std::optional<Model> shapes = read(model);
            known += shapes.has_value() ? 1 : 0;
            wrong += shapes.has_value() && *shapes != model ? 1 : 0;
        }
        std::printf("%d of %d models%s known, %d wrong\n", known, kModels,
                    transposed ? " with transposed parameters" : "", wrong);
        EXPECT_GT(known, kModels * (transposed ? 65 : 90) / 100);
        EXPECT_EQ(wrong, 0);
    }
}

TEST(ParameterShapes, OfDamagedTensorsNoneOrOneThatFits) {
    std::mt19937 random(test_seed());
    SCOPED_TRACE("seed " + std::to_string(test_seed()));
    for (int i = 0; i < 2000; ++i) {
        const Model model = test::draw_model(random, true);
        std::vector<int64_t> values = shapes_tensor(model);
        for (int times = values.empty() ? 0 : 3; times > 0; --times) {
            values[random() % values.size()] =
                random() % 2 == 0 ? static_cast<int64_t>(random() % 5)
                                  : static_cast<int64_t>((uint64_t{random()} << 32) | random());
        }
        const auto shapes = read_parameter_shapes(values, model.size());
        if (shapes.has_value()) {
            EXPECT_EQ(shapes->size(), model.size());
            EXPECT_EQ(shapes_tensor(*shapes), values);
        }
    }
}

// What a stranger's tensor could cost: all its values fit in every way. A test that hangs, else.
TEST(ParameterShapes, GivesUpOnTensorsOfOnes) {
    EXPECT_EQ(read_parameter_shapes(std::vector<int64_t>(100000, 1), 20000), std::nullopt);
}

TEST(ParameterShapes, OfLargeModels) {
    Model model;
    for (int64_t layer = 0; layer < 3000; ++layer) {
        model.push_back(contiguous({4096, 1024 + layer}));
        model.push_back(contiguous({4096}));
    }
    EXPECT_EQ(read(model), model);
}

// The matrix that the elements are as they lie in memory.
TEST(ParameterShapes, RowsAreTheOutermostInMemory) {
    const auto rows = [](std::vector<int64_t> sizes, std::vector<int64_t> strides) {
        return ParameterShape{std::move(sizes), std::move(strides)}.rows();
    };
    EXPECT_EQ(rows({30, 50}, {50, 1}), 30);
    EXPECT_EQ(rows({30, 50}, {1, 30}), 50);
    EXPECT_EQ(rows({8, 3, 5, 5}, {75, 1, 15, 3}), 8) << "channels last";
    EXPECT_EQ(rows({1, 40, 9}, {360, 9, 1}), 40);
    EXPECT_EQ(rows({1, 1}, {1, 1}), 1);
    EXPECT_EQ(rows({30, 50}, {}), 30) << "registered";
    EXPECT_EQ(rows({1, 50, 7}, {}), 50);
    EXPECT_EQ(rows({}, {}), 0);
}

}  // namespace
}  // namespace slimwire
