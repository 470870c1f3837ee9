// The controller of compression by itself: what it decides from the norms of windows, when, and
// what a drop of the learning rate overrides.
#include "collectives/adaptive/accordion.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>

namespace slimwire {
namespace {

constexpr double kNotTold = std::numeric_limits<double>::quiet_NaN();

AccordionRule rule_of(uint64_t window, uint32_t hysteresis = 2, std::vector<uint64_t> drops = {}) {
    AccordionRule rule;
    rule.window = window;
    rule.hysteresis = hysteresis;
    rule.lr_drops = std::move(drops);
    return rule;
}

// One window of calls after the other, whose mean results have these norms, and on until all of
// them are decided by and the window after the last is over; a letter for each call: 'l' or 'h' for
// what it takes.
std::string run(AccordionControl* control, uint64_t window, std::initializer_list<double> norms) {
    std::string taken;
    std::vector<double> all(norms);
    const auto calls = static_cast<double>(window);
    const uint64_t ended = all.size() * window;
    const uint64_t last = ended + std::max(window - 1, AccordionControl::kLag);
    for (uint64_t call = 0; call <= last; ++call) {
        const uint64_t past =
            call - AccordionControl::kLag;  // the decision's last call is in front
        EXPECT_EQ(control->due(), call >= window + AccordionControl::kLag && past % window == 0)
            << taken;
        if (control->due()) {
            const double norm = all[past / window - 1];
            control->decide(norm * norm * calls * calls, static_cast<uint32_t>(window));
        }
        const AccordionControl::Call next = control->next(kNotTold);
        EXPECT_EQ(next.first, call % window == 0);
        EXPECT_EQ(next.last, call % window == window - 1);
        taken += next.high ? 'h' : 'l';
    }
    return taken;
}

TEST(Accordion, DecidesByTheChangeOfTheNorm) {
    struct Row {
        const char* what;
        std::initializer_list<double> norms;
        const char* taken;
    };
    // Windows of two calls; a decision counts from the first call of the window after the next on.
    const Row kRows[] = {
        {"the first windows are low", {1, 1}, "lllllll"},
        {"two quiet windows", {1, 1, 1}, "llllllllh"},
        {"and it stays", {1, 1, 1, 1, 1}, "llllllllhhhhh"},
        {"just within the ratio", {1, 1.49, 0.76}, "llllllllh"},
        {"a jump up is low at once", {1, 1, 1, 1.51, 1.51}, "llllllllhhlll"},
        {"a fall is low at once", {1, 1, 1, 0.49, 0.49}, "llllllllhhlll"},
        {"and two more quiet ones high again", {1, 1, 1, 9, 9, 9}, "llllllllhhllllh"},
        {"one quiet window is not enough", {1, 1, 3, 3, 9}, "lllllllllllll"},
        {"nothing was there before", {0, 1, 1, 1}, "llllllllllh"},
        {"a norm beyond all numbers is a jump",
         {1, 1, 1, std::numeric_limits<double>::infinity(), 1, 1, 1},
         "llllllllhhllllllh"},
    };
    for (const Row& row : kRows) {
        const AccordionRule rule = rule_of(2);
        AccordionControl control(rule);
        EXPECT_EQ(run(&control, 2, row.norms), row.taken) << row.what;
        EXPECT_EQ(control.totals().windows, row.norms.size());
    }
}

TEST(Accordion, RatioAndHysteresisAreTheRules) {
    AccordionRule rule = rule_of(2, 1);
    AccordionControl soon(rule);
    EXPECT_EQ(run(&soon, 2, {1, 1}), "llllllh");
    rule.ratio_ppm = 100000;
    AccordionControl strict(rule);
    EXPECT_EQ(run(&strict, 2, {1, 1.09, 1.21, 1.21}), "llllllhhllh");
    rule.ratio_ppm = 1500000;  // no fall is quick
    AccordionControl lax(rule);
    EXPECT_EQ(run(&lax, 2, {1, 0.001, 0.0024, 0.1}), "llllllhhhhl");
}

TEST(Accordion, ADropOfTheRateIsLowForAWindowAtLeast) {
    // Call 11 is in a window of four; the decision at its end, and what was quiet
    // before, do not count.
    const AccordionRule rule = rule_of(4, 1, {11});
    AccordionControl control(rule);
    EXPECT_EQ(run(&control, 4, {1, 1, 1, 1}), "llllllllllhlllllllhh")
        << "from call 11 on, and through the window after it";
    EXPECT_EQ(control.totals().drops, 1u);
    // At the first call of a window the decision of the one before is due, too.
    const AccordionRule at_begin = rule_of(4, 1, {12});
    AccordionControl other(at_begin);
    EXPECT_EQ(run(&other, 4, {1, 1, 1, 1}), "llllllllllhhllllllhh");
}

// A rate that the program tells: half of the largest since the last drop is one, at once or bit by
// bit; what rises or falls less is none.
TEST(Accordion, ARateThatFallsToHalfIsADrop) {
    const AccordionRule rule = rule_of(4, 1);
    AccordionControl control(rule);
    std::string taken;
    const double rates[] = {0.01, 0.1,  0.1,  0.1,  0.06, 0.06, 0.06, 0.06, 0.06, 0.06, 0.06, 0.06,
                            0.06, 0.06, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05};
    for (const double rate : rates) {
        if (control.due()) {
            (void)control.decide(1, 1);
        }
        taken += control.next(rate).high ? 'h' : 'l';
    }
    EXPECT_EQ(taken, "llllllllllhhhhllllllllhh");
    EXPECT_EQ(control.totals().drops, 1u);
}

TEST(Accordion, ARateOfZeroFallsOnce) {
    const AccordionRule rule = rule_of(4, 1);
    AccordionControl control(rule);
    std::string taken;
    for (int call = 0; call < 32; ++call) {
        if (control.due()) {
            (void)control.decide(1, 1);
        }
        taken += control.next(call >= 12 && call < 16 ? 0.1 : 0).high ? 'h' : 'l';
    }
    EXPECT_EQ(taken, "llllllllllhhhhhhllllllhhhhhhhhhh");
    EXPECT_EQ(control.totals().drops, 1u);
}

TEST(Accordion, WindowsWithoutFiniteResultsSayNothing) {
    const AccordionRule rule = rule_of(2, 1);
    AccordionControl control(rule);
    (void)run(&control, 2, {1, 1});
    EXPECT_FALSE(control.due()) << "within a window";
    control.next(kNotTold);
    const AccordionDecision none = control.decide(0, 0);
    EXPECT_TRUE(none.high) << "as before";
    EXPECT_LT(none.square, 0);
    // And of a window with fewer the mean counts, not the sum.
    EXPECT_TRUE(control.decide(1, 1).high);
    EXPECT_FALSE(control.decide(4, 1).high);
}

TEST(Accordion, CallsThatNeverWereAreMadeAgain) {
    const AccordionRule rule = rule_of(2, 1);
    AccordionControl control(rule);
    control.next(kNotTold);
    EXPECT_TRUE(control.next(kNotTold).last);
    control.uncount();
    EXPECT_TRUE(control.next(kNotTold).last);
    EXPECT_FALSE(control.due());
    EXPECT_TRUE(control.next(kNotTold).first);
    EXPECT_FALSE(control.due()) << "not yet three calls behind the window";
    control.next(kNotTold);
    EXPECT_TRUE(control.due());
}

TEST(Accordion, HashesTellDecisionsApart) {
    const AccordionRule rule = rule_of(2);
    AccordionControl one(rule), same(rule), other(rule);
    (void)run(&one, 2, {1, 2, 3});
    (void)run(&same, 2, {1, 2, 3});
    (void)run(&other, 2, {1, 2, 3.0000001});
    EXPECT_EQ(one.totals().hash, same.totals().hash);
    EXPECT_NE(one.totals().hash, other.totals().hash);
    ASSERT_EQ(one.totals().last.size(), 3u);
    EXPECT_EQ(one.totals().last[2].window, 2u);
    EXPECT_NEAR(one.totals().last[2].square, 9, 1e-9);
}

}  // namespace
}  // namespace slimwire
