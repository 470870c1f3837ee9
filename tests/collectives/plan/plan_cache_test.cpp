// The cache of plans: calls that differ in anything have plans of their own.
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "collectives/dispatch/planner.h"
#include "collectives/feedback/residual_store.h"
#include "collectives/plan/plan.h"
#include "tests/collectives/plan/plans.h"

namespace slimwire {
namespace {

TEST(PlanCache, FindsWhatWasInsertedAndNothingElse) {
    PlanCache cache;
    EXPECT_EQ(cache.find(sum_of(1)), nullptr);
    for (uint64_t count = 0; count < 5000; ++count) {
        Plan plan;
        plan.signature = sum_of(count * 3);
        ASSERT_NE(cache.insert(std::move(plan)), nullptr);
    }
    for (uint64_t count = 0; count < 15000; ++count) {
        const PlanEntry* entry = cache.find(sum_of(count));
        ASSERT_EQ(entry != nullptr, count % 3 == 0) << count;
        if (entry != nullptr) {
            EXPECT_EQ(entry->plan->signature.count, count);
        }
    }
    EXPECT_EQ(cache.find(sum_of(3, DType::kFloat16)), nullptr);
}

// Two buckets of one size are two kinds of calls, and two tensors.
TEST(PlanCache, TellsApartWhatCallsCarry) {
    PlanCache cache;
    CallSignature signature = sum_of(1 << 20);
    for (uint32_t ranges_id = 0; ranges_id < 200; ++ranges_id) {
        signature.ranges_id = ranges_id;
        EXPECT_EQ(cache.find(signature), nullptr) << ranges_id;
        Plan plan;
        plan.signature = signature;
        plan.scratch.bytes = ranges_id;
        cache.insert(std::move(plan));
    }
    std::set<uint32_t> drawn;
    for (uint32_t ranges_id = 0; ranges_id < 200; ++ranges_id) {
        signature.ranges_id = ranges_id;
        const PlanEntry* entry = cache.find(signature);
        ASSERT_NE(entry, nullptr) << ranges_id;
        EXPECT_EQ(entry->plan->scratch.bytes, ranges_id);
        drawn.insert(make_plan(signature, shape_of(4), int4_config()).draws.key.tensor);
    }
    EXPECT_EQ(drawn.size(), 200u) << "tensors draw different numbers";
    CallSignature other = signature;
    EXPECT_TRUE(other == signature);
    other.ranges_id = 7;
    EXPECT_FALSE(other == signature);
    TensorKey one, two;
    one.signature = signature;
    two.signature = other;
    EXPECT_TRUE(one < two || two < one);
}

TEST(PlanCache, KeepsApartWhatStandsElsewhereInTheStep) {
    PlanCache cache;
    CallSignature signature = sum_of(1 << 20);
    std::set<uint32_t> drawn;
    for (signature.ordinal = 0; signature.ordinal < 100; ++signature.ordinal) {
        EXPECT_EQ(cache.find(signature), nullptr) << signature.ordinal;
        Plan plan;
        plan.signature = signature;
        cache.insert(std::move(plan));
        drawn.insert(make_plan(signature, shape_of(4), int4_config()).draws.key.tensor);
    }
    EXPECT_EQ(drawn.size(), 100u) << "tensors draw different numbers";
    TensorKey one, two;
    one.signature.ordinal = 1;
    two.signature.ordinal = 2;
    EXPECT_TRUE(one < two || two < one);
}

}  // namespace
}  // namespace slimwire
