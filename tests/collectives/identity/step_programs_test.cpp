// The step detector on programs drawn at random: of each call the right key or "unsure". It may be
// wrong only where the last 64 calls stand for two tensors (step_traces.h), and there must not be
// many such places; where a step has long parts, not there either. Each kind of program finds what
// others do not: rules of the detector that were left out, one at a time, passed those before it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "collectives/identity/step_detector.h"
#include "tests/collectives/step_traces.h"
#include "tests/support/seed.h"

namespace slimwire {
namespace {

constexpr StepLimits kStepProgramsLimits;

enum class ProgramKind {
    kAny,         // short parts, jumps anywhere
    kLongParts,   // that come for nearly as long as a step that is learned, and halves of steps
    kNested,      // steps that have another one's calls in them, for as long as is no recall
    kRecalled,    // and for a little longer
    kManyBlocks,  // more than are remembered, one of them again and again
    kYoung,       // begins with parts of several kinds, nearly as often as is a step
};

// A program: a few steps of random calls, with parts that come several times with other tensors,
// put together by situations drawn at random.
class Program {
  public:
    Program(ProgramKind kind, std::mt19937& random) : kind_(kind), random_(random) {
        if (kind == ProgramKind::kManyBlocks) {
            take_turns();
        } else if (kind == ProgramKind::kNested || kind == ProgramKind::kRecalled) {
            nest(kind == ProgramKind::kRecalled);
        } else {
            draw_phases();
        }
    }
    Trace trace;
    size_t steps = 0;             // that were drawn
    size_t nested_calls = 0;      // of parts that may be taken for another step, each time
    std::vector<size_t> returns;  // to a step that is known

    [[nodiscard]] StreamCall kind_of(const TrueCall& call) const {
        return step_mark(call.signature) != StepMark::kNone ? StreamCall::kStartUp
               : kind_ != ProgramKind::kYoung               ? StreamCall::kOther
               : scatters_.count(call.signature) != 0       ? StreamCall::kReduceScatter
                                                            : StreamCall::kAllReduce;
    }

  private:
    int below(int bound) { return static_cast<int>(random_() % static_cast<unsigned>(bound)); }

    uint64_t letter(int letters) {
        const auto count = static_cast<uint64_t>(1000 + below(letters));
        if (kind_ == ProgramKind::kYoung && below(3) == 0) {
            return *scatters_.insert(signature_of(Op::kReduceScatter, count)).first;
        }
        return signature_of(Op::kAllReduce, count);
    }

    void add_part(Trace* step, int calls, int times) {
        std::vector<uint64_t> block;
        const int letters = 2 + below(6);
        for (int i = 0; i < calls; ++i) {
            block.push_back(letter(letters));
        }
        if (kind_ == ProgramKind::kYoung) {  // of both kinds
            block[0] = *scatters_.insert(signature_of(Op::kReduceScatter, 999)).first;
            block.push_back(signature_of(Op::kAllReduce, 999));
        }
        for (; times > 0; --times) {
            for (const uint64_t signature : block) {
                step->push_back({signature, ++tensors_});
            }
        }
    }

    // Something that stands in this step alone and once, so that it is one step and no other's.
    void add_own(Trace* step) {
        const auto count = static_cast<uint64_t>(++tensors_ + 100000);
        step->push_back(
            {*scatters_.insert(signature_of(Op::kReduceScatter, count)).first, tensors_});
    }

    Trace draw_step() {
        ++steps;
        Trace step;
        for (int part = 1 + below(4); part > 0; --part) {
            const int calls = 1 + below(8);
            if (kind_ != ProgramKind::kYoung && kind_ != ProgramKind::kLongParts) {
                add_part(&step, calls, 1 + below(40 / calls));
                continue;
            }
            if (kind_ == ProgramKind::kYoung) {
                add_part(&step, 1 + below(3), 2 + below(6));
            } else if (part == 1 && below(2) == 0) {
                add_part(&step, 256 + below(50), 2);
            } else {
                add_part(&step, 2 + below(3), 30 + below(90));
            }
            add_own(&step);  // two parts are not one
        }
        add_own(&step);
        return step;
    }

