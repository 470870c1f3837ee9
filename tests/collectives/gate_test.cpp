// Which way a plan's calls go after they were timed, as a pure machine.
#include "collectives/gate.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

namespace slimwire {
namespace {

using Call = GateControl::Call;

// Runs a gate whose calls take what `seconds(call, native)` says. One letter a call: of a timed one
// 'N' or 'C', else 'n' or 'c', and 't' behind one that tells.
class Gated {
  public:
    explicit Gated(uint64_t every, std::function<double(uint64_t, bool)> seconds)
        : rule_{every}, control(rule_), seconds_(std::move(seconds)) {}
    std::string run(size_t calls) {
        std::string text;
        for (size_t i = 0; i < calls; ++i) {
            if (control.due()) {
                EXPECT_EQ(told_, 1) << "decided without having told";
                told_ = 0;
                control.decide(batch_);
                batch_.assign(2 * GateControl::kPairs, 0);
            }
            const Call call = control.next();
            if (call.slot >= 0) {
                EXPECT_LT(static_cast<size_t>(call.slot), control.slots());
                EXPECT_EQ(call.slot % 2 == 0, call.native);
                batch_[static_cast<size_t>(call.slot)] =
                    static_cast<float>(seconds_(made_, call.native));
            }
            told_ += call.tells ? 1 : 0;
            text += call.slot >= 0 ? (call.native ? 'N' : 'C') : call.native ? 'n' : 'c';
            text += call.tells ? "t" : "";
            ++made_;
        }
        return text;
    }

  private:
    GateRule rule_;

  public:
    GateControl control;

