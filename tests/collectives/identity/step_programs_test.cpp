// The step detector on programs drawn at random: of each call the right key or "unsure". It may be
// wrong only where the last 64 calls stand for two tensors (step_traces.h), and there must not be
// many such places.
#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "collectives/identity/step_detector.h"
#include "tests/collectives/step_traces.h"
#include "tests/support/seed.h"

namespace slimwire {
namespace {

constexpr StepLimits kStepProgramsLimits;

// A program: a few steps of random calls, with parts that come several times with other tensors,
// put together by situations drawn at random.
class Program {
  public:
    explicit Program(std::mt19937& random) : random_(random) {
        const int phases = 3 + below(4);
        Trace step = draw_step();
        for (int phase = 0; phase < phases; ++phase) {
            play(step, 20 + below(400));
            situation(&step);
        }
        play(step, 300 + 3000 / static_cast<int>(step.size()));
    }
    Trace trace;

  private:
    int below(int bound) { return static_cast<int>(random_() % static_cast<unsigned>(bound)); }

    Trace draw_step() {
        Trace step;
        const int letters = 2 + below(6);
        const int parts = 1 + below(4);
        for (int part = 0; part < parts; ++part) {
            std::vector<uint64_t> block;
            for (int i = 1 + below(8); i > 0; --i) {
                block.push_back(
                    signature_of(Op::kAllReduce, static_cast<uint64_t>(1000 + below(letters))));
            }
            for (int i = 1 + below(static_cast<int>(40 / block.size())); i > 0; --i) {
                for (const uint64_t signature : block) {
                    step.push_back({signature, ++tensors_});
                }
            }
        }
        // Something that stands in this step alone and once, so that it is one step and no other's.
        step.push_back(
            {signature_of(Op::kReduceScatter, static_cast<uint64_t>(++tensors_)), tensors_});
        return step;
    }

    void play(const Trace& step, int times) { append(&trace, step, times); }

    void situation(Trace* step) {
        const Trace old = *step;
        switch (below(6)) {
            case 0: {  // evaluation, once or for long
                const Trace evaluation = draw_step();
                play(evaluation, 1 + below(3) * below(200));
                break;
            }
            case 1:  // some steps longer
                for (int i = 0; i < 4; ++i) {
                    play(old, 2 + below(5));
                    append(&trace, {{signature_of(Op::kAllReduce, 1), 0}});
                }
                break;
            case 2:  // rebuilt
                *step = draw_step();
                break;
            case 3: {  // other counts, once
                Trace last = old;
                for (TrueCall& call : last) {
                    call = {call.signature + 1, ++tensors_};
                }
                append(&trace, last);
                break;
            }
            case 4:  // cut short
                trace.insert(trace.end(), old.begin(),
                             old.begin() + below(static_cast<int>(old.size())));
                break;
            case 5:  // now and then a call of something else
                for (int i = 0; i < 5; ++i) {
                    play(old, below(20));
                    const size_t cut = static_cast<size_t>(below(static_cast<int>(old.size())));
                    trace.insert(trace.end(), old.begin(), old.begin() + static_cast<long>(cut));
                    append(
                        &trace,
                        {{signature_of(Op::kAllReduce, static_cast<uint64_t>(1 + below(2))), 0}});
                    trace.insert(trace.end(), old.begin() + static_cast<long>(cut), old.end());
                }
                break;
        }
    }

    std::mt19937& random_;
    int tensors_ = 0;
};

TEST(StepPrograms, RandomProgramsAreNeverWrongWhereTheCallsTell) {
    const uint32_t seed = test_seed();
    std::mt19937 random(seed);
    size_t calls = 0, sure = 0, open_calls = 0, wrong = 0;
    for (int i = 0; i < 120; ++i) {
        const Program program(random);
        const std::vector<bool> open = undecidable(program.trace, kStepProgramsLimits.recall_calls);
        StepDetector detector;
        Judge judge;
        for (size_t at = 0; at < program.trace.size(); ++at) {
            const TrueCall& call = program.trace[at];
            const bool one = step_mark(call.signature) != StepMark::kNone;
            const bool right = judge.hear(
                call,
                detector.next(call.signature, one ? StreamCall::kStartUp : StreamCall::kOther));
            ASSERT_TRUE(right || open[at])
                << "seed " << seed << ", program " << i << ", call " << at;
            wrong += right ? 0 : 1;
            open_calls += open[at] ? 1 : 0;
        }
        calls += judge.calls();
        sure += judge.sure();
        // The last three hundred steps and more were in peace.
        EXPECT_EQ(detector.state(), StepState::kStable) << "seed " << seed << ", program " << i;
    }
    std::printf(
        "random programs: %zu calls, %.1f %% sure, %.2f %% undecidable, %.4f %% wrong there\n",
        calls, 100.0 * static_cast<double>(sure) / static_cast<double>(calls),
        100.0 * static_cast<double>(open_calls) / static_cast<double>(calls),
        100.0 * static_cast<double>(wrong) / static_cast<double>(calls));
    EXPECT_LT(open_calls * 10, calls);
    EXPECT_LT(wrong * 1000, calls);
    EXPECT_GT(sure * 2, calls);
}

}  // namespace
}  // namespace slimwire
