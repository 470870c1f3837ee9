// Which codec of a ladder a tensor takes after its probes, as a pure machine.
#include "collectives/error_budget.h"

#include <gtest/gtest.h>

#include <string>

#include "collectives/factor_probe.h"

namespace slimwire {
namespace {

ErrorBudgetRule rule_of(uint64_t every) {
    ErrorBudgetRule rule;
    rule.max_error_ppm = 100000;
    rule.every = every;
    return rule;
}
// Errors of a ladder of three.
std::vector<double> squares(double strong, double middle, double weak) {
    return {strong * strong, middle * middle, weak * weak};
}

// One letter a call: 'p' for a probe, '-' for native, else the codec's number. `found`: what the
// probes find, one after the other.
std::string taken(ErrorBudgetControl* control,
                  size_t calls,
                  const std::vector<std::vector<double>>& found) {
    std::string text;
    size_t probe = 0;
    for (size_t call = 0; call < calls; ++call) {
        if (control->due()) {
            control->decide(found.at(probe++));
        }
        const int rung = control->next();
        text += rung == ErrorBudgetControl::kProbe    ? 'p'
                : rung == ErrorBudgetControl::kNative ? '-'
                                                      : static_cast<char>('0' + rung);
    }
    return text;
}

TEST(ErrorBudget, TheStrongestWithinTheBoundIsTaken) {
    const ErrorBudgetRule rule = rule_of(4);
    ErrorBudgetControl control(rule);
    EXPECT_EQ(taken(&control, 20,
                    {squares(0.5, 0.09, 0.01), squares(0.1, 0.09, 0.01), squares(0.5, 0.3, 0.11),
                     squares(0.5, 0.3, 0.02), squares(0, 0, 0)}),
              "p111p000p---p222p000");
    EXPECT_EQ(control.totals().probes, 5u);
    EXPECT_EQ(control.totals().chosen, 0);
}

TEST(ErrorBudget, BoundsOfAProbeStandBeforeTheRules) {
    const ErrorBudgetRule rule = rule_of(4);
    ErrorBudgetControl control(rule);
    (void)control.next();
    control.decide({0.5, 0.3, 0.2}, {0.4, 0.3, 0.1});
    EXPECT_EQ(control.next(), 1);
    EXPECT_EQ(control.totals().bounds, (std::vector<double>{0.4, 0.3, 0.1}));
    control.decide({0.5, 0.3, 0.2}, {0.4, 0.2, 0.1});
    EXPECT_EQ(control.next(), ErrorBudgetControl::kNative);
}

// The rung that sends least goes, with what it does not keep enough of raw.
TEST(ErrorBudget, EachMatrixIsLookedAt) {
    const auto matrix = [](int32_t rows, int32_t cols, std::vector<double> kept) {
        LowRankMatrix shape{};
        shape.rows = rows;
        shape.cols = cols;
        return ProbedMatrix{shape, 1, std::move(kept)};
    };
    const std::vector<uint32_t> ranks{1, 4};
    const double one = needed_share(256, 256, 1), four = needed_share(256, 256, 4);
    const auto chosen = [&](const std::vector<ProbedMatrix>& matrices) {
        const ChosenMatrices of = choose_matrices(matrices, ranks, DType::kFloat32);
        std::string text = std::to_string(of.rung);
        for (const uint32_t refused : of.refused) {
            text += " -" + std::to_string(refused);
        }
        return text;
    };
    const ProbedMatrix good = matrix(256, 256, {2 * one, 2 * four});
    const ProbedMatrix noise = matrix(256, 256, {0.7 * one, 0.7 * four});
    const ProbedMatrix wide = matrix(256, 256, {0.7 * one, 1.01 * four});
    EXPECT_EQ(chosen({good, good}), "0");
    EXPECT_EQ(chosen({good, noise}), "0 -1");
    EXPECT_EQ(chosen({noise, good, noise}), "0 -0 -2");
    EXPECT_EQ(chosen({noise, noise}), "-1");
    // Four columns of both are less than one column of one and all of the other.
    EXPECT_EQ(chosen({good, wide}), "1");
    EXPECT_EQ(chosen({noise, wide}), "1 -0");
    // Of nothing nothing is needed.
    ProbedMatrix zero = noise;
    zero.square = 0;
    zero.kept = {0, 0};
    EXPECT_EQ(chosen({zero, good}), "0");
}

// Noise keeps what its spectrum says; tiny matrices need not keep more than there is.
TEST(ErrorBudget, WhatFactorsMustKeep) {
    EXPECT_NEAR(needed_share(1024, 1024, 4), 1.25 * 4 * 4 / 1024, 1e-12);
    EXPECT_NEAR(needed_share(100, 400, 1), 1.25 * 900 / 40000, 1e-12);
    EXPECT_NEAR(needed_share(400, 100, 1), needed_share(100, 400, 1), 1e-12);
    EXPECT_EQ(needed_share(16, 16, 4), 0.9);
    EXPECT_EQ(needed_share(1, 1, 1), 0.9);
}

TEST(ErrorBudget, AProbeThatIsNotFiniteLeavesThingsAsTheyWere) {
    const ErrorBudgetRule rule = rule_of(3);
    ErrorBudgetControl control(rule);
    EXPECT_EQ(taken(&control, 9, {{}, squares(0.5, 0.09, 0.01), {}}), "p--p11p11");
    EXPECT_EQ(control.totals().squares, squares(0.5, 0.09, 0.01));
}

TEST(ErrorBudget, ACallThatNeverWasIsMadeAgain) {
    const ErrorBudgetRule rule = rule_of(3);
    ErrorBudgetControl control(rule);
    EXPECT_EQ(control.next(), ErrorBudgetControl::kProbe);
    control.uncount();
    EXPECT_FALSE(control.due());
    EXPECT_EQ(control.next(), ErrorBudgetControl::kProbe);
    EXPECT_TRUE(control.due());
}

TEST(ErrorBudget, HashesTellDecisionsApart) {
    const ErrorBudgetRule rule = rule_of(2);
    ErrorBudgetControl one(rule), same(rule), other(rule);
    (void)taken(&one, 4, {squares(0.5, 0.3, 0.02), squares(0.5, 0.3, 0.02)});
    (void)taken(&same, 4, {squares(0.5, 0.3, 0.02), squares(0.5, 0.3, 0.02)});
    (void)taken(&other, 4, {squares(0.5, 0.3, 0.02), squares(0.5, 0.3, 0.03)});
    EXPECT_EQ(one.totals().hash, same.totals().hash);
    EXPECT_NE(one.totals().hash, other.totals().hash);
}

}  // namespace
}  // namespace slimwire
