// Steps that gather their parameters: where they begin, and how they are counted.
#include <gtest/gtest.h>

#include "collectives/identity/step_detector.h"
#include "tests/collectives/step_traces.h"

namespace slimwire {
namespace {

// One letter a call: G a gather, S a reduce-scatter, each of the unit that follows, N a norm.
StepPosition after(StepDetector* detector, const std::string& step, uint64_t scale, int times) {
    StepPosition place;
    for (int i = 0; i < times; ++i) {
        for (size_t at = 0; at < step.size(); at += 2) {
            const uint64_t count =
                step[at] == 'N' ? 1 : scale * static_cast<uint64_t>(step[at + 1]);
            const CallSignature call{step[at] == 'G'   ? Op::kAllGather
                                     : step[at] == 'S' ? Op::kReduceScatter
                                                       : Op::kAllReduce,
                                     DType::kFloat32, RedOp::kSum, 0, count};
            place = detector->next(call_signature(call), stream_call(call));
        }
    }
    return place;
}

TEST(GatheredSteps, AStepThatGathersItsParametersBeginsThereOnAnyNumberOfRanks) {
    const auto at_begin = [](const std::string& step, uint64_t scale) {
        StepDetector detector;
        EXPECT_TRUE(after(&detector, step, scale, 20).known());
        return after(&detector, step.substr(0, 2), scale, 1);
    };
    const std::string forward = "G1G2G3", backward = "S3G2S2G1S1";
    const StepPosition place = at_begin(forward + backward, 1000);
    EXPECT_TRUE(place.begins);
    EXPECT_EQ(place.ordinal, 0u);
    EXPECT_EQ(at_begin(forward + backward, 250).path, place.path);
    EXPECT_FALSE(at_begin("G2G3S3G2S2G1S1G1", 1000).begins) << "in the middle of the forward pass";
    EXPECT_FALSE(at_begin(backward + forward, 1000).begins);
    EXPECT_TRUE(at_begin(forward + backward + forward + backward + "N1", 1000).begins)
        << "behind the norm, and not in the middle of the accumulation";
    // What is gathered beside sums of all ranks is no parameters.
    EXPECT_FALSE(at_begin("G1A2A3A4", 1000).begins);
    StepDetector detector;
    (void)after(&detector, forward + "S3G2S2G2S2", 1000, 20);
    const StepPosition again = after(&detector, forward + "S3G2", 1000, 1);
    EXPECT_EQ(again.ordinal, 1u) << "the second gather of these parameters";
    EXPECT_EQ(again.occurrence, 1u);
    EXPECT_FALSE(again.begins);
}

// Steps that gather their parameters are counted from the first on, whatever comes between, and
// what comes behind a whole one does not hide where the next begins: of the first step after a
// state was gathered a saving is wanted.
TEST(GatheredSteps, StepsThatGatherAreCountedThroughLossesEvaluationsAndCheckpoints) {
    const std::string forward = "G1G2G3", step = forward + "S3G2S2G1S1";
    StepDetector detector;
    uint64_t ended = 0;
    int found = 0;
    const auto train = [&](const std::string& how, int times) {
        for (int i = 0; i < times; ++i, ++ended) {
            if (after(&detector, how.substr(0, 2), 1000, 1).begins) {
                EXPECT_EQ(detector.gathered().steps(), ended);
                ++found;
            }
            (void)after(&detector, how.substr(2), 1000, 1);
        }
    };
    (void)after(&detector, "G9S9", 1000, 2);  // something before
    train(step, 120);
    ASSERT_GT(detector.step_calls(), 0u);
    for (int round = 0; round < 5; ++round) {
        const int before = found;
        (void)after(&detector, "N1", 1000, 3);  // losses
        train(step, 2);
        EXPECT_GT(detector.step_calls(), 0u);
        EXPECT_EQ(found, before + 2);
        (void)after(&detector, "N1G8G2", 1000, 1);  // a checkpoint
        train(step, 1);
        EXPECT_EQ(found, before + 3) << "the step behind it";
        train(step, 60);
        EXPECT_GE(found, before + 3 + 50);
        const int evaluated = found;
        (void)after(&detector, forward, 1000, round < 3 ? 3 : 300);
        train(step, 60);
        EXPECT_GE(found, evaluated + 50);
    }
    // Other units from here on; then both kinds of steps in turn.
    const std::string other = "G1G4S4G1S1";
    train(other, 150);
    EXPECT_EQ(detector.gathered().calls, 5u);
    for (int round = 0; round < 3; ++round) {
        const int before = found;
        train(step, 60);
        train(other, 60);
        EXPECT_GE(found, before + 80);
    }
    // A group that is dropped never was.
    detector.mark();
    (void)after(&detector, other, 1000, 7);
    detector.rewind();
    const int before = found;
    train(other, 3);
    EXPECT_EQ(found, before + 3);
}

}  // namespace
}  // namespace slimwire
