// Where steps begin among the calls by which a loss scaler is replayed.
#include "collectives/scale_replay.h"

#include <gtest/gtest.h>

#include <string>

namespace slimwire {
namespace {

// One letter a call, '|' for what parts steps; the letters that begin one are in capitals after.
std::string steps_of(ReplayedSteps* steps, const std::string& calls, uint64_t mark = 0) {
    std::string said;
    for (const char call : calls) {
        if (call == '|') {
            steps->part();
            continue;
        }
        const bool begins = steps->next(mark, static_cast<uint64_t>(call));
        said += static_cast<char>(begins ? call - 'a' + 'A' : call);
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
