// Rules that can never decide a call, checked against brute force over small random policies.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "collectives/policy/policy.h"
#include "tests/support/seed.h"

namespace slimwire {
namespace {

std::vector<std::string> warnings_of(const std::string& rules) {
    const auto policy = parse_policy("version = 1\n" + rules, "p.toml");
    EXPECT_TRUE(policy.ok()) << policy.status().message();
    return policy.ok() ? policy.value().warnings : std::vector<std::string>{"error"};
}

std::string rule(const std::string& name, const std::string& match) {
    return "[[rule]]\nname = \"" + name + "\"\nmatch = {" + match + "}\ncodec = \"native\"\n";
}

TEST(PolicyWarnings, an_earlier_rule_takes_all) {
    const auto warnings = warnings_of(rule("all", "") + rule("late", "op = \"allreduce\""));
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_EQ(warnings[0],
              "p.toml:6: rule 'late' is never reached: earlier rules take all its calls: 'all'");
}

TEST(PolicyWarnings, two_rules_together_take_all) {
    const auto warnings =
        warnings_of(rule("low", "bytes = \"..1MiB\"") + rule("other", "op = \"send\"") +
                    rule("high", "bytes = \"1MiB..\"") +
                    rule("late", "op = \"allreduce\", bytes = \"64KiB..2MiB\""));
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_NE(warnings[0].find("rule 'late' is never reached"), std::string::npos);
    EXPECT_NE(warnings[0].find("'low', 'high'"), std::string::npos) << warnings[0];
}

TEST(PolicyWarnings, a_gap_of_one_byte_keeps_a_rule_reachable) {
    const std::string low = rule("low", "bytes = \"..100\"");
    const std::string late = rule("late", "");
    // In both orders: the rest is cut once from below and once from above.
    for (const bool low_first : {true, false}) {
        const auto both = [&](const std::string& high) {
            return (low_first ? low + high : high + low) + late;
        };
        EXPECT_TRUE(warnings_of(both(rule("high", "bytes = \"102..\""))).empty());
        EXPECT_EQ(warnings_of(both(rule("high", "bytes = \"101..\""))).size(), 1u);
    }
}

TEST(PolicyWarnings, a_match_that_no_call_can_meet) {
    const auto warnings = warnings_of(rule("a", "op = \"allgather\", redop = \"sum\""));
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_EQ(warnings[0], "p.toml:2: rule 'a' is never reached: its match is empty");
}

TEST(PolicyWarnings, a_rule_that_leaves_all_its_calls_native) {
    const auto of = [](const std::string& match, const std::string& action) {
        const auto warnings = warnings_of("[[rule]]\nname = \"a\"\nmatch = { op = \"allreduce\", " +
                                          match + " }\ncodec = \"int8\"\n" + action);
        return warnings.empty() ? std::string() : warnings[0];
    };
    EXPECT_EQ(of("bytes = \"..4KiB\"", "min_bytes = \"1MiB\"\n"),
              "p.toml:2: rule 'a' compresses nothing: its 'min_bytes' is above the 'bytes' that it "
              "matches");
    EXPECT_EQ(of("bytes = \"..4KiB\"", "min_bytes = \"4KiB\"\n"), "");
    EXPECT_EQ(of("ranks = 1", ""),
              "p.toml:2: rule 'a' compresses nothing: one rank has nobody to send to");
    EXPECT_EQ(of("ranks = \"1..2\"", ""), "");
    EXPECT_EQ(of("scope = \"intra_node\"", "algorithm = \"hierarchical\"\n"),
              "p.toml:2: rule 'a' compresses nothing: hierarchical compresses between nodes, and "
              "its 'scope' is inside one");
    EXPECT_EQ(of("scope = \"inter_node\"", "algorithm = \"hierarchical\"\n"), "");
}

TEST(PolicyWarnings, an_algorithm_that_takes_no_encodings_of_the_codec) {
    const std::tuple<const char*, const char*, const char*> kCases[] = {
        {"int4", "summable", "int4 has encodings that do not add up"},
        {"topk", "two_shot", "topk does not reduce in one pass; write sparse"},
        {"int4", "sparse", "int4 reduces in one pass; write two_shot"},
        {"bf16", "low_rank", "bf16 has no factors of low rank"},
        {"int8:row=1024", "auto",
         "int8:row=1024 goes by columns, which have no form of all-reduces and reduces"},
        {"int8:row=1024", "hierarchical",
         "int8:row=1024 goes by the columns of whole messages; write direct or auto"},
        {"randomk", "summable", ""},
        {"topk", "sparse", ""},
        {"int4", "two_shot", ""},
        {"powersgd", "low_rank", ""},
    };
    for (const auto& [codec, algorithm, why] : kCases) {
        SCOPED_TRACE(std::string(codec) + " " + algorithm);
        std::string text;
        for (const std::string& one :
             warnings_of("[[rule]]\nname = \"a\"\nmatch = { op = \"allreduce\" }\ncodec = \"" +
                         std::string(codec) + "\"\nalgorithm = \"" + algorithm + "\"\n")) {
            text += one.find("compresses nothing") != std::string::npos ? one : "";
        }
        EXPECT_EQ(text, *why == '\0'
                            ? std::string()
                            : "p.toml:2: rule 'a' compresses nothing: " + std::string(why));
    }
}

TEST(PolicyWarnings, defaults_of_no_rule) {
    const auto warnings = warnings_of("[defaults]\ncodec = \"int8\"\n");
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_NE(warnings[0].find("[defaults] are of rules, and there is none"), std::string::npos);
    EXPECT_TRUE(warnings_of("[runtime]\nsummary = false\n").empty());
}

TEST(PolicyWarnings, an_algorithm_without_a_form_of_what_is_named) {
    const auto of = [](const std::string& match, const std::string& action) {
        return warnings_of("[[rule]]\nname = \"a\"\n" + match + action);
    };
    const auto named = of("match = { op = [\"allreduce\", \"allgather\"] }\n",
                          "codec = \"int4\"\nalgorithm = \"two_shot\"\n");
    ASSERT_EQ(named.size(), 1u);
    EXPECT_EQ(named[0], "p.toml:2: rule 'a' leaves allgather native: two_shot has no form of it");
    // Naming no operation means those that the algorithm carries.
    EXPECT_TRUE(of("", "codec = \"int4\"\nalgorithm = \"hierarchical\"\n").empty());
    EXPECT_TRUE(
        of("match = { op = [\"allreduce\", \"allgather\"] }\n", "codec = \"int4\"\n").empty());
}

TEST(PolicyWarnings, factors_without_a_form_of_what_is_named) {
    const auto of = [](const std::string& match) {
        const auto warnings = warnings_of("[[rule]]\nname = \"a\"\n" + match +
                                          "codec = \"powersgd\"\nerror_feedback = \"ef14\"\n");
        EXPECT_LE(warnings.size(), 1u);
        return warnings.empty() ? "" : warnings[0];
    };
    EXPECT_EQ(of("match = { op = [\"allreduce\", \"reducescatter\"] }\n"),
              "p.toml:2: rule 'a' leaves reducescatter native: low_rank has no form of it");
    EXPECT_EQ(of("match = { op = \"allreduce\" }\n"), "");
    EXPECT_EQ(of(""), "");
    EXPECT_EQ(warnings_of("[[rule]]\nname = \"a\"\nmatch = { op = \"alltoall\" }\n"
                          "codec = \"linear_ae:row=64\"\n"),
              std::vector<std::string>{"p.toml:2: rule 'a' leaves alltoall native: low_rank has no "
                                       "form of it without 'forward_calls'"});
}

TEST(PolicyWarnings, estimates_without_a_form_of_what_is_named) {
    const auto of = [](const std::string& match, const std::string& action) {
        const auto warnings =
            warnings_of("[[rule]]\nname = \"a\"\n" + match + "codec = \"int4\"\n" + action);
        EXPECT_LE(warnings.size(), 1u);
        return warnings.empty() ? "" : warnings[0];
    };
    const std::string ef21 = "error_feedback = \"ef21\"\n";
    EXPECT_EQ(of("match = { op = [\"allreduce\", \"reduce\"] }\n", ef21),
              "p.toml:2: rule 'a' leaves reduce native: ef21 has no form of it");
    EXPECT_EQ(of("match = { op = \"allreduce\" }\n", ef21 + "algorithm = \"hierarchical\"\n"),
              "p.toml:2: rule 'a' leaves allreduce native: ef21 has no form of it by hierarchical");
    EXPECT_EQ(of("match = { op = [\"allreduce\", \"reduce\", \"send\"] }\n",
                 ef21 + "algorithm = \"two_shot\"\n"),
              "p.toml:2: rule 'a' leaves send+recv native: two_shot has no form of it; leaves "
              "reduce native: ef21 has no form of it by two_shot");
    // All that it would take without naming any.
    EXPECT_EQ(of("", ef21 + "algorithm = \"hierarchical\"\n").find("p.toml:2: rule 'a' leaves "),
              0u);
    for (const char* none : {"", "algorithm = \"two_shot\"\n"}) {
        EXPECT_EQ(of("", ef21 + none), "");
        EXPECT_EQ(of("match = { op = \"allreduce\" }\n", ef21 + none), "");
    }
    EXPECT_EQ(of("match = { op = \"reducescatter\" }\n", ef21), "");
    EXPECT_EQ(of("match = { op = [\"reducescatter\", \"allgather\"] }\n", ef21),
              "p.toml:2: rule 'a' leaves allgather native: ef21 has no form of it");
    EXPECT_EQ(of("match = { op = \"allreduce\" }\n", ef21 + "algorithm = \"gather\"\n"), "");
    EXPECT_EQ(of("match = { op = \"reduce\" }\n", "error_feedback = \"ef14\"\n"), "");
}

// Codecs that lose about half or more, with a bias: accuracy_test.cpp has their errors.
TEST(PolicyWarnings, a_codec_without_the_error_feedback_that_it_needs) {
    const auto of = [](const std::string& codec, const std::string& more) {
        const auto warnings =
            warnings_of("[[rule]]\nname = \"a\"\nmatch = { op = \"allreduce\" }\ncodec = \"" +
                        codec + "\"\n" + more);
        EXPECT_LE(warnings.size(), 1u) << codec;
        return warnings.empty() ? "" : warnings[0];
    };
    for (const char* codec :
         {"int2", "sign", "sign:scale=l2", "ternary:rounding=nearest",
          "qsgd:levels=7,rounding=nearest", "topk:fraction=0.01", "threshold:refresh=9",
          "blocktopk", "rowtopk", "randomk", "bounded", "powersgd"}) {
        EXPECT_EQ(of(codec, ""), std::string("p.toml:2: rule 'a' has no error feedback, which ") +
                                     parse_codec(codec).value().to_string() +
                                     " needs: what an encoding loses is lost for good; accepted: "
                                     "error_feedback = \"ef14\"");
        EXPECT_EQ(of(codec, "error_feedback = \"ef14\"\n"), "");
    }
    for (const char* codec :
         {"bf16", "fp16", "fp8e4m3", "fp8e5m2", "mxfp4", "nvfp4", "int8", "int4",
          "int2:rounding=stochastic", "ternary", "natural", "natural:rounding=nearest", "qsgd",
          "qsgd:levels=7", "bounded:capacity=1", "linear_ae"}) {
        EXPECT_EQ(of(codec, ""), "");
    }
    EXPECT_EQ(of("topk:fraction=0.05", "error_feedback = \"ef21\"\n"), "");
    // A codec of a stage, or of the other link.
    EXPECT_NE(of("int8", "ramp = [{ until = 9, codec = \"topk:fraction=0.1\" }]\n"), "");
    EXPECT_NE(of("int8", "intra_codec = \"int2\"\n"), "");
    // Activations are of one step.
    for (const char* match :
         {"op = [\"send\", \"recv\"] }\ncodec = \"topk:pair=mask\"",
          "op = \"send\" }\ncodec = \"topk\"", "op = \"alltoall\" }\ncodec = \"randomk\"",
          "op = [\"allgather\", \"reducescatter\"], redop = [\"sum\", \"none\"] }\n"
          "codec = \"topk:pair=mask\"\nforward_calls = 2"}) {
        const auto of_step =
            warnings_of(std::string("[[rule]]\nname = \"a\"\nmatch = { ") + match + "\n");
        EXPECT_TRUE(of_step.empty()) << of_step[0];
    }
    const auto narrow = warnings_of(
        "[[rule]]\nname = \"a\"\nmatch = { dtype = \"bf16\" }\ncodec = \"bounded:capacity=1\"\n");
    EXPECT_EQ(narrow.size(), 1u) << "16-bit blocks may need twice their size";
}

TEST(PolicyWarnings, a_threshold_that_nobody_chose) {
    const auto of = [](const std::string& codec) {
        return warnings_of("[[rule]]\nname = \"a\"\ncodec = \"" + codec +
                           "\"\nerror_feedback = \"ef14\"\n");
    };
    for (const char* codec : {"threshold", "threshold:fraction=0.1,values=int8"}) {
        ASSERT_EQ(of(codec).size(), 1u) << codec;
        EXPECT_EQ(of(codec)[0], "p.toml:2: rule 'a' has " + parse_codec(codec).value().to_string() +
                                    ", whose threshold is not chosen: where more reach it than "
                                    "have room the last ones are never sent; accepted: "
                                    "refresh=1000, by which it follows the data, or threshold=");
    }
    for (const char* codec : {"threshold:threshold=0.5", "threshold:refresh=1000", "topk"}) {
        EXPECT_TRUE(of(codec).empty()) << codec;
    }
}

TEST(PolicyWarnings, a_rule_that_is_off_takes_nothing) {
    auto policy = parse_policy("version = 1\n" + rule("all", "") + rule("late", ""), "p.toml");
    ASSERT_TRUE(policy.ok());
    ASSERT_EQ(policy_warnings(policy.value()).size(), 1u);
    policy.value().rules[0].off = true;
    EXPECT_TRUE(policy_warnings(policy.value()).empty());
}

// Such a rule takes part of a call: later ones are reached unless they ask for no more.
TEST(PolicyWarnings, a_rule_for_parameters_takes_ranges) {
    const auto is_reached = [](const std::string& first, const std::string& later) {
        const auto warnings = warnings_of(rule("first", first) + rule("later", later));
        EXPECT_LE(warnings.size(), 1u);
        EXPECT_TRUE(warnings.empty() ||
                    warnings[0].find("rule 'later' is never reached") != std::string::npos);
        return warnings.empty();
    };
    EXPECT_TRUE(is_reached("param = \"1d\"", ""));
    EXPECT_TRUE(is_reached("param = \"1d\"", "op = \"allreduce\""));
    EXPECT_FALSE(is_reached("", "param = \"1d\""));
    EXPECT_FALSE(is_reached("param = \"2d+\"", "param = [\"2d\", \"4d\"]"));
    EXPECT_TRUE(is_reached("param = [\"2d\", \"4d\"]", "param = \"2d+\""));
    EXPECT_FALSE(is_reached("index = \"3-9\"", "index = [3, \"5-9\"], param = \"1d\""));
    EXPECT_TRUE(is_reached("index = \"3-9\"", "index = [3, \"5-10\"]"));
    EXPECT_TRUE(is_reached("index = \"3-9\"", "param = \"1d\""));
    EXPECT_TRUE(is_reached("index = \"3-9\", param = \"1d\"", "index = 4"));
    EXPECT_FALSE(is_reached("name = [\"*.bias\", \"a\"]", "name = \"a\""));
    EXPECT_FALSE(is_reached("name = \"*\"", "name = \"a\""));
    EXPECT_TRUE(is_reached("name = \"*\"", "index = 4"));
    EXPECT_TRUE(is_reached("name = \"a\"", "name = \"*\""));
    // What is gathered or broadcast is never known.
    const auto gathered = warnings_of(rule("a", "op = \"allgather\", param = \"1d\""));
    ASSERT_EQ(gathered.size(), 1u);
    EXPECT_EQ(gathered[0], "p.toml:2: rule 'a' is never reached: its match is empty");
}

// Nothing takes all that has no known place but a rule that does not ask.
TEST(PolicyWarnings, a_rule_for_ordinals_takes_some_calls) {
    const auto is_reached = [](const std::string& first, const std::string& later) {
        return warnings_of(rule("first", first) + rule("later", later)).empty();
    };
    EXPECT_TRUE(is_reached("ordinal = 0", ""));
    EXPECT_TRUE(is_reached("ordinal = \"0-4294967295\"", ""));
    EXPECT_TRUE(is_reached("ordinal = \"0-3\"", "ordinal = [3, 4]"));
    EXPECT_FALSE(is_reached("ordinal = \"0-3\"", "ordinal = [1, 3]"));
    EXPECT_FALSE(is_reached("", "ordinal = 1"));
}

// The rules that a call of the grid reaches. Ends where no rule that is on is missing.
std::vector<bool> reached_rules(const Policy& policy) {
    std::vector<bool> reached(policy.rules.size(), false);
    auto missing = std::count_if(policy.rules.begin(), policy.rules.end(),
                                 [](const Rule& rule) { return !rule.off; });
    const auto meet = [&](const CallSignature& signature, uint64_t bytes, int ranks) {
        const bool reduces = signature.op <= Op::kReduce;
        for (const Scope scope : {Scope::kIntraNode, Scope::kInterNode}) {
            for (uint8_t dimensions = 0; dimensions < (reduces ? 9 : 1); ++dimensions) {
                const ParameterRange range{0, 1, 7, dimensions, ""};
                const Rule* rule =
                    policy.match(signature, bytes, ranks, scope, reduces ? &range : nullptr);
                if (rule != nullptr) {
                    auto met = reached[static_cast<size_t>(rule - policy.rules.data())];
                    missing -= met ? 0 : 1;
                    met = true;
                }
            }
        }
    };
    for (int op = 0; op < kOpCount; ++op) {
        for (int redop = 0; redop < kRedOpCount; ++redop) {
            const bool reduces = op <= static_cast<int>(Op::kReduce);
            if (reduces == (static_cast<RedOp>(redop) == RedOp::kNone)) {
                continue;
            }
            for (int at = 0; missing > 0 && at < kDTypeCount * 8 * 6; ++at) {
                meet({static_cast<Op>(op), static_cast<DType>(at / 48), static_cast<RedOp>(redop),
                      0, 1},
                     static_cast<uint64_t>(at / 6 % 8), at % 6);
            }
        }
    }
    return reached;
}

// A rule is unreachable exactly when no call of a grid that holds every boundary reaches it.
TEST(PolicyWarnings, agrees_with_brute_force) {
    const uint64_t seed = test_seed();
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t n) { return random() % n; };
    int unreachable = 0;
    for (int round = 0; round < 200; ++round) {
        Policy policy;
        const size_t rules = 2 + below(4);
        for (size_t i = 0; i < rules; ++i) {
            Rule r;
            r.name = "r" + std::to_string(i);
            r.off = below(8) == 0;
            if (below(2) == 0) {
                r.match.ops =
                    bit_of(Op::kAllReduce) | (below(2) << 3);  // with or without all-gather
            }
            if (below(2) == 0) {
                r.match.redops = below(2) == 0 ? bit_of(RedOp::kSum) : kCompressedRedOps;
            }
            if (below(2) == 0) {
                r.match.dtypes = 1 + below(kAllDTypes);
            }
            if (below(2) == 0) {
                r.match.min_bytes = below(4);
                r.match.max_bytes = r.match.min_bytes + below(4);
            }
            if (below(3) == 0) {
                r.match.min_ranks = static_cast<int>(below(3));
                r.match.max_ranks = r.match.min_ranks + static_cast<int>(below(3));
            }
            if (below(3) == 0) {
                r.match.scope = below(2) == 0 ? Scope::kIntraNode : Scope::kInterNode;
            }
            if (below(3) == 0) {
                r.match.parameters.dimensions = 1 + below(ParameterMatch::kAllDimensions);
            }
            policy.rules.push_back(r);
        }
        const std::vector<bool> reached = reached_rules(policy);
        const auto warnings = policy_warnings(policy);
        for (size_t i = 0; i < rules; ++i) {
            bool warned = false;
            for (const std::string& warning : warnings) {
                warned |= warning.find("rule 'r" + std::to_string(i) + "' is never reached") !=
                          std::string::npos;
            }
            const bool expected = !reached[i] && !policy.rules[i].off;
            unreachable += expected ? 1 : 0;
            ASSERT_EQ(warned, expected) << "round " << round << " rule " << i;
        }
    }
    EXPECT_GT(unreachable, 10) << "the random policies show nothing";
}

}  // namespace
}  // namespace slimwire
