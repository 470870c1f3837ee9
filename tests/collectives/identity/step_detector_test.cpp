// The step detector in named situations, whose tensors are known: of each call the right key or
// "unsure", to the last call.
#include "collectives/identity/step_detector.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <random>

#include "tests/collectives/step_traces.h"
#include "tests/support/seed.h"

namespace slimwire {
namespace {

constexpr StepLimits kLimits;

// By when an undisturbed step must have been learned: three of it and the least run, the look that
// comes next, and no more.
size_t learned_after(size_t period) {
    const size_t calls = std::max<size_t>(kLimits.learn_calls, 3 * period);
    return calls + std::max<size_t>(64, calls / 3) + 1;
}
size_t recalled_after(size_t period) {
    return std::max<size_t>(kLimits.recall_calls, 2 * period) + period;
}

class DetectedSteps : public testing::Test {
  protected:
    // Makes the calls, of which each is right or unsure. Returns which of them were sure.
    std::vector<bool> play(const Trace& calls, int times = 1) {
        std::vector<bool> sure;
        for (; times > 0; --times) {
            EXPECT_EQ(wrong_answers(calls, &detector_, &judge_, &sure), 0u);
        }
        return sure;
    }
    [[nodiscard]] size_t step_calls() const { return detector_.step_calls(); }  // 0: not stable
    // Calls before the first that was sure.
    static size_t unsure(const std::vector<bool>& sure) {
        return static_cast<size_t>(std::find(sure.begin(), sure.end(), true) - sure.begin());
    }
    static bool all_sure(const std::vector<bool>& sure, size_t from) {
        return std::all_of(sure.begin() + static_cast<long>(from), sure.end(),
                           [](bool is) { return is; });
    }
    StepDetector detector_;
    Judge judge_;
};

TEST_F(DetectedSteps, RecordedDdpIsSureOnceItsBucketsAreRebuiltAndStaysSo) {
    const RecordedDdp ddp;
    play(ddp.until_rebuilt());
    EXPECT_EQ(step_calls(), 0u);
    const std::vector<bool> sure = play(ddp.step(), 1000);
    EXPECT_LE(unsure(sure), learned_after(4));
    EXPECT_TRUE(all_sure(sure, unsure(sure)));
    EXPECT_EQ(judge_.split(), 0u);
    EXPECT_EQ(step_calls(), 4u);
}

// Many a communicator makes a few calls only.
TEST(StepDetector, FewCallsTakeLittleMemory) {
    const size_t before = mallinfo2().uordblks;
    StepDetector detector;
    for (uint64_t call = 0; call < 20; ++call) {
        (void)detector.next(call);
    }
    EXPECT_LE(mallinfo2().uordblks - before, 2500u);
}

TEST_F(DetectedSteps, OrdinalsAndStepsCountOn) {
    StepPosition before;
    const Trace step = RecordedDdp().step();
    for (size_t call = 0; call < 1600; ++call) {
        const StepPosition place = detector_.next(step[call % step.size()].signature);
        if (before.known()) {
            const bool wraps = before.ordinal == 3;
            EXPECT_EQ(place.ordinal, wraps ? 0 : before.ordinal + 1);
            EXPECT_EQ(place.step, before.step + (wraps ? 1 : 0));
            EXPECT_EQ(place.path, before.path);
            EXPECT_EQ(place.slot, before.slot);
        }
        before = place;
    }
    EXPECT_GT(before.step, 100u);
}

// Layers of equal size make long runs of one and two calls at the start of the first step; neither
// is taken for a step, and the layers are told apart.
TEST_F(DetectedSteps, EqualLayersOfAShardedModelAreToldApart) {
    for (const int layers : {1, 2, 12, 32, 126, 250}) {
        const Trace step = sharded_step(layers);
        detector_ = StepDetector();
        judge_ = Judge();
        const auto sure =
            play(step, static_cast<int>(2 * learned_after(step.size()) / step.size()));
        EXPECT_EQ(step_calls(), step.size());
        EXPECT_EQ(judge_.split(), 0u);
        EXPECT_LE(unsure(sure), learned_after(step.size())) << layers;
        EXPECT_GE(unsure(sure) + 1, 3 * step.size()) << "three times, not two";
    }
}

TEST_F(DetectedSteps, EvaluationIsUnsureUntilKnownAndTrainingIsTakenUpAgain) {
    const Trace step = sharded_step(12);
    Trace metrics(step.begin(), step.begin() + 13);  // the forward pass: the same tensors
    metrics.push_back({signature_of(Op::kAllReduce, 2), 7});
    play(step, 60);
    ASSERT_EQ(step_calls(), step.size());
    for (const int batches : {5, 5, 200, 200}) {
        play(metrics, batches);
        EXPECT_EQ(step_calls(), batches < 10 ? 0u : metrics.size());
        const std::vector<bool> sure = play(step, 10);
        EXPECT_EQ(step_calls(), step.size());
        EXPECT_TRUE(all_sure(sure, 13 + recalled_after(step.size())));
    }
    EXPECT_EQ(judge_.split(), 0u);
    EXPECT_EQ(judge_.paths(), 2u);
}

TEST_F(DetectedSteps, AccumulationMakesSomeStepsLonger) {
    const Trace norm = {{signature_of(Op::kAllReduce, 1), 7}};  // for clipping
    Trace step, longer;
    append(&step, sharded_step(8), 4);
    append(&longer, sharded_step(8), 6);
    append(&step, norm);
    append(&longer, norm);
    play(step, 60);
    EXPECT_EQ(step_calls(), step.size()) << "the whole step, not one of its four parts";
    for (int i = 0; i < 5; ++i) {
        play(longer);
        EXPECT_EQ(step_calls(), 0u);
        play(step, 6);
        EXPECT_EQ(step_calls(), step.size());
    }
}

// A part of the step that was once a step by itself is not taken up again in place of the whole.
TEST_F(DetectedSteps, AStepThatBecameAPartOfAnotherGivesWay) {
    play(RecordedDdp().step(), 500);
    ASSERT_EQ(step_calls(), 4u);
    Trace step;
    append(&step, RecordedDdp().step(), 20);
    step.push_back({signature_of(Op::kAllReduce, 1), 7});
    const std::vector<bool> sure = play(step, 60);
    EXPECT_EQ(step_calls(), 81u);
    EXPECT_TRUE(all_sure(sure, sure.size() - 81 * 10));
}

TEST_F(DetectedSteps, RebuiltBucketsAreAnotherStep) {
    Trace after = RecordedDdp().step();
    after[2] = {signature_of(Op::kAllReduce, 12000), 20};
    after[3] = {signature_of(Op::kAllReduce, 9840), 21};
    play(RecordedDdp().step(), 400);
    play(RecordedDdp().rebuild);
    EXPECT_LE(unsure(play(after, 400)), learned_after(4));
    EXPECT_EQ(judge_.paths(), 2u);
    EXPECT_EQ(judge_.split(), 0u);
}

// The last batch of an epoch is short: its calls have other counts, once.
TEST_F(DetectedSteps, AChangedBatchIsUnsureAndTheStepGoesOn) {
    Trace step, last;
    for (int i = 0; i < 6; ++i) {
        const auto odd = static_cast<uint64_t>(i % 2);
        step.push_back({signature_of(Op::kAllToAll, 1000 + odd), i});
        last.push_back({signature_of(Op::kAllToAll, 500 + odd), 10 + i});
    }
    for (Trace* const each : {&step, &last}) {
        each->push_back({signature_of(Op::kAllReduce, 5000), 6});
    }
    play(step, 300);
    for (int epoch = 0; epoch < 5; ++epoch) {
        EXPECT_EQ(unsure(play(last)), last.size());
        play(step, 60);
        EXPECT_EQ(step_calls(), step.size());
    }
    EXPECT_EQ(judge_.split(), 0u);
    EXPECT_EQ(judge_.paths(), 1u);
}

// A process that comes back has the keys it had, wherever it died and begins; so has one whose loop
// caught the error in the middle of a step and begins anew.
TEST_F(DetectedSteps, CrashAndRestartGiveTheSameKeys) {
    const Trace step = sharded_step(6);
    for (const long begin : {0, 5, 11}) {
        detector_ = StepDetector();
        play({step.begin() + begin, step.end()});
        play(step, 80);
        EXPECT_EQ(step_calls(), step.size()) << begin;
    }
    for (int life = 0; life < 4; ++life) {
        play({step.begin(), step.begin() + 7 + 2 * life});
        play(step, 80);
    }
    EXPECT_EQ(judge_.split(), 0u);
    EXPECT_EQ(judge_.paths(), 1u);
}

// Threads of a program make calls on several communicators in any order; each has a detector.
TEST(StepDetector, InterleavedCommunicatorsDoNotDisturbEachOther) {
    std::mt19937 random(test_seed());
    const Trace steps[3] = {sharded_step(5), RecordedDdp().step(), sharded_step(9, 9000)};
    StepDetector detectors[3];
    Judge judges[3];
    size_t next[3] = {};
    for (int i = 0; i < 9000; ++i) {
        const size_t which = random() % 3;
        const TrueCall& call = steps[which][next[which]++ % steps[which].size()];
        EXPECT_TRUE(judges[which].hear(call, detectors[which].next(call.signature)));
    }
    for (size_t which = 0; which < 3; ++which) {
        EXPECT_EQ(detectors[which].step_calls(), steps[which].size());
        EXPECT_GT(judges[which].sure(), 1500u);
        EXPECT_EQ(judges[which].split(), 0u);
    }
}

// The same seen as one stream would have no step.
TEST(StepDetector, WithoutAStepNothingIsSure) {
    std::mt19937 random(test_seed());
    StepDetector detector;
    for (int i = 0; i < 100000; ++i) {
        EXPECT_FALSE(detector.next(signature_of(Op::kAllReduce, random() % 3)).known());
    }
    EXPECT_EQ(detector.step_calls(), 0u);
}

// One all-reduce a step: known from the third on, behind what a program starts up with.
TEST(StepDetector, EqualAllReducesFromTheStartAreStepsOfOneCall) {
    StepDetector detector;
    const auto next = [&](Op op, uint64_t count, DType dtype = DType::kFloat32) {
        CallSignature signature;
        signature.op = op;
        signature.count = count;
        signature.dtype = dtype;
        signature.redop = reduces(op) ? RedOp::kSum : RedOp::kNone;
        return detector.next(call_signature(signature), stream_call(signature));
    };
    EXPECT_FALSE(next(Op::kAllGather, 1, DType::kInt64).known());
    EXPECT_FALSE(next(Op::kBroadcast, 5000).known());
    EXPECT_FALSE(next(Op::kAllReduce, 1).known());
    for (uint64_t step = 0; step < 1000; ++step) {
        const StepPosition place = next(Op::kAllReduce, 4096);
        ASSERT_EQ(place.known(), step >= 2) << step;
        EXPECT_EQ(place.ordinal, 0u);
        EXPECT_EQ(place.occurrence, 0u);
    }
    EXPECT_EQ(detector.step_calls(), 1u);
    // Another call is unsure, and so are the next.
    EXPECT_FALSE(next(Op::kAllReduce, 2).known());
    EXPECT_FALSE(next(Op::kAllReduce, 4096).known());
    for (uint32_t step = 0; step < kLimits.recall_calls; ++step) {
        (void)next(Op::kAllReduce, 4096);
    }
    EXPECT_GT(detector.step_calls(), 0u);
}

// Runs of one call are layers elsewhere, and everywhere of other operations.
TEST(StepDetector, OtherEqualCallsAreNeverAStep) {
    StepDetector gathers, later;
    (void)later.next(signature_of(Op::kAllReduce, 100), StreamCall::kAllReduce);
    for (int i = 0; i < 50000; ++i) {
        ASSERT_FALSE(gathers.next(signature_of(Op::kAllGather, 4096), StreamCall::kOther).known());
        ASSERT_FALSE(
            later.next(signature_of(Op::kAllReduce, 4096), StreamCall::kAllReduce).known());
    }
}

// A small sharded job: eight steps from its first call on, if they are of several kinds.
TEST(StepDetector, AYoungStreamOfSeveralKindsIsLearnedAfterEightSteps) {
    const auto learned = [](const std::vector<CallSignature>& step) {
        StepDetector detector;
        for (size_t i = 0;; ++i) {
            const CallSignature& signature = step[i % step.size()];
            if (detector.next(call_signature(signature), stream_call(signature)).known()) {
                return i;
            }
        }
    };
    CallSignature gather, scatter, sum, norm;
    gather.op = Op::kAllGather;
    gather.count = scatter.count = 512;
    scatter.op = Op::kReduceScatter;
    scatter.redop = sum.redop = norm.redop = RedOp::kSum;
    sum.count = 640;
    norm.count = 1;
    EXPECT_EQ(learned({gather, gather, scatter, gather, scatter}), 8u * 5 - 1);
    EXPECT_EQ(learned({sum, norm}), 8u * 2 - 1);
    CallSignature other = sum;
    other.count = 641;
    EXPECT_GE(learned({sum, other}), kLimits.learn_calls - 1u) << "layers may be so";
    EXPECT_EQ(learned({gather, other, gather, gather, gather, sum, other}), 8u * 7 - 1);
}

// The header says so: two equal halves are taken for two steps. What keeps their residuals apart is
// not the detector's to know.
TEST(StepDetector, EqualHalvesOfAStepAreTakenForSteps) {
    Trace step = RecordedDdp().step();
    for (const TrueCall& call : RecordedDdp().step()) {
        step.push_back({call.signature, call.tensor + 50});
    }
    StepDetector detector;
    Judge judge;
    Trace trace;
    append(&trace, step, 400);
    EXPECT_GT(wrong_answers(trace, &detector, &judge), 0u);
    EXPECT_EQ(detector.step_calls(), 4u);
    const std::vector<bool> open = undecidable(trace, 64);
    EXPECT_GT(std::count(open.begin(), open.end(), true), 3000);
}

// What a group's calls did is undone to the last bit, a step learned or left in it too.
TEST(StepDetector, RewoundCallsNeverWere) {
    std::mt19937 random(test_seed());
    const Trace steps[2] = {sharded_step(7), sharded_step(3, 9000)};
    StepDetector detector, never;
    for (int round = 0; round < 400; ++round) {
        detector.mark();
        const Trace& dropped = steps[random() % 2];
        for (unsigned i = round % 25 == 0 ? 16000 : random() % 100; i > 0; --i) {
            (void)detector.next(dropped[i % dropped.size()].signature);
        }
        detector.rewind();
        const Trace& made = steps[round / 150 % 2];
        for (const TrueCall& call : made) {
            const StepPosition place = detector.next(call.signature);
            const StepPosition expected = never.next(call.signature);
            ASSERT_EQ(place.path, expected.path) << round;
            ASSERT_EQ(place.ordinal, expected.ordinal) << round;
            ASSERT_EQ(place.slot, expected.slot) << round;
            ASSERT_EQ(place.step, expected.step) << round;
        }
    }
    EXPECT_GT(detector.step_calls(), 0u);
}

TEST(StepDetector, BothEndsOfAMessageHaveOneSignature) {
    CallSignature send, receive;
    send.op = Op::kSend;
    send.root_or_peer = 3;
    send.count = receive.count = 77;
    receive.op = Op::kRecv;
    receive.root_or_peer = 1;
    EXPECT_EQ(call_signature(send), call_signature(receive));
    CallSignature other = send;
    other.count = 78;
    EXPECT_NE(call_signature(send), call_signature(other));
    other = send;
    other.dtype = DType::kBfloat16;
    EXPECT_NE(call_signature(send), call_signature(other));
    CallSignature rooted;
    rooted.op = Op::kBroadcast;
    other = rooted;
    other.root_or_peer = 1;
    EXPECT_NE(call_signature(rooted), call_signature(other));
    other = rooted;
    other.redop = RedOp::kSum;
    EXPECT_NE(call_signature(rooted), call_signature(other));
}

// Where a step has a flag of an overflow or a norm, it begins behind them; equal calls are counted
// from there.
TEST(StepDetector, StepsBeginBehindTheirMarks) {
    CallSignature one;
    one.count = 1;
    one.redop = RedOp::kMax;
    const uint64_t flag = call_signature(one);
    one.redop = RedOp::kSum;
    const uint64_t norm = call_signature(one);
    EXPECT_EQ(step_mark(flag), StepMark::kFlag);
    EXPECT_EQ(step_mark(norm), StepMark::kNorm);
    EXPECT_EQ(step_mark(signature_of(Op::kAllReduce, 2)), StepMark::kNone);
    EXPECT_EQ(step_mark(signature_of(Op::kBroadcast, 1)), StepMark::kNone);
    const auto sum = [](uint64_t count) { return signature_of(Op::kAllReduce, count); };
    // Of each the first call is where the step begins, a norm alone (a loss) inside or not.
    const std::vector<std::vector<uint64_t>> steps = {
        {sum(10), sum(20), sum(10), flag, norm},
        {sum(10), sum(10), sum(20), norm, flag},
        {sum(20), sum(10), norm},
        {sum(10), sum(20), sum(30), flag},
        {sum(30), norm, sum(20), sum(10), flag},
        {sum(20), norm, norm, sum(10), norm, flag, norm}};
    for (size_t n = 0; n < steps.size(); ++n) {
        const auto& step = steps[n];
        for (size_t start = 0; start < step.size(); ++start) {
            StepDetector detector;
            for (size_t i = 0; i < 1200; ++i) {
                const size_t at = (start + i) % step.size();
                const StepPosition place = detector.next(step[at]);
                if (place.known()) {
                    ASSERT_EQ(place.ordinal, at) << "step " << n << ", start " << start;
                    const auto here = step.begin() + static_cast<long>(at);
                    ASSERT_EQ(place.occurrence, std::count(step.begin(), here, *here));
                    ASSERT_EQ(place.equals, std::count(step.begin(), step.end(), *here));
                }
            }
            EXPECT_GT(detector.step_calls(), 0u);
        }
    }
    // So many marks are of something else.
    std::vector<uint64_t> layers;
    for (uint64_t i = 0; i < 20; ++i) {
        layers.insert(layers.end(), {sum(100 + i), flag});
    }
    StepDetector detector;
    StepPosition place;
    for (size_t i = 0; i < 1200; ++i) {
        place = detector.next(layers[i % layers.size()]);
    }
    EXPECT_TRUE(place.known());
}

}  // namespace
}  // namespace slimwire
