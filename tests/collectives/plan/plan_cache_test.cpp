// The cache of plans: calls that differ in anything have plans of their own.
#include <gtest/gtest.h>

#include <functional>
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

// Two buckets of one size, or two places in the step, are two kinds of calls and two tensors.
TEST(PlanCache, TellsApartWhatCallsCarryAndWhereTheyStand) {
    for (uint32_t CallSignature::*member : {&CallSignature::ranges_id, &CallSignature::ordinal}) {
        PlanCache cache;
        CallSignature signature = sum_of(1 << 20);
        std::set<uint32_t> drawn;
        for (uint32_t value = 0; value < 200; ++value) {
            signature.*member = value;
            EXPECT_EQ(cache.find(signature), nullptr) << value;
            Plan plan;
            plan.signature = signature;
            plan.scratch.bytes = value;
            EXPECT_EQ(cache.insert(std::move(plan))->plan->scratch.bytes, value);
            EXPECT_EQ(cache.find(signature)->plan->scratch.bytes, value);
            drawn.insert(make_plan(signature, shape_of(4), int4_config()).draws.key.tensor);
        }
        EXPECT_EQ(drawn.size(), 200u) << "tensors draw different numbers";
        TensorKey one, two;
        one.signature = two.signature = signature;
        two.signature.*member = 7;
        EXPECT_FALSE(one.signature == two.signature);
        EXPECT_TRUE(one < two || two < one);
    }
}

}  // namespace
}  // namespace slimwire
