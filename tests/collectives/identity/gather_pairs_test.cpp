// Which gathers belong to which reduce-scatters: schedules of sharded training as frameworks issue
// them, with the answer written beside, and what must not be paired.
#include "collectives/identity/gather_pairs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace slimwire {
namespace {

// "g3:5" gathers unit 3, of 5 elements a rank; "s3:5" reduces it. The key of a call says its kind,
// its count and how many of these came before in the step, as the place does.
struct Schedule {
    std::vector<StepCall> calls;
    std::vector<int> units;  // of each call
    static inline const char shards[16] = {};

    // `addresses`: every unit is sent from its own.
    explicit Schedule(const std::string& text, bool addresses = true) {
        size_t at = 0;
        while (at < text.size()) {
            const size_t end = std::min(text.find(' ', at), text.size());
            const bool scatter = text[at] == 's';
            const size_t colon = text.find(':', at);
            const int unit = std::stoi(text.substr(at + 1, colon - at - 1));
            const auto count = static_cast<uint64_t>(std::stoi(text.substr(colon + 1, end)));
            uint64_t nth = 0;
            for (const StepCall& call : calls) {
                nth += call.scatter == scatter && call.count == count ? 1 : 0;
            }
            calls.push_back({count * 1000 + nth * 2 + (scatter ? 1 : 0), count, scatter,
                             addresses ? shards + unit : nullptr});
            units.push_back(unit);
            at = end + 1;
        }
    }
    // The unit that a pair says; -1: none.
    [[nodiscard]] int unit_of(const GatherPair& pair) const {
        for (size_t i = 0; i < calls.size(); ++i) {
            if (calls[i].scatter && calls[i].key == pair.unit) {
                return units[i];
            }
        }
        return -1;
    }
    // Every gather is paired with its own unit, and the first of each says so.
    [[nodiscard]] std::string wrong(const std::vector<GatherPair>& pairs) const {
        for (size_t i = 0; i < calls.size(); ++i) {
            if (calls[i].scatter) {
                if (pairs[i].unit != 0) {
                    return "a reduce-scatter is paired";
                }
                continue;
            }
            if (unit_of(pairs[i]) != units[i]) {
                return "call " + std::to_string(i) + " of unit " + std::to_string(units[i]) +
                       " is paired with " + std::to_string(unit_of(pairs[i]));
            }
        }
        return {};
    }
};

// FSDP without prefetch; with it; with the last unit kept, with and without prefetch; with the root
// kept; units of one size and of several; the
// root in front; two passes of an accumulation that reduces each.
const char* const kSchedules[] = {
    "g0:8 g1:8 g2:8 g2:8 s2:8 g1:8 s1:8 g0:8 s0:8",
    "g0:8 g1:8 g2:8 g2:8 g1:8 s2:8 g0:8 s1:8 s0:8",
    "g0:8 g1:8 g2:8 g1:8 s2:8 g0:8 s1:8 s0:8",
    "g0:8 g1:8 g2:8 s2:8 g1:8 s1:8 g0:8 s0:8",
    "g0:8 g1:8 g2:8 g2:8 s2:8 g1:8 s1:8 s0:8",
    "g0:3 g1:8 g2:5 g3:8 g3:8 s3:8 g2:5 s2:5 g1:8 s1:8 s0:3",
    "g0:8 g0:8 s0:8",
    "g0:8 g1:5 g1:5 s1:5 g0:8 s0:8",
    "g0:8 g1:8 g2:8 g2:8 s2:8 g1:8 s1:8 g0:8 s0:8 g0:8 g1:8 g2:8 g2:8 s2:8 g1:8 s1:8 g0:8 s0:8",
};

TEST(GatherPairs, OfSchedulesOfFrameworks) {
    for (const char* text : kSchedules) {
        SCOPED_TRACE(text);
        const Schedule schedule(text);
        const std::vector<GatherPair> pairs = pair_gathers(schedule.calls);
        EXPECT_EQ(schedule.wrong(pairs), "");
        // Exactly one first gather for each reduce-scatter.
        const auto firsts = std::count_if(pairs.begin(), pairs.end(),
                                          [](const GatherPair& pair) { return pair.first; });
        const auto scatters = std::count_if(schedule.calls.begin(), schedule.calls.end(),
                                            [](const StepCall& call) { return call.scatter; });
        EXPECT_EQ(firsts, scatters);
    }
}

TEST(GatherPairs, NotOfWhatIsNoShardedTraining) {
    const char* const kOthers[] = {
        "s0:8 s1:8 s2:8 g0:8 g1:8 g2:8",  // ZeRO-1: the optimizer's results, behind
        "g0:8 g1:8 g2:8",                 // evaluation
        "s0:8 s1:8",                      // nothing is gathered
        "g0:8 g1:8 s9:5",                 // of other sizes
        "g0:8 g0:8 g0:8 s0:8",            // thrice
        "g0:8 s0:8 s1:8",                 // less than once
        "s0:8",
    };
    for (const char* text : kOthers) {
        SCOPED_TRACE(text);
        for (const GatherPair& pair : pair_gathers(Schedule(text).calls)) {
            EXPECT_EQ(pair.unit, 0u);
        }
    }
}

TEST(GatherPairs, WhichUnitWasKeptOnlyAddressesTell) {
    // The same calls, but for who is who.
    for (const char* text : {"g0:8 g1:8 g2:8 g3:5 g3:5 s3:5 g1:8 s2:8 g0:8 s1:8 s0:8",
                             "g0:8 g1:8 g2:8 g3:5 g3:5 s3:5 g2:8 s2:8 g1:8 s1:8 s0:8"}) {
        SCOPED_TRACE(text);
        const Schedule known(text);
        EXPECT_EQ(known.wrong(pair_gathers(known.calls)), "");
        const Schedule unknown(text, false);
        for (size_t i = 0; i < unknown.calls.size(); ++i) {
            const GatherPair pair = pair_gathers(unknown.calls)[i];
            const bool sure = unknown.units[i] == 3 && !unknown.calls[i].scatter;
            EXPECT_EQ(unknown.unit_of(pair), sure ? 3 : -1) << i;
        }
    }
    // All come twice: order is enough.
    const Schedule twice(kSchedules[0], false);
    EXPECT_EQ(twice.wrong(pair_gathers(twice.calls)), "");
}

class Steps : public ::testing::Test {
  protected:
    // Gathers of the step that were paired.
    int follow(const std::string& text, uint64_t step) {
        int paired = 0;
        for (const StepCall& call : Schedule(text).calls) {
            paired += pairs_.next(call, step).unit != 0 ? 1 : 0;
        }
        return paired;
    }
    GatherPairs pairs_;
};

constexpr char kStep[] = "g0:8 g1:8 g1:8 s1:8 g0:8 s0:8";

TEST_F(Steps, PairsAreKnownFromTheThirdOn) {
    EXPECT_EQ(follow(kStep, 1), 0);
    EXPECT_EQ(follow(kStep, 2), 0);
    EXPECT_EQ(follow(kStep, 3), 4);
    EXPECT_EQ(follow(kStep, 4), 4);
}

TEST_F(Steps, WhatComesBehindAStepIsNotPaired) {
    for (uint64_t step = 1; step < 4; ++step) {
        follow(kStep, step);
    }
    EXPECT_EQ(follow(std::string(kStep) + " g0:8 g1:8 g0:8 g1:8", 4), 4);
    EXPECT_EQ(follow(kStep, 5), 4);
    // Not even where it comes behind every step.
    for (uint64_t step = 6; step < 10; ++step) {
        const int paired = follow(std::string(kStep) + " g0:8 g1:8 g0:8 g1:8", step);
        EXPECT_EQ(paired, 4) << step;
    }
}

TEST_F(Steps, EvaluationNowAndThenHindersNoLearning) {
    const std::string evaluation = " g0:8 g1:8 g0:8 g1:8";
    EXPECT_EQ(follow(kStep + evaluation, 1), 0);
    EXPECT_EQ(follow(kStep, 2), 0);
    EXPECT_EQ(follow(kStep + evaluation, 3), 4);
    EXPECT_EQ(follow("g0:8 g1:8", 4), 2) << "evaluation in the place of a step";
    EXPECT_EQ(follow(kStep, 5), 4);
}

TEST_F(Steps, AnotherOrderEndsThePairsOfItsStep) {
    for (uint64_t step = 1; step < 4; ++step) {
        follow(kStep, step);
    }
    EXPECT_EQ(follow("g0:8 g7:3 g1:8 g1:8 s1:8 g0:8 s0:8", 4), 1);
    EXPECT_EQ(follow(kStep, 5), 0);
    EXPECT_EQ(follow(kStep, 6), 0);
    EXPECT_EQ(follow(kStep, 7), 4);
    pairs_.lose();
    EXPECT_EQ(follow(kStep, 8), 0);
}

// Steps of another process count from 1 again.
TEST_F(Steps, AnotherProcessGoesOnWithWhatWasLearned) {
    for (uint64_t step = 1; step < 3; ++step) {
        follow(kStep, step);
    }
    const std::vector<uint64_t> saved = pairs_.save();
    pairs_ = GatherPairs();
    for (size_t size = 0; size < saved.size(); ++size) {
        EXPECT_FALSE(pairs_.go_on(std::span(saved).first(size))) << size;
    }
    EXPECT_EQ(follow(kStep, 1), 0);
    ASSERT_TRUE(pairs_.go_on(saved));
    EXPECT_EQ(follow(kStep, 1), 4);
    const std::vector<uint64_t> known = pairs_.save();
    pairs_ = GatherPairs();
    ASSERT_TRUE(pairs_.go_on(known));
    EXPECT_EQ(follow(kStep, 1), 4);
    std::vector<uint64_t> wild = known;
    wild[0] = ~0ull;
    EXPECT_FALSE(pairs_.go_on(wild));
}

TEST_F(Steps, LongStepsHaveNone) {
    std::vector<StepCall> calls;
    for (size_t i = 0; i <= GatherPairs::kMostCalls; ++i) {
        calls.push_back({i + 1, 8, i > GatherPairs::kMostCalls / 2, nullptr});
    }
    for (uint64_t number = 1; number < 5; ++number) {
        for (const StepCall& call : calls) {
            EXPECT_EQ(pairs_.next(call, number).unit, 0u);
        }
    }
}

}  // namespace
}  // namespace slimwire
