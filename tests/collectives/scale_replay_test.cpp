// Where steps begin among the calls by which a loss scaler is replayed.
#include "collectives/scale_replay.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace slimwire {
namespace {

// One letter a call, '.' one that tells nothing, '|' what parts steps; what begins one is a capital
// after, or '!'.
std::string steps_of(ReplayedSteps* steps, const std::string& calls, uint64_t mark = 0) {
    std::string said;
    for (const char call : calls) {
        if (call == '|') {
            steps->part();
            continue;
        }
        const bool tells = call != '.';
        const bool begins = steps->next(mark, tells ? std::optional<uint64_t>(call) : std::nullopt);
        said += !begins ? call : tells ? static_cast<char>(call - 'a' + 'A') : '!';
    }
    return said;
}

TEST(ReplayedSteps, ATensorThatComesAgainBeginsOne) {
    ReplayedSteps steps;
    EXPECT_EQ(steps_of(&steps, "abcabcabc"), "AbcAbcAbc");
    EXPECT_EQ(steps.count(), 3u);
    EXPECT_EQ(steps_of(&steps, "acbdacbd"), "AcbdAcbd");  // in another order, and one more
    EXPECT_EQ(steps_of(&steps, "aaa"), "AAA");
}

TEST(ReplayedSteps, SoDoesWhatFollowsSomethingBetweenSteps) {
    ReplayedSteps steps;
    // DDP's first step has other buckets. Of several such things in a row, or before the first
    // call, comes no step.
    EXPECT_EQ(steps_of(&steps, "||ab||cde|cde|||cde"), "AbCdeCdeCde");
    EXPECT_EQ(steps.count(), 4u);
    // A tensor that was left out would leave the steps shifted but for that.
    EXPECT_EQ(steps_of(&steps, "|abc|bc|abc"), "AbcBcAbc");
}

// What is small and native may be a metric, again and again from one buffer, also in evaluation.
TEST(ReplayedSteps, OtherCallsBeginNoneButWhereItIsMarked) {
    ReplayedSteps steps;
    EXPECT_EQ(steps_of(&steps, "..ab..|..ab.|.|...ab"), "..Ab....Ab.....Ab");
    EXPECT_EQ(steps_of(&steps, "..a", 1), "!.a");
}

TEST(ReplayedSteps, MarksSayItInAProgramThatHasThem) {
    ReplayedSteps steps;
    EXPECT_EQ(steps_of(&steps, "abc"), "Abc");
    EXPECT_EQ(steps_of(&steps, "abcabc|a", 1), "Abcabca");
    EXPECT_EQ(steps_of(&steps, "a", 2), "A");
    EXPECT_EQ(steps_of(&steps, "bab", 4), "Bab");  // a step without calls of ours is none
    EXPECT_EQ(steps.count(), 4u);
}

TEST(ReplayedSteps, TensorsThatMoveDoNotPileUp) {
    ReplayedSteps steps;
    for (uint64_t call = 0; call < 3 * ReplayedSteps::kMostTensors; ++call) {
        ASSERT_EQ(steps.next(0, call), call == 0);
    }
    EXPECT_TRUE(steps.next(0, 3 * ReplayedSteps::kMostTensors - 1));
}

}  // namespace
}  // namespace slimwire
