#include "collectives/identity/parameter_registry.h"

#include <gtest/gtest.h>

#include "collectives/state/residual_map.h"

namespace slimwire {
namespace {

using Sizes = std::vector<int64_t>;
using Names = std::vector<std::string>;

Status add(ParameterRegistry* registry,
           uint32_t model,
           uint32_t index,
           const char* name,
           const Sizes& sizes) {
    return registry->add(model, index, name, sizes);
}
std::vector<ParameterShape> shapes_of(const std::vector<Sizes>& sizes) {
    std::vector<ParameterShape> shapes;
    for (const Sizes& of_one : sizes) {
        shapes.push_back({of_one, Sizes(of_one.size(), 1)});
    }
    return shapes;
}
const std::vector<Sizes> kModel = {{30, 20}, {30}, {}};

class Registered : public testing::Test {
  protected:
    void tell(uint32_t model, const Names& names) {
        for (uint32_t i = 0; i < names.size(); ++i) {
            ASSERT_TRUE(add(&registry_, model, i, names[i].c_str(), kModel[i]).ok());
        }
    }
    Names names_of(const std::vector<Sizes>& sizes) {
        return registry_.now()->names_of(shapes_of(sizes));
    }
    ParameterRegistry registry_;
};

TEST_F(Registered, AModelIsKnownByAllItsSizesInOrder) {
    EXPECT_EQ(names_of(kModel), Names{});
    tell(5, {"w", "b", "s"});
    EXPECT_EQ(names_of(kModel), (Names{"w", "b", "s"}));
    EXPECT_EQ(names_of({{30, 20}, {30}}), Names{}) << "one less";
    EXPECT_EQ(names_of({{30, 20}, {30}, {}, {}}), Names{}) << "one more";
    EXPECT_EQ(names_of({{30}, {30, 20}, {}}), Names{}) << "another order";
    EXPECT_EQ(names_of({{30, 20}, {31}, {}}), Names{}) << "another size";
    EXPECT_EQ(names_of({{30, 20}, {30, 1}, {}}), Names{}) << "another dimension";
    EXPECT_EQ(names_of({}), Names{});
}

TEST_F(Registered, AModelWithAGapIsNotComplete) {
    ASSERT_TRUE(add(&registry_, 1, 0, "w", kModel[0]).ok());
    ASSERT_TRUE(add(&registry_, 1, 2, "s", kModel[2]).ok());
    EXPECT_EQ(names_of(kModel), Names{});
    EXPECT_EQ(names_of({kModel[0], kModel[2]}), Names{});
    ASSERT_TRUE(add(&registry_, 1, 1, "b", {7}).ok());
    EXPECT_EQ(names_of(kModel), Names{});
    ASSERT_TRUE(add(&registry_, 1, 1, "b", kModel[1]).ok()) << "told again";
    EXPECT_EQ(names_of(kModel), (Names{"w", "b", "s"}));
}

TEST_F(Registered, TwoModelsOfEqualSizesHaveNamesOnlyIfTheyAgree) {
    tell(1, {"w", "b", "s"});
    tell(2, {"w", "b", "s"});
    EXPECT_EQ(names_of(kModel), (Names{"w", "b", "s"}));
    tell(3, {"w", "b", "other"});
    EXPECT_EQ(names_of(kModel), Names{});
    EXPECT_TRUE(registry_.forget(3));
    EXPECT_FALSE(registry_.forget(3));
    EXPECT_EQ(names_of(kModel), (Names{"w", "b", "s"}));
}

TEST_F(Registered, HowGroupsShareAParameterIsOneOfItsDimensions) {
    tell(1, {"w", "b", "s"});
    EXPECT_TRUE(registry_.now()->pieces().empty()) << "not told";
    for (const auto& [dimension, pieces] :
         {std::pair(0, 1u), std::pair(1, 30u), std::pair(-1, ResidualMap::kReplicated)}) {
        ASSERT_TRUE(registry_.split(1, 0, dimension).ok());
        EXPECT_EQ(registry_.now()->pieces(), (RegisteredParameters::Pieces{{{"w", 600}, pieces}}));
    }
    for (const int dimension : {-2, 2}) {
        EXPECT_EQ(registry_.split(1, 0, dimension).code(), Code::kInvalidArgument);
    }
    EXPECT_EQ(registry_.split(1, 2, 0).code(), Code::kInvalidArgument) << "it has none";
    EXPECT_EQ(registry_.split(1, 3, 0).code(), Code::kInvalidArgument);
    EXPECT_EQ(registry_.split(2, 0, 0).code(), Code::kInvalidArgument);
    tell(2, {"w"});
    ASSERT_TRUE(registry_.split(2, 0, 1).ok());
    EXPECT_EQ((registry_.now()->pieces().at({"w", 600})), 0u) << "told not the same";
}

TEST_F(Registered, WhatCannotBeIsRefusedAndChangesNothing) {
    tell(1, {"w", "b", "s"});
    EXPECT_EQ(add(&registry_, 1, 0, "", {1}).code(), Code::kInvalidArgument);
    EXPECT_EQ(add(&registry_, 1, 0, nullptr, {1}).code(), Code::kInvalidArgument);
    EXPECT_EQ(add(&registry_, 1, 0, "w", {-1}).code(), Code::kInvalidArgument);
    EXPECT_EQ(add(&registry_, 1, 0, "w", Sizes(kMaxParameterDimensions + 1, 1)).code(),
              Code::kInvalidArgument);
    EXPECT_EQ(add(&registry_, 1, kMostParameters, "w", {1}).code(), Code::kInvalidArgument);
    EXPECT_EQ(names_of(kModel), (Names{"w", "b", "s"}));
}

// Ranks compare the hash when a communicator is made, which goes by what was registered then.
TEST_F(Registered, TheHashSaysWhatWasRegistered) {
    EXPECT_EQ(registry_.now()->hash(), 0u);
    tell(1, {"w", "b", "s"});
    const auto before = registry_.now();
    ParameterRegistry other;
    EXPECT_TRUE(add(&other, 1, 2, "s", kModel[2]).ok());
    EXPECT_TRUE(add(&other, 1, 1, "b", kModel[1]).ok());
    EXPECT_NE(other.now()->hash(), before->hash());
    EXPECT_TRUE(add(&other, 1, 0, "w", kModel[0]).ok());
    EXPECT_EQ(other.now()->hash(), before->hash()) << "in any order";
    EXPECT_TRUE(add(&other, 1, 0, "v", kModel[0]).ok());
    EXPECT_NE(other.now()->hash(), before->hash()) << "another name";
    EXPECT_TRUE(add(&other, 1, 0, "w", {30, 21}).ok());
    EXPECT_NE(other.now()->hash(), before->hash()) << "another size";
    EXPECT_TRUE(registry_.forget(1));
    EXPECT_EQ(before->names_of(shapes_of(kModel)), (Names{"w", "b", "s"}));
    EXPECT_EQ(registry_.now()->hash(), 0u);
}

}  // namespace
}  // namespace slimwire
