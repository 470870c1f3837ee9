// Which rules decide the parts of a call, what of them a shared message follows, and what the plan
// of such a message sends.
#include "collectives/plan/decision.h"

#include <gtest/gtest.h>

#include <map>

#include "collectives/algorithms/algorithm.h"
#include "collectives/dispatch/planner.h"
#include "tests/collectives/plan/plans.h"

namespace slimwire {
namespace {

Policy policy_of(const std::string& rules) {
    Result<Policy> policy = parse_policy("version = 1\n" + rules, "p.toml");
    EXPECT_TRUE(policy.ok()) << policy.status().message();
    return policy.ok() ? std::move(policy).value() : Policy();
}

std::string rule(const std::string& name, const std::string& match, const std::string& action) {
    return "[[rule]]\nname = '" + name + "'\nmatch = { " + match + " }\n" + action + "\n";
}

const std::string kNorms = rule("norms", "param = '1d'", "codec = 'native'");
const std::string kWeights =
    rule("weights", "op = ['allreduce', 'reduce']", "codec = 'int4'\nef = 'ef14'");

// Parameters of these counts; a negative one has one dimension, the others two.
ParameterRanges parameters_of(const std::vector<int64_t>& counts) {
    ParameterRanges parameters;
    uint64_t offset = 0;
    for (const int64_t count : counts) {
        const auto elems = static_cast<uint64_t>(count < 0 ? -count : count);
        const auto number = static_cast<uint32_t>(parameters.ranges.size());
        parameters.ranges.push_back(
            {offset, elems, number, static_cast<uint8_t>(count < 0 ? 1 : 2), ""});
        offset += elems;
    }
    return parameters;
}

CallSignature call_of(const ParameterRanges& parameters, DType dtype = DType::kFloat32) {
    CallSignature signature;
    signature.dtype = dtype;
    signature.redop = RedOp::kSum;
    signature.ranges_id = 1;
    for (const ParameterRange& range : parameters.ranges) {
        signature.count += range.count;
    }
    return signature;
}

Decision decided(const std::string& rules, const ParameterRanges& parameters) {
    return decide(call_of(parameters), shape_of(4), policy_of(rules), &parameters);
}

// "int4 0+100, raw 100+5" with a "!" where a codec has no residuals.
std::string text_of(const std::vector<Segment>& segments) {
    std::string text;
    for (const Segment& segment : segments) {
        text += (text.empty() ? "" : ", ") +
                (segment.raw() ? "raw"
                               : segment.codec.to_string() + (segment.has_residual ? "" : "!")) +
                " " + std::to_string(segment.offset_elems) + "+" + std::to_string(segment.count);
    }
    return text;
}

bool has(const Decision& decision, const std::string& text) {
    return decision.reason.find(text) != std::string::npos;
}

TEST(Decision, RangesGoTheirOwnWays) {
    const Decision decision =
        decided(kNorms + kWeights, parameters_of({3000, -10, -10, 5000, 800, -12}));
    EXPECT_EQ(text_of(decision.segments), "int4 0+3000, raw 3000+20, int4 3020+5800, raw 8820+12");
    EXPECT_EQ(decision.rule, "weights");
    EXPECT_EQ(decision.action.error_feedback, ErrorFeedback::kEf14);
    EXPECT_TRUE(has(decision, "rule 'norms' says native, so raw, for 0.362 %")) << decision.reason;
    EXPECT_TRUE(has(decision, "rule 'weights' for 99.6 %")) << decision.reason;
}

// As without what it carries, where one rule decides all of it.
TEST(Decision, OneRuleForAllIsAWholeMessage) {
    for (const ParameterRanges& parameters : {parameters_of({3000, 10}), parameters_of({3010})}) {
        const Decision decision = decided(kNorms + kWeights, parameters);
        EXPECT_TRUE(decision.segments.empty());
        EXPECT_EQ(decision.reason, "rule 'weights'");
        ASSERT_TRUE(decision.action.codec.has_value());
    }
    const Decision native = decided(kNorms + kWeights, parameters_of({-3000, -10}));
    EXPECT_FALSE(native.action.codec.has_value());
    EXPECT_EQ(native.reason, "rule 'norms' says native");
    EXPECT_EQ(native.rule, "norms");
    // Two rules that say the same.
    const Decision equal = decided(rule("a", "param = '1d'", "codec = 'int8'") +
                                       rule("b", "op = 'allreduce'", "codec = 'int8'"),
                                   parameters_of({3000, -1000}));
    EXPECT_TRUE(equal.segments.empty());
    EXPECT_TRUE(equal.action.codec.has_value());
}

const std::string kFirst = rule("first", "ordinal = 0", "codec = 'native'");
const std::string kMiddle =
    rule("middle", "ordinal = [2, '4-5'], op = 'allreduce'", "codec = 'int8'");

TEST(Decision, DirectionsDecideWhereTheyAreKnown) {
    CallSignature signature{Op::kSend, DType::kFloat32, RedOp::kNone, 1, 100000};
    const std::string forward =
        rule("forward", "op = 'send', direction = 'forward'", "codec = 'int8'");
    const Policy policy = policy_of(forward + rule("rest", "", "codec = 'int4'"));
    EXPECT_EQ(direction_asked(signature, shape_of(4), policy), policy.rules.data());
    const Decision unsure = decide(signature, shape_of(4), policy, nullptr);
    EXPECT_EQ(unsure.reason, "its direction is not known, and rule 'forward' asks");
    EXPECT_STREQ(unsure.remedy, kMoreMessages);
    signature.direction = Direction::kForward;
    EXPECT_EQ(decide(signature, shape_of(4), policy, nullptr).rule, "forward");
    EXPECT_EQ(direction_asked(signature, shape_of(4), policy), nullptr);
    signature.direction = Direction::kBackward;
    EXPECT_EQ(decide(signature, shape_of(4), policy, nullptr).rule, "rest");
    // A rule that the call is not of does not ask, nor one behind another that takes it.
    signature.direction = Direction::kUnknown;
    const Policy never = policy_of(rule("all", "", "codec = 'int4'") + forward);
    EXPECT_EQ(direction_asked(signature, shape_of(4), never), nullptr);
    EXPECT_EQ(decide(signature, shape_of(4), never, nullptr).rule, "all");
    signature.op = Op::kAllReduce;
    EXPECT_EQ(direction_asked(signature, shape_of(4), policy), nullptr);
}

// Of exchanges, too, where a rule says how many go forward.
TEST(Decision, DirectionsOfExchangesDecideWhereTheyAreKnown) {
    const Policy policy = policy_of(
        rule("gradients", "op = 'alltoall', direction = 'backward'",
             "codec = 'int8'\nforward_calls = 2") +
        rule("activations", "op = 'alltoall'", "codec = 'topk:pair=mask'\nforward_calls = 2"));
    CallSignature signature{Op::kAllToAll, DType::kFloat32, RedOp::kNone, 0, 100000};
    EXPECT_EQ(direction_asked(signature, shape_of(4), policy), &policy.rules[1]);
    const Decision unsure = decide(signature, shape_of(4), policy, nullptr);
    EXPECT_EQ(unsure.reason, "its direction is not known, and rule 'gradients' asks");
    EXPECT_STREQ(unsure.remedy, "slimwire_mark_step in each step");
    signature.direction = Direction::kForward;
    EXPECT_EQ(decide(signature, shape_of(4), policy, nullptr).rule, "activations");
    signature.direction = Direction::kBackward;
    EXPECT_EQ(decide(signature, shape_of(4), policy, nullptr).rule, "gradients");
}

TEST(Decision, OrdinalsDecideWhereTheyAreKnown) {
    CallSignature signature = call_of(parameters_of({100000}));
    signature.ranges_id = 0;
    const Policy policy = policy_of(kFirst + kMiddle + kWeights);
    EXPECT_EQ(ordinals_asked(signature, shape_of(4), policy),
              (std::vector<uint32_t>{0, 1, 2, 3, 4, 6}));
    std::string rules;
    for (signature.ordinal = 1; signature.ordinal <= 7; ++signature.ordinal) {
        rules += decide(signature, shape_of(4), policy, nullptr).rule + " ";
    }
    EXPECT_EQ(rules, "first weights middle weights middle middle weights ");
    signature.ordinal = 0;
    const Decision unsure = decide(signature, shape_of(4), policy, nullptr);
    EXPECT_FALSE(unsure.action.codec.has_value());
    EXPECT_EQ(unsure.reason, "its place in the step is not known, and rule 'first' asks");
    EXPECT_STREQ(unsure.remedy, kMarkSteps);
    // Behind a rule that takes all of them nobody asks.
    const Policy never = policy_of(kWeights + kFirst);
    EXPECT_TRUE(ordinals_asked(signature, shape_of(4), never).empty());
    EXPECT_EQ(decide(signature, shape_of(4), never, nullptr).rule, "weights");
    // A rule that the call is not of does not ask.
    signature.op = Op::kReduce;
    const Policy other = policy_of(kMiddle + kWeights);
    EXPECT_TRUE(ordinals_asked(signature, shape_of(4), other).empty());
    EXPECT_EQ(decide(signature, shape_of(4), other, nullptr).rule, "weights");
}

TEST(Decision, OrdinalsAndParametersTogether) {
    const std::string both = rule("both", "ordinal = 1, param = '1d'", "codec = 'native'");
    const ParameterRanges parameters = parameters_of({3000, -1000});
    CallSignature signature = call_of(parameters);
    const Policy policy = policy_of(both + kWeights);
    EXPECT_EQ(decide(signature, shape_of(4), policy, &parameters).reason,
              "its place in the step is not known, and rule 'both' asks");
    signature.ordinal = 1;
    EXPECT_EQ(decide(signature, shape_of(4), policy, &parameters).reason, "rule 'weights'");
    signature.ordinal = 2;
    EXPECT_EQ(text_of(decide(signature, shape_of(4), policy, &parameters).segments),
              "int4 0+3000, raw 3000+1000");
    signature.ranges_id = 0;
    EXPECT_EQ(decide(signature, shape_of(4), policy, nullptr).reason,
              "which parameters it carries is not known, and rule 'both' asks");
}

TEST(Decision, WhatIsNotKnownStaysNativeWhereARuleAsks) {
    const CallSignature signature = call_of(parameters_of({100000}));
    const auto reason = [&](const std::string& rules, CallSignature call) {
        const Decision decision = decide(call, shape_of(4), policy_of(rules), nullptr);
        return (decision.action.codec.has_value() ? "+" : "-") + decision.reason;
    };
    EXPECT_EQ(reason(kNorms + kWeights, signature),
              "-which parameters it carries is not known, and rule 'norms' asks");
    EXPECT_EQ(reason(kWeights + kNorms, signature), "+rule 'weights'") << "it is never asked";
    EXPECT_EQ(reason(kNorms, signature),
              "-which parameters it carries is not known, and rule 'norms' asks");
    // A rule that the call is not of does not ask.
    EXPECT_EQ(
        reason(rule("far", "param = '1d', ranks = 9", "codec = 'native'") + kWeights, signature),
        "+rule 'weights'");
    // Of what is gathered nothing can ever be known.
    CallSignature gather = signature;
    gather.op = Op::kAllGather;
    gather.redop = RedOp::kNone;
    EXPECT_EQ(reason(kNorms + rule("all", "op = 'allgather'", "codec = 'int8'"), gather),
              "+rule 'all'");
    CallSignature scatter = signature;
    scatter.op = Op::kReduceScatter;
    EXPECT_EQ(reason(kNorms, scatter),
              "-which parameters it carries is not known, and rule 'norms' asks");
}

TEST(Decision, RangesThatAreNotOfTheCallAreRefused) {
    ParameterRanges parameters = parameters_of({3000, -10});
    CallSignature signature = call_of(parameters);
    const auto native = [&] {
        const Decision decision =
            decide(signature, shape_of(4), policy_of(kNorms + kWeights), &parameters);
        return !decision.action.codec.has_value() && has(decision, "not those of its elements");
    };
    EXPECT_FALSE(native());
    signature.count += 1;
    EXPECT_TRUE(native());
    signature.count -= 2;
    EXPECT_TRUE(native());
    signature.count += 1;
    parameters.ranges[1].offset += 1;
    EXPECT_TRUE(native());
    parameters.ranges.clear();
    EXPECT_TRUE(native());
}

TEST(Decision, CallConditionsAreOfTheWholeMessage) {
    // 40 KB in all, though the weights alone are less.
    const std::string weights =
        rule("weights", "op = 'allreduce', bytes = '30KiB..'", "codec = 'int4'");
    EXPECT_EQ(text_of(decided(kNorms + weights, parameters_of({5000, -5000})).segments),
              "int4! 0+5000, raw 5000+5000");
    const Decision small =
        decided(rule("norms", "param = '1d'", "codec = 'int8'\nmin_bytes = '1MiB'") + weights,
                parameters_of({5000, -5000}));
    EXPECT_EQ(text_of(small.segments), "int4! 0+5000, raw 5000+5000");
    EXPECT_TRUE(has(small, "less than min_bytes of rule 'norms'")) << small.reason;
    const Decision nothing =
        decided(rule("norms", "param = '1d'", "codec = 'int8'"), parameters_of({500, -9500}));
    EXPECT_EQ(text_of(nothing.segments), "raw 0+500, int8! 500+9500");
    EXPECT_TRUE(has(nothing, "no rule matches, so raw, for 5 %")) << nothing.reason;
}

TEST(Decision, TheLargestRuleLeadsAndWhatGivesWayIsSaid) {
    const std::string first = rule(
        "a", "param = '1d'", "codec = 'int8'\nef = 'ema'\nalgorithm = 'gather'\nstart_step = 9");
    const Decision led = decided(first + kWeights, parameters_of({9000, -1000}));
    EXPECT_EQ(text_of(led.segments), "int4 0+9000, int8 9000+1000");
    EXPECT_EQ(led.rule, "weights");
    EXPECT_EQ(led.action.algorithm, Algorithm::kAuto);
    EXPECT_EQ(led.action.error_feedback, ErrorFeedback::kEf14);
    EXPECT_EQ(led.action.start_step, 9u) << "no rule begins before its start";
    EXPECT_TRUE(has(led, "; algorithm gather of rule 'a' gives way to auto of rule 'weights'"))
        << led.reason;
    EXPECT_TRUE(has(led, "; error_feedback ema of rule 'a' gives way to ef14 of rule 'weights'"))
        << led.reason;
    EXPECT_TRUE(has(led, "; residual int8 of rule 'a' gives way to fp32 of rule 'weights'"))
        << led.reason;
    EXPECT_TRUE(has(led, "; start_step 0 of rule 'weights' gives way to 9 of rule 'a'"))
        << led.reason;
    const Decision other = decided(first + kWeights, parameters_of({1000, -9000}));
    EXPECT_EQ(other.rule, "a");
    EXPECT_EQ(other.action.algorithm, Algorithm::kGather);
    EXPECT_EQ(other.action.error_feedback, ErrorFeedback::kEma);
}

TEST(Decision, NamesTheOtherRulesOfAMessage) {
    const std::string small = rule("a", "param = '1d'", "codec = 'int8'");
    const Decision both = decided(small + kWeights, parameters_of({9000, -1000}));
    EXPECT_EQ(both.rule, "weights");
    EXPECT_EQ(both.beside, std::vector<std::string>{"a"});
    EXPECT_TRUE(decided(kNorms + kWeights, parameters_of({9000, -1000})).beside.empty());
    // None takes its part: of those that have a codec the largest is named, and what it would take.
    const std::string large = rule("b", "op = 'allreduce'", "codec = 'int8'\nmin_bytes = 1000000");
    const Decision neither = decided(kNorms + large, parameters_of({1000, -9000}));
    EXPECT_EQ(neither.rule, "b");
    EXPECT_STREQ(neither.remedy, "a smaller min_bytes");
    EXPECT_EQ(decided(kNorms, parameters_of({1000, -9000})).remedy, nullptr);
}

// A rule without error feedback has none, whoever leads.
TEST(Decision, ErrorFeedbackIsOfTheParts) {
    const std::string plain = rule("plain", "param = '1d'", "codec = 'int8'");
    EXPECT_EQ(text_of(decided(plain + kWeights, parameters_of({9000, -1000})).segments),
              "int4 0+9000, int8! 9000+1000");
    const Decision turned = decided(plain + kWeights, parameters_of({1000, -9000}));
    EXPECT_EQ(text_of(turned.segments), "int4 0+1000, int8! 1000+9000");
    EXPECT_EQ(turned.rule, "plain");
    EXPECT_EQ(turned.action.error_feedback, ErrorFeedback::kEf14);
    EXPECT_FALSE(has(turned, "gives way")) << turned.reason;
}

TEST(Decision, VeryManySmallPartsTravelRaw) {
    std::vector<int64_t> counts;
    for (int i = 0; i < 200; ++i) {
        counts.push_back(i < 20 ? 100000 : 100 + i);
        counts.push_back(-7);
    }
    const Decision decision = decided(kNorms + kWeights, parameters_of(counts));
    size_t coded = 0, smallest = ~size_t{0};
    for (const Segment& segment : decision.segments) {
        coded += segment.raw() ? 0 : 1;
        smallest = segment.raw() ? smallest : std::min<size_t>(smallest, segment.count);
    }
    EXPECT_EQ(coded, kManySegments);
    EXPECT_EQ(smallest, 100u + 200 - (kManySegments - 20)) << "the largest of the small stay";
    EXPECT_TRUE(has(decision, "136 small parts travel raw")) << decision.reason;
    // Not those that are worth it.
    for (int64_t& count : counts) {
        count = count < 0 ? count : 20000;
    }
    EXPECT_EQ(decided(kNorms + kWeights, parameters_of(counts)).segments.size(), 400u);
}

// --- What a plan makes of it

Plan plan_of(const std::string& rules,
             const ParameterRanges& parameters,
             int ranks,
             DType dtype = DType::kFloat32,
             Op op = Op::kAllReduce,
             uint64_t slice_bytes = 0) {
    Config config;
    config.settings.slice_bytes = slice_bytes;
    config.policy = policy_of(rules);
    CallSignature signature = call_of(parameters, dtype);
    signature.op = op;
    return make_plan(signature, shape_of(ranks), config, &parameters);
}

// int4 bytes of the weights and raw bytes of the norms, and at most 0.2 % more.
TEST(SegmentedPlan, WireBytesAreTheFormula) {
    struct Model {
        const char* name;
        std::vector<int64_t> counts;
    };
    std::vector<int64_t> layers;  // a transformer's
    for (int layer = 0; layer < 4; ++layer) {
        for (const int64_t count : {-768, -768, 768 * 2304, -2304, 768 * 768, -768, -768, -768,
                                    768 * 3072, -3072, 3072 * 768, -768}) {
            layers.push_back(count);
        }
    }
    std::vector<int64_t> convolutions;
    for (int block = 0; block < 30; ++block) {
        const int64_t channels = 64 << (block / 8);
        for (const int64_t count : {channels * channels * 9, -channels, -channels}) {
            convolutions.push_back(count);
        }
    }
    for (const Model& model : {Model{"transformer", layers}, Model{"convolutions", convolutions}}) {
        for (const int ranks : {2, 4, 8}) {
            for (const DType dtype : {DType::kFloat32, DType::kBfloat16}) {
                SCOPED_TRACE(std::string(model.name) + " " + std::to_string(ranks) + " ranks " +
                             dtype_name(dtype));
                const ParameterRanges parameters = parameters_of(model.counts);
                const Plan plan = plan_of(kNorms + kWeights, parameters, ranks, dtype,
                                          Op::kAllReduce, uint64_t{4} << 20);
                ASSERT_TRUE(plan.compressed) << plan.reason;
                double raw = 0, coded = 0;
                for (const ParameterRange& range : parameters.ranges) {
                    (range.dimensions == 1 ? raw : coded) += static_cast<double>(range.count);
                }
                const double formula =
                    2.0 * (ranks - 1) / ranks *
                    (coded * 34 / 64 + raw * static_cast<double>(dtype_bytes(dtype)));
                const auto sent = static_cast<double>(wire_bytes_of(plan, shape_of(ranks), 0));
                EXPECT_GE(sent, formula);
                EXPECT_LE(sent, 1.002 * formula);
                // The raw part has no residuals.
                EXPECT_LE(static_cast<double>(plan.residual.bytes),
                          4 * coded * (1 + 1.0 / ranks) * 1.002);
            }
        }
    }
}

TEST(SegmentedPlan, WhatCannotTravelInPartsSaysSo) {
    const ParameterRanges parameters = parameters_of({90000, -1000});
    const auto reason = [&](const std::string& action, Op op = Op::kAllReduce) {
        const Plan plan =
            plan_of(kNorms + rule("w", "", action), parameters, 4, DType::kFloat32, op);
        return (plan.compressed ? std::string("+") + algorithm_name(plan.algorithm) : "-") + " " +
               plan.reason;
    };
    EXPECT_EQ(reason("codec = 'int4'").substr(0, 9), "+two_shot");
    EXPECT_EQ(reason("codec = 'int4'", Op::kReduce).substr(0, 9), "+two_shot");
    EXPECT_EQ(reason("codec = 'topk'").substr(0, 7), "+sparse");
    EXPECT_EQ(reason("codec = 'int4'\nalgorithm = 'gather'").substr(0, 7), "+gather");
    EXPECT_EQ(reason("codec = 'randomk'\nalgorithm = 'summable'"),
              "- summable of allreduce has no form of messages whose parts differ");
    EXPECT_EQ(reason("codec = 'int4'\nef = 'ef21'").substr(0, 9), "+two_shot");
    EXPECT_EQ(reason("codec = 'int4'\nef = 'ef21'", Op::kReduce),
              "- ef21 has no form of reduce by two_shot");
    EXPECT_EQ(reason("codec = 'int4'", Op::kReduceScatter),
              "- direct of reducescatter has no form of messages whose parts differ");
}

// Codecs that reduce in one pass and such that do not share a message of the latter's kind.
TEST(SegmentedPlan, DifferentCodecsShareAMessage) {
    const std::string first = rule("a", "index = 1", "codec = 'topk'");
    const Plan mixed = plan_of(first + kWeights, parameters_of({90000, 9000, 90000}), 4);
    ASSERT_TRUE(mixed.compressed) << mixed.reason;
    EXPECT_EQ(mixed.algorithm, Algorithm::kSparse);
    const Plan reducing = plan_of(rule("a", "index = 1", "codec = 'int8'") + kWeights,
                                  parameters_of({90000, 9000}), 4);
    ASSERT_TRUE(reducing.compressed) << reducing.reason;
    EXPECT_EQ(reducing.algorithm, Algorithm::kTwoShot);
    EXPECT_EQ(reducing.layout.slices[0].pieces.size(), 2u);
    EXPECT_EQ(reducing.layout.fed_pieces(), 1u);
}

// --- Messages that travel as factors

// "3x4 at 5" of each matrix.
std::string text_of(const std::vector<MatrixShape>& matrices) {
    std::string text;
    for (const MatrixShape& matrix : matrices) {
        text += (text.empty() ? "" : ", ") + std::to_string(matrix.rows) + "x" +
                std::to_string(matrix.cols) + " at " + std::to_string(matrix.element);
    }
    return text;
}

// A matrix, a vector, a kernel of four dimensions, a matrix too small for two factors, one whose
// shape is not known.
ParameterRanges shaped() {
    ParameterRanges parameters = parameters_of({3000, -70, 5400, 24, 4000});
    parameters.ranges[0].rows = 30;
    parameters.ranges[1].rows = 70;
    parameters.ranges[2].rows = 60;
    parameters.ranges[2].dimensions = 4;
    parameters.ranges[3].rows = 6;
    parameters.ranges[4].dimensions = 0;
    return parameters;
}

TEST(Decision, MatricesAreParametersOrRows) {
    const auto of = [](const std::string& codec, const std::string& others = "") {
        return decided(others + rule("factors", "op = 'allreduce'", "codec = '" + codec + "'"),
                       shaped());
    };
    const Decision known = of("powersgd:rank=2");
    EXPECT_EQ(text_of(known.matrices), "30x100 at 0, 60x90 at 3070");
    EXPECT_TRUE(known.segments.empty());
    EXPECT_EQ(known.reason, "rule 'factors', 2 matrices of 67.2 %");
    EXPECT_EQ(text_of(of("powersgd:rank=2,row=64").matrices),
              "30x100 at 0, 60x90 at 3070, 62x64 at 8494")
        << "a row is for what has no shape";
    const Decision shared = of("powersgd:rank=2", rule("some", "index = 2", "codec = 'int4'"));
    EXPECT_EQ(text_of(shared.matrices), "30x100 at 0") << shared.reason;
    EXPECT_TRUE(shared.action.low_rank()) << shared.reason;
}

TEST(Decision, OfFactorsOneRankAloneOrNative) {
    const std::string of_all = "op = 'allreduce'";
    // The larger part decides; another codec, or another rank, shares no message with it.
    const Decision other = decided(rule("a", "index = 0", "codec = 'powersgd:rank=3'") +
                                       rule("b", of_all, "codec = 'powersgd:rank=2'"),
                                   shaped());
    EXPECT_EQ(text_of(other.matrices), "60x90 at 3070");
    EXPECT_TRUE(has(other, "powersgd:rank=3 of rule 'a' shares no message")) << other.reason;
    const Decision unfed = decided(rule("a", "index = 0", "codec = 'powersgd:rank=2'") +
                                       rule("b", of_all, "codec = 'powersgd:rank=2'\nef = 'ef14'"),
                                   shaped());
    EXPECT_EQ(text_of(unfed.matrices), "60x90 at 3070") << "its residuals are of all elements";
    const Decision raw = decided(
        rule("a", "index = 0", "codec = 'powersgd:rank=3'") + rule("b", of_all, "codec = 'int4'"),
        shaped());
    EXPECT_EQ(text_of(raw.segments), "raw 0+3000, int4! 3000+9494");
    EXPECT_TRUE(raw.matrices.empty());
    const Decision small = decided(rule("a", of_all, "codec = 'powersgd:rank=32'"), shaped());
    EXPECT_FALSE(small.action.codec.has_value());
    EXPECT_EQ(small.reason, "no matrix of it is twice as large as its factors of powersgd:rank=32");
    CallSignature signature = call_of(shaped());
    signature.ranges_id = 0;
    const auto unknown = [&](const std::string& codec) {
        return decide(signature, shape_of(4),
                      policy_of(rule("a", of_all, "codec = '" + codec + "'")), nullptr);
    };
    EXPECT_EQ(unknown("powersgd").reason,
              "the shapes of its matrices are not known, and powersgd has no row");
    EXPECT_EQ(text_of(unknown("powersgd:row=100").matrices), "124x100 at 0");
    signature.op = Op::kSend;
    signature.redop = RedOp::kNone;
    const auto message = [&](const std::string& codec, uint32_t told) {
        signature.row = told;
        return decide(signature, shape_of(4),
                      policy_of(rule("a", "op = 'send'", "codec = '" + codec + "'")), nullptr);
    };
    EXPECT_EQ(text_of(message("powersgd", 100).matrices), "124x100 at 0");
    EXPECT_EQ(message("powersgd", 100).action.codec->params.row, 100u);
    EXPECT_EQ(text_of(message("powersgd:row=50", 100).matrices), "249x50 at 0") << "as it says";
    EXPECT_EQ(message("powersgd", 0).remedy, kTellRows);
}

// Bytes by formula, what a tensor keeps, and which algorithms, operations and error feedback there
// are.
TEST(PlansOfFactors, SendFactorsAndWhatIsRaw) {
    const ParameterRanges parameters = shaped();
    const auto plan_of = [&](const std::string& action, Op op = Op::kAllReduce,
                             DType dtype = DType::kFloat32) {
        Config config;
        config.policy = policy_of("[[rule]]\nname = 'r'\n" + action + "\n");
        CallSignature signature = call_of(parameters, dtype);
        signature.op = op;
        return make_plan(signature, shape_of(4), config, &parameters);
    };
    constexpr uint64_t kLeft = 2 * (30 + 60), kRight = 2 * (100 + 90), kRaw = 70 + 24 + 4000;
    const Plan plan = plan_of("codec = 'powersgd:rank=2'\nef = 'ef14'");
    ASSERT_TRUE(plan.compressed) << plan.reason;
    EXPECT_EQ(plan.algorithm, Algorithm::kLowRank);
    EXPECT_EQ(wire_bytes_of(plan, shape_of(4), 1), 2 * 3 * 4 * (kLeft + kRight + kRaw) / 4);
    EXPECT_EQ(plan.residual.state_bytes, (kRight * 4 + 255) / 256 * 256);
    EXPECT_EQ(plan.residual.bytes, plan.residual.state_bytes + 4 * plan.signature.count);
    EXPECT_EQ(plan.residual.shared_elems, kRight);
    EXPECT_TRUE(plan.needs_slot);
    EXPECT_TRUE(plan.uses_error_feedback);
    EXPECT_TRUE(plan.capturable);
    const auto& ranges = plan.layout.factored->raw.ranges;
    ASSERT_EQ(ranges.size(), 2u);
    EXPECT_EQ(ranges[0].offset_elems, 3000u);
    EXPECT_EQ(ranges[1].offset_elems, 8470u);
    EXPECT_EQ(ranges[1].begin, 70);

    const Plan half = plan_of("codec = 'powersgd:rank=2'", Op::kAllReduce, DType::kBfloat16);
    ASSERT_TRUE(half.compressed) << half.reason;
    EXPECT_EQ(wire_bytes_of(half, shape_of(4), 1), 2 * 3 * (4 * (kLeft + kRight) + 2 * kRaw) / 4);
    EXPECT_EQ(half.residual.bytes, half.residual.state_bytes);
    EXPECT_TRUE(half.needs_slot);
    EXPECT_TRUE(half.uses_error_feedback) << "its state is one of training";

    const Plan rounded = plan_of("codec = 'powersgd:rank=2'\nef = 'ema'");
    EXPECT_TRUE(rounded.residual.staged);
    EXPECT_LT(rounded.residual.bytes, rounded.residual.state_bytes + 14000);

    EXPECT_EQ(plan_of("codec = 'powersgd:rank=2'\nef = 'ef14'", Op::kReduceScatter).reason,
              "low_rank has no form of reducescatter");
    EXPECT_EQ(plan_of("codec = 'linear_ae:width=2'", Op::kReduceScatter).reason,
              "low_rank has no form of reducescatter");
    EXPECT_EQ(plan_of("codec = 'int4'\nalgorithm = 'low_rank'").reason,
              "int4 has no factors of low rank");
}

}  // namespace
}  // namespace slimwire