  private:
    std::function<double(uint64_t, bool)> seconds_;
    std::vector<float> batch_ = std::vector<float>(2 * GateControl::kPairs, 0);
    int told_ = 0;
    uint64_t made_ = 0;
};

TEST(Gate, TheFasterIsTaken) {
    Gated faster(20, [](uint64_t, bool native) { return native ? 3.0 : 1.0; });
    EXPECT_EQ(faster.run(20), "cnNCCNNCCNNCcctcccccc");
    EXPECT_FALSE(faster.control.totals().native);
    Gated slower(20, [](uint64_t, bool native) { return native ? 1.0 : 3.0; });
    EXPECT_EQ(slower.run(20), "cnNCCNNCCNNCcctcnnnnn");
    EXPECT_TRUE(slower.control.totals().native);
    EXPECT_EQ(slower.control.totals().last.back().native_s, 1.0);
    EXPECT_EQ(slower.control.totals().last.back().compressed_s, 3.0);
    EXPECT_EQ(slower.control.totals().last.back().pairs, GateControl::kPairs);
}

TEST(Gate, AChoiceIsLookedAtNowAndThen) {
    Gated gated(10, [](uint64_t, bool native) { return native ? 3.0 : 1.0; });
    (void)gated.run(15);
    const std::string look = "ccccccccccNCCNcctc";
    EXPECT_EQ(gated.run(17 * 2), (look + look).substr(0, 36));
    EXPECT_EQ(gated.control.totals().trials, 1u);
}

// A link that turns fast or slow: at the next look a new trial, and the other way behind it.
TEST(Gate, AnotherLinkIsNoticed) {
    bool slow_link = true;
    Gated gated(10, [&](uint64_t, bool native) { return native == slow_link ? 3.0 : 1.0; });
    (void)gated.run(15);
    EXPECT_FALSE(gated.control.totals().native);
    slow_link = false;
    const std::string turn = gated.run(49);
    EXPECT_EQ(turn, "ccccccccccNCCNcctcNCCNNCCNNCcctcnnnnnnnnnnNCCNnntnnn");
    EXPECT_TRUE(gated.control.totals().native);
    slow_link = true;
    (void)gated.run(60);
    EXPECT_FALSE(gated.control.totals().native);
    EXPECT_EQ(gated.control.totals().trials, 3u);
}

// One outlier does not decide, nor start a trial.
TEST(Gate, OutliersDoNotDecide) {
    Gated gated(10, [](uint64_t call, bool native) {
        return call % 9 == 3 ? 50.0 : native ? 1.5 : 1.0;
    });
    (void)gated.run(400);
    EXPECT_FALSE(gated.control.totals().native);
    EXPECT_LE(gated.control.totals().trials, 4u);
}

// Where times scatter more than the ways differ, more pairs are taken, and then most are right.
TEST(Gate, WhatIsCloseTakesMorePairs) {
    int right = 0;
    for (uint32_t seed = 0; seed < 200; ++seed) {
        std::mt19937 random(seed);
        std::normal_distribution<double> noise(1.0, 0.1);
        const bool native_wins = seed % 2 == 0;
        Gated gated(100, [&](uint64_t, bool native) {
            return (native ? 1.0 : native_wins ? 1.06 : 0.93) * noise(random);
        });
        for (int i = 0; i < 600 && gated.control.totals().trials == 0; ++i) {
            (void)gated.run(1);
        }
        ASSERT_EQ(gated.control.totals().trials, 1u);
        EXPECT_LE(gated.control.totals().last.back().pairs, GateControl::kMostPairs);
        right += gated.control.totals().native == native_wins ? 1 : 0;
    }
    EXPECT_GE(right, 180);
}

// What disturbs all calls of one batch is not in the next, and looks come soon at first.
TEST(Gate, ADisturbanceDoesNotDecide) {
    Gated close(
        500, [](uint64_t call, bool native) { return native ? (call < 14 ? 1.15 : 1.0) : 1.08; });
    EXPECT_EQ(close.run(57), "cnNCCNNCCNNCcct" + std::string(31, 'c') + "NCCNNCCNNCcct");
    (void)close.run(400);
    EXPECT_TRUE(close.control.totals().native);
    // Where it was more than that, the first looks find out.
    Gated far(500,
              [](uint64_t call, bool native) { return native ? (call < 14 ? 3.0 : 1.0) : 1.3; });
    (void)far.run(15 + 50);
    EXPECT_FALSE(far.control.totals().native);
    (void)far.run(4 + 4 + 14);
    EXPECT_TRUE(far.control.totals().native);
    Gated right(500, [](uint64_t, bool native) { return native ? 3.0 : 1.0; });
    (void)right.run(15 + 54 + 3 + 104 + 3 + 204 + 3 + 404 + 4);
    EXPECT_EQ(right.control.totals().looks, 4u);
}

// Equals: no switching to and fro.
TEST(Gate, AChoiceHolds) {
    std::mt19937 random(5);
    std::normal_distribution<double> noise(1.0, 0.1);
    Gated gated(10, [&](uint64_t, bool) { return noise(random); });
    int switches = 0;
    bool native = false;
    for (int i = 0; i < 5000; ++i) {
        (void)gated.run(1);
        switches += gated.control.totals().native != native ? 1 : 0;
        native = gated.control.totals().native;
    }
    EXPECT_LE(switches, 12) << "of some 300 looks";
}

TEST(Gate, NothingHeardLeavesThingsAsTheyAre) {
    Gated gated(10, [](uint64_t, bool) { return 0.0; });
    EXPECT_EQ(gated.run(30), "cnNCCNNCCNNCcctcccccccccccNCCNc");
    EXPECT_EQ(gated.control.totals().trials, 0u);
    GateRule rule;
    GateControl control(rule);
    for (uint64_t i = 0; i < 2 + 10 + 3; ++i) {
        (void)control.next();
    }
    ASSERT_TRUE(control.due());
    control.decide({});
    EXPECT_FALSE(control.due());
    EXPECT_EQ(control.totals().trials, 0u);
}

TEST(Gate, ACallThatNeverWasIsMadeAgain) {
    GateRule rule;
    GateControl control(rule);
    for (int i = 0; i < 20; ++i) {
        if (control.due()) {
            control.decide(std::vector<float>(10, 1.0f));
        }
        const Call call = control.next();
        control.uncount();
        const Call again = control.next();
        EXPECT_EQ(call.native, again.native);
        EXPECT_EQ(call.slot, again.slot);
        EXPECT_EQ(call.tells, again.tells);
    }
}

TEST(Gate, HashesTellDecisionsApart) {
    const auto hash = [](double native_s) {
        Gated gated(10, [&](uint64_t, bool native) { return native ? native_s : 1.0; });
        (void)gated.run(20);
        return gated.control.totals().hash;
    };
    EXPECT_EQ(hash(2.0), hash(2.0));
    EXPECT_NE(hash(2.0), hash(2.5));
}

}  // namespace
}  // namespace slimwire
