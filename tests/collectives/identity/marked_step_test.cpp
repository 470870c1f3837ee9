// Places of steps that the program marks: MarkedStep alone, and as TensorSlots chooses it.
#include "collectives/identity/tensor_slot.h"

#include <gtest/gtest.h>

namespace slimwire {
namespace {

constexpr uint64_t kLarge = 11, kSmall = 22, kOther = 33;

TEST(MarkedStep, APlaceIsTheCallOfItsKindSinceTheMark) {
    MarkedStep steps;
    for (uint64_t mark = 1; mark <= 3; ++mark) {
        uint32_t large = 0, small = 0;
        for (const uint64_t call : {kLarge, kSmall, kLarge, kLarge, kSmall}) {
            const StepPosition place = steps.next(call, mark, 70 + mark);
            EXPECT_TRUE(place.known());
            EXPECT_EQ(place.path, kMarkedPath);
            EXPECT_EQ(place.slot, kMarkedSlot);
            EXPECT_EQ(place.ordinal, call == kLarge ? large++ : small++);
            EXPECT_EQ(place.step, 70 + mark);
        }
        EXPECT_EQ(steps.steps(), mark - 1);
        EXPECT_EQ(steps.step_calls(), mark == 1 ? 0u : 5u);
    }
    // Calls that come in addition, or not at all, move no others.
    EXPECT_EQ(steps.next(kOther, 4, 4).ordinal, 0u);
    EXPECT_EQ(steps.next(kLarge, 4, 4).ordinal, 0u);
    EXPECT_EQ(steps.next(kOther, 4, 4).ordinal, 1u);
    EXPECT_EQ(steps.next(kLarge, 4, 4).ordinal, 1u);
    EXPECT_EQ(steps.next(kSmall, 4, 4).ordinal, 0u);
}

TEST(MarkedStep, WhatAGroupThatIsDroppedMadeNeverWas) {
    MarkedStep steps;
    (void)steps.next(kLarge, 1, 1);
    steps.begin_group();
    (void)steps.next(kLarge, 1, 1);
    (void)steps.next(kSmall, 1, 1);
    steps.rewind();
    EXPECT_EQ(steps.next(kLarge, 1, 1).ordinal, 1u);
    EXPECT_EQ(steps.next(kSmall, 1, 1).ordinal, 0u);
    steps.begin_group();
    (void)steps.next(kSmall, 1, 1);
    steps.begin_group();  // that one ran
    steps.rewind();
    EXPECT_EQ(steps.next(kSmall, 1, 1).ordinal, 2u);
    (void)steps.next(kSmall, 2, 2);
    EXPECT_EQ(steps.step_calls(), 5u);
}

TEST(MarkedStep, AProgramThatStoppedMarkingIsUnsureAfterManyCalls) {
    MarkedStep steps;
    for (uint32_t i = 0; i < MarkedStep::kMostCalls; ++i) {
        ASSERT_TRUE(steps.next(i, 1, 1).known());
    }
    EXPECT_FALSE(steps.next(1, 1, 1).known());
    EXPECT_FALSE(steps.next(kLarge, 1, 1).known());
    EXPECT_TRUE(steps.next(kLarge, 2, 2).known());
}

CallSignature sum_of(uint64_t count) {
    return {Op::kAllReduce, DType::kFloat32, RedOp::kSum, 0, count};
}
CallSignature message(Op op, int peer, uint64_t count) {
    return {op, DType::kFloat32, RedOp::kNone, peer, count, 0};
}

TEST(Places, MarksTakeTheDetectorsPlaceWithTheFirstOne) {
    Training training;
    TensorSlots places(training);
    CommStats stats;
    for (int i = 0; i < 700; ++i) {
        (void)places.next(sum_of(64), nullptr, 0, &stats);
        (void)places.next(sum_of(65), nullptr, 0, &stats);
    }
    StepPosition place = places.next(sum_of(64), nullptr, 0, &stats);
    ASSERT_TRUE(place.known());
    EXPECT_NE(place.path, kMarkedPath);
    EXPECT_EQ(stats.step_calls, 2u);
    training.mark_step(900);
    place = places.next(sum_of(64), nullptr, 0, &stats);
    EXPECT_EQ(place.path, kMarkedPath);
    EXPECT_EQ(place.ordinal, 0u);
    EXPECT_EQ(place.step, 900u);
    // What no detector follows.
    for (uint64_t count = 1; count < 50; ++count) {
        EXPECT_TRUE(places.next(sum_of(count), nullptr, 0, &stats).known());
    }
    EXPECT_EQ(places.next(sum_of(64), nullptr, 0, &stats).ordinal, 1u);
    training.mark_step(901);
    EXPECT_EQ(places.next(sum_of(64), nullptr, 0, &stats).ordinal, 0u);
    EXPECT_EQ(stats.step_calls, 51u);
    EXPECT_EQ(stats.steps, 1u);
}

// A job that comes back with weights that it gathers has the places of its first step.
TEST(Places, AStepThatIsToldHasThemAtOnceAndTheSameAsOneThatRepeats) {
    const CallSignature units[] = {{Op::kAllGather, DType::kFloat32, RedOp::kNone, 0, 64},
                                   {Op::kAllGather, DType::kFloat32, RedOp::kNone, 0, 65},
                                   {Op::kAllGather, DType::kFloat32, RedOp::kNone, 0, 64},
                                   {Op::kReduceScatter, DType::kFloat32, RedOp::kSum, 0, 64},
                                   {Op::kReduceScatter, DType::kFloat32, RedOp::kSum, 0, 64}};
    Training training;
    CommStats stats;
    const auto steps = [&](TensorSlots* places, int times) {
        std::vector<StepPosition> all;
        for (int i = 0; i < times; ++i) {
            for (const CallSignature& unit : units) {
                all.push_back(places->next(unit, nullptr, 0, &stats));
            }
        }
        return all;
    };
    TensorSlots learned(training);
    (void)steps(&learned, 20);
    const std::vector<StepPosition> wanted = steps(&learned, 1);
    ASSERT_TRUE(wanted[0].begins);
    EXPECT_EQ(learned.gathered().calls, 5u);
    EXPECT_EQ(learned.gathered().path, wanted[0].path);
    EXPECT_EQ(learned.gathered().steps, 21u);
    TensorSlots told(training);
    (void)told.next(sum_of(7), nullptr, 0, &stats);
    for (int i = 0; i < 3; ++i) {
        EXPECT_FALSE(told.next(units[i], nullptr, 0, &stats).known());
    }
    told.trust(1, 5, wanted[0].path);
    std::vector<StepPosition> got(3);
    for (int i = 3; i < 5; ++i) {
        got.push_back(told.next(units[i], nullptr, 0, &stats));
    }
    EXPECT_FALSE(told.next(sum_of(1), nullptr, 0, &stats).known()) << "a loss";
    for (uint64_t step = 1; step <= 20; ++step) {
        got.push_back(told.next(units[0], nullptr, 0, &stats));
        EXPECT_EQ(told.gathered().steps, step);
        EXPECT_EQ(told.gathered().path, wanted[0].path);
        for (int i = 1; i < 5; ++i) {
            got.push_back(told.next(units[i], nullptr, 0, &stats));
        }
    }
    for (size_t i = 3; i < got.size(); ++i) {
        const StepPosition& want = wanted[i % 5];
        EXPECT_EQ(got[i].path, want.path) << i;
        EXPECT_EQ(got[i].slot, want.slot);
        EXPECT_EQ(got[i].ordinal, want.ordinal);
        EXPECT_EQ(got[i].begins, want.begins);
    }
    // Another step than was told: nothing is sure.
    TensorSlots other(training);
    (void)other.next(units[0], nullptr, 0, &stats);
    other.trust(0, 3, wanted[0].path);
    EXPECT_TRUE(other.next(units[1], nullptr, 0, &stats).known());
    EXPECT_TRUE(other.next(units[2], nullptr, 0, &stats).known());
    EXPECT_FALSE(other.next(units[3], nullptr, 0, &stats).known());
}

TEST(Places, MessagesAreCountedForEachPeerAndDirection) {
    Training training;
    training.mark_step(1);
    TensorSlots places(training);
    CommStats stats;
    EXPECT_EQ(places.next(message(Op::kSend, 1, 64), nullptr, 0, &stats).ordinal, 0u);
    EXPECT_EQ(places.next(message(Op::kSend, 2, 64), nullptr, 0, &stats).ordinal, 0u);
    EXPECT_EQ(places.next(message(Op::kRecv, 1, 64), nullptr, 0, &stats).ordinal, 0u);
    EXPECT_EQ(places.next(sum_of(64), nullptr, 0, &stats).ordinal, 0u);
    EXPECT_EQ(places.next(message(Op::kSend, 1, 64), nullptr, 0, &stats).ordinal, 1u);
    EXPECT_EQ(stats.placed_calls, 5u);
}

TEST(Places, ADroppedGroupIsForgottenWithMarksToo) {
    Training training;
    training.mark_step(1);
    TensorSlots places(training);
    CommStats stats;
    (void)places.next(sum_of(64), nullptr, 0, &stats);
    (void)places.next(sum_of(64), nullptr, 5, &stats);
    (void)places.next(message(Op::kSend, 1, 64), nullptr, 5, &stats);
    places.drop(5);
    EXPECT_EQ(places.next(sum_of(64), nullptr, 6, &stats).ordinal, 1u);
    EXPECT_EQ(places.next(message(Op::kSend, 1, 64), nullptr, 6, &stats).ordinal, 0u);
    places.drop(5);  // not the last one that calls were given of
    EXPECT_EQ(places.next(sum_of(64), nullptr, 6, &stats).ordinal, 2u);
}

}  // namespace
}  // namespace slimwire