    void draw_phases() {
        const int phases = 3 + below(4);
        Trace step = draw_step();
        for (int phase = 0; phase < phases; ++phase) {
            play(step, kind_ == ProgramKind::kLongParts ? 4 + below(5) : 20 + below(400));
            situation(&step);
        }
        play(step, 300 + 3000 / static_cast<int>(step.size()));
    }

    // A step that is known comes as a part of another one, now and then or in each.
    void nest(bool recalled) {
        const Trace known = draw_step();
        const size_t size = known.size();
        const size_t least = std::max(2 * size, size_t{kStepProgramsLimits.recall_calls});
        play(known, 100 + 1600 / static_cast<int>(size));
        const size_t most = (least - 1) / size;  // times
        const size_t times = recalled ? most + 2 : 1 + random_() % most;
        Trace outer;
        add_part(&outer, 3, 2);
        for (int i = 0; i < (recalled ? 1 : 3); ++i) {  // apart
            for (size_t k = 0; k < times; ++k) {
                for (const TrueCall& call : known) {
                    outer.push_back({call.signature, ++tensors_});
                }
            }
            add_own(&outer);
        }
        ++steps;
        nested_calls = times * size;
        play(outer, recalled ? 40 : 8);
        play(known, 4 + 300 / static_cast<int>(size));
        play(outer, 10 + 700 / static_cast<int>(outer.size()));
    }

    // Evaluations, more than are remembered, between which training is taken up again at once.
    void take_turns() {
        const Trace training = draw_step();
        play(training, 12 + 1600 / static_cast<int>(training.size()));
        std::vector<Trace> others;
        for (uint32_t i = 0; i < kStepProgramsLimits.paths + 3; ++i) {
            others.push_back(draw_step());
        }
        for (size_t i = 0; i < 2 * others.size(); ++i) {
            const Trace& other = others[i % others.size()];
            // From another call on the second time.
            const size_t begin = i < others.size() ? 0 : random_() % other.size();
            trace.insert(trace.end(), other.begin() + static_cast<long>(begin), other.end());
            play(other, 4 + 700 / static_cast<int>(other.size()));
            returns.push_back(trace.size());
            play(training, 12 + 1000 / static_cast<int>(training.size()));
        }
    }

    void play(const Trace& step, int times) { append(&trace, step, times); }

    void situation(Trace* step) {
        const Trace old = *step;
        switch (below(kind_ == ProgramKind::kLongParts ? 4 : 7)) {
            case 0: {  // evaluation, once or for long
                const Trace evaluation = draw_step();
                play(evaluation, 1 + below(3) * below(kind_ == ProgramKind::kLongParts ? 5 : 200));
                break;
            }
            case 1:  // rebuilt
                *step = draw_step();
                break;
            case 2: {  // other counts, once
                Trace last = old;
                for (TrueCall& call : last) {
                    call = {call.signature + 4, ++tensors_};
                }
                append(&trace, last);
                break;
            }
            case 3:  // rebuilt alike but for a call, which the next ones show
                if (old.size() + 1 < kStepProgramsLimits.recall_calls) {
                    for (TrueCall& call : *step) {
                        call.tensor = ++tensors_;
                    }
                    ++steps;
                    add_own(step);
                    if (below(2) == 0) {  // in the place of another one
                        std::swap((*step)[static_cast<size_t>(below(static_cast<int>(old.size())))],
                                  step->back());
                        step->pop_back();
                    }
                }
                break;
            case 4:  // some steps longer
                for (int i = 0; i < 4; ++i) {
                    play(old, 2 + below(5));
                    append(&trace, {{signature_of(Op::kAllReduce, 1), 0}});
                }
                break;
            case 5:  // cut short
                trace.insert(trace.end(), old.begin(),
                             old.begin() + below(static_cast<int>(old.size())));
                break;
            case 6:  // now and then a call of something else
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

    const ProgramKind kind_;
    std::mt19937& random_;
    std::set<uint64_t> scatters_;
    int tensors_ = 0;
};

// Plays programs of a kind.
class StepPrograms : public testing::Test {
  protected:
    struct Counts {
        size_t calls = 0, sure = 0, open = 0, wrong = 0;
    };
    // `context`: so many calls tell which tensor one is, or nothing does.
    void play(ProgramKind kind, int programs, size_t context) {
        for (int i = 0; i < programs; ++i) {
            SCOPED_TRACE("seed " + std::to_string(seed_) + ", program " + std::to_string(i));
            const Program program(kind, random_);
            play(program, context);
            if (HasFatalFailure()) {
                return;
            }
        }
    }
    void play(const Program& program, size_t context) {
        const std::vector<bool> open = undecidable(program.trace, context);
        StepDetector detector;
        Judge judge, by_occurrence;
        Counts own;
        std::vector<bool> sure;
        for (size_t at = 0; at < program.trace.size(); ++at) {
            const TrueCall& call = program.trace[at];
            StepPosition place = detector.next(call.signature, program.kind_of(call));
            const bool right = judge.hear(call, place);
            place.ordinal = place.occurrence;
            const bool too = by_occurrence.hear(call, place);
            ASSERT_TRUE((right && too) || open[at]) << "call " << at;
            sure.push_back(place.known());
            own.wrong += right ? 0 : 1;
            own.open += open[at] ? 1 : 0;
        }
        // The last three hundred steps and more were in peace.
        EXPECT_GT(detector.step_calls(), 0u);
        // A step has one path, wherever it is learned.
        EXPECT_LE(judge.paths(), program.steps);
        for (const size_t at : program.returns) {
            size_t unsure = 0;
            for (; at + unsure < sure.size() && !sure[at + unsure]; ++unsure) {
            }
            EXPECT_LT(unsure, kStepProgramsLimits.learn_calls - 12) << "back at " << at;
        }
        // What was taken for another step is soon taken so no more.
        if (program.nested_calls > 0) {
            EXPECT_LE(own.wrong, 5 * program.nested_calls);
        }
        all_.calls += judge.calls();
        all_.sure += judge.sure();
        all_.open += own.open;
        all_.wrong += own.wrong;
    }

    const uint32_t seed_ = test_seed();
    std::mt19937 random_{seed_};
    Counts all_;
};

TEST_F(StepPrograms, RandomProgramsAreNeverWrongWhereTheCallsTell) {
    play(ProgramKind::kAny, 100, kStepProgramsLimits.recall_calls);
    const auto part = [&](size_t of) {
        return 100.0 * static_cast<double>(of) / static_cast<double>(all_.calls);
    };
    std::printf(
        "random programs: %zu calls, %.1f %% sure, %.2f %% undecidable, %.4f %% wrong there\n",
        all_.calls, part(all_.sure), part(all_.open), part(all_.wrong));
    EXPECT_LT(part(all_.open), 15);
    EXPECT_LT(part(all_.wrong), 0.1);
    EXPECT_GT(part(all_.sure), 95);
}

TEST_F(StepPrograms, PartsOfStepsAreNoSteps) {
    play(ProgramKind::kLongParts, 40, kStepProgramsLimits.learn_calls);
    EXPECT_GT(all_.sure * 2, all_.calls);
}

TEST_F(StepPrograms, KnownStepsInsideOthersAreThoseOfTheOthers) {
    play(ProgramKind::kNested, 60, kStepProgramsLimits.recall_calls);
}

TEST_F(StepPrograms, WhatIsTakenForAnotherStepIsSoonNot) {
    play(ProgramKind::kRecalled, 30, kStepProgramsLimits.recall_calls - 1);
}

TEST_F(StepPrograms, TheStepThatComesBackIsRemembered) {
    play(ProgramKind::kManyBlocks, 20, kStepProgramsLimits.recall_calls);
}

TEST_F(StepPrograms, YoungOnesAreLearnedOfWholeSteps) {
    play(ProgramKind::kYoung, 60, kStepProgramsLimits.recall_calls);
}

}  // namespace
}  // namespace slimwire
