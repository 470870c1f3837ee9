// What a policy file means: matching, also of ranges of a call by param, index and name, defaults,
// canonical text, and the examples that ship.
#include "collectives/policy/policy.h"
#include "collectives/policy/parameter_match.h"
#include "collectives/policy/policy_keys.h"
#include "tests/support/seed.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <random>

namespace slimwire {
namespace {

Policy parsed(const std::string& rules) {
    auto policy = parse_policy("version = 1\n" + rules, "p.toml");
    EXPECT_TRUE(policy.ok()) << policy.status().message();
    return policy.ok() ? policy.value() : Policy{};
}

CallSignature all_reduce(DType dtype = DType::kFloat32, RedOp redop = RedOp::kSum) {
    return {Op::kAllReduce, dtype, redop, 0, 1024};
}

std::string decision(const Policy& policy,
                     const CallSignature& signature,
                     uint64_t bytes = 1 << 20,
                     int ranks = 4,
                     Scope scope = Scope::kInterNode) {
    const Rule* rule = policy.match(signature, bytes, ranks, scope);
    return rule != nullptr ? rule->name : "-";
}

TEST(Policy, by_the_name_of_the_communicator) {
    const Policy policy = parsed(R"(
[[rule]]
name = "tensor"
match = { op = "allreduce", role = ["tp", "ep"] }
[[rule]]
name = "named"
match = { op = "allreduce", comm = ["mesh_*", "dp?"] }
codec = "int4"
[[rule]]
name = "any"
match = { op = "allreduce", comm = "*" }
codec = "int8"
)");
    EXPECT_TRUE(policy.wants_names());
    EXPECT_TRUE(policy.warnings.empty()) << policy.warnings.front();
    const auto of = [&](const char* comm) {
        const Rule* rule = policy.match(all_reduce(), 1 << 20, 4, Scope::kInterNode, nullptr, comm);
        return rule != nullptr ? rule->name : "-";
    };
    EXPECT_EQ(of("TENSOR_MODEL_PARALLEL_GROUP"), "tensor");
    EXPECT_EQ(of("mesh_ep"), "tensor");
    EXPECT_EQ(of("mesh_dp"), "named");
    EXPECT_EQ(of("dp1"), "named");
    EXPECT_EQ(of("dp12"), "any");
    EXPECT_EQ(of(""), "any");
    EXPECT_FALSE(parsed("[[rule]]\nname = \"a\"\ncodec = \"int8\"\n").wants_names());
}

// A rule for some names leaves others to later rules, and takes none of one for more names.
TEST(Policy, rules_for_names_make_unreachable_what_they_cover) {
    const auto warnings = [](const char* first, const char* second) {
        return parsed((std::string("[[rule]]\nname = \"a\"\nmatch = { ") + first +
                       " }\n[[rule]]\nname = \"b\"\nmatch = { " + second + " }\n")
                          .c_str())
            .warnings.size();
    };
    EXPECT_EQ(warnings("role = \"dp\"", "op = \"allreduce\""), 0u);
    EXPECT_EQ(warnings("comm = \"x*\"", "comm = \"y*\""), 0u);
    EXPECT_EQ(warnings("role = [\"dp\", \"tp\"]", "role = \"dp\""), 1u);
    EXPECT_EQ(warnings("role = \"dp\"", "role = [\"dp\", \"tp\"]"), 0u);
    EXPECT_EQ(warnings("comm = \"x*\"", "comm = \"x*\""), 1u);
    EXPECT_EQ(warnings("op = \"allreduce\"", "op = \"allreduce\", role = \"dp\""), 1u);
}

TEST(Policy, first_matching_rule_wins) {
    const Policy policy = parsed(R"(
[[rule]]
name = "large"
match = { op = "allreduce", bytes = "1MiB.." }
codec = "int4"
[[rule]]
name = "any"
codec = "int8"
)");
    EXPECT_EQ(decision(policy, all_reduce(), 1 << 20), "large");
    EXPECT_EQ(decision(policy, all_reduce(), (1 << 20) - 1), "any");
    EXPECT_EQ(decision(policy, {Op::kAllToAll, DType::kFloat32, RedOp::kNone, 0, 9}), "any");
}

TEST(Policy, each_condition_is_checked) {
    const Policy policy = parsed(R"(
[[rule]]
name = "r"
codec = "int8"
[rule.match]
op = ["all_reduce", "reducescatter"]
dtype = ["fp32", "bf16"]
redop = ["sum", "avg"]
bytes = "64KiB..1MiB"
ranks = "2..16"
scope = "inter_node"
)");
    EXPECT_EQ(decision(policy, all_reduce()), "r");
    EXPECT_EQ(decision(policy, {Op::kReduceScatter, DType::kBfloat16, RedOp::kAvg, 0, 1}), "r");
    EXPECT_EQ(decision(policy, {Op::kReduce, DType::kFloat32, RedOp::kSum, 0, 1}), "-");
    EXPECT_EQ(decision(policy, all_reduce(DType::kFloat16)), "-");
    EXPECT_EQ(decision(policy, all_reduce(DType::kFloat32, RedOp::kMax)), "-");
    EXPECT_EQ(decision(policy, all_reduce(), 65536), "r");
    EXPECT_EQ(decision(policy, all_reduce(), 65535), "-");
    EXPECT_EQ(decision(policy, all_reduce(), 1048577), "-");
    EXPECT_EQ(decision(policy, all_reduce(), 1 << 20, 1), "-");
    EXPECT_EQ(decision(policy, all_reduce(), 1 << 20, 2), "r");
    EXPECT_EQ(decision(policy, all_reduce(), 1 << 20, 16), "r");
    EXPECT_EQ(decision(policy, all_reduce(), 1 << 20, 17), "-");
    EXPECT_EQ(decision(policy, all_reduce(), 1 << 20, 4, Scope::kIntraNode), "-");
}

TEST(Policy, half_open_ranges_and_a_single_number_of_ranks) {
    const Policy policy = parsed(R"(
[[rule]]
name = "small"
match = { bytes = "..4KiB", ranks = 4 }
codec = "int8"
[[rule]]
name = "many"
match = { ranks = "8.." }
codec = "int8"
)");
    EXPECT_EQ(decision(policy, all_reduce(), 4096, 4), "small");
    EXPECT_EQ(decision(policy, all_reduce(), 4097, 4), "-");
    EXPECT_EQ(decision(policy, all_reduce(), 4096, 5), "-");
    EXPECT_EQ(decision(policy, all_reduce(), 4096, 8), "many");
    EXPECT_EQ(decision(policy, all_reduce(), 4096, 1 << 20), "many");
}

TEST(Policy, actions_and_defaults) {
    const Policy policy = parsed(R"(
[defaults]
error_feedback = "ef14"
start_step = 10
min_bytes = "64KiB"
[[rule]]
name = "a"
match = { op = "allreduce" }
codec = "int4:block=128"
algorithm = "two_shot"
[[rule]]
name = "b"
codec = "int8"
ef = "none"
start_step = 0
min_bytes = 1000
[[rule]]
name = "c"
codec = "native"
)");
    ASSERT_EQ(policy.rules.size(), 3u);
    const Action& a = policy.rules[0].action;
    EXPECT_EQ(a.codec->to_string(), "int4:block=128");
    EXPECT_EQ(a.algorithm, Algorithm::kTwoShot);
    EXPECT_EQ(a.error_feedback, ErrorFeedback::kEf14);
    EXPECT_FALSE(a.needs_slot()) << "a residual alone is each rank's own";
    EXPECT_EQ(a.start_step, 10u);
    EXPECT_EQ(a.min_bytes, 65536u);
    const Action& b = policy.rules[1].action;
    EXPECT_EQ(b.error_feedback, ErrorFeedback::kNone);
    EXPECT_EQ(b.start_step, 0u);
    EXPECT_EQ(b.min_bytes, 1000u);
    const Action& c = policy.rules[2].action;
    EXPECT_FALSE(c.codec.has_value());
    EXPECT_EQ(c.error_feedback, ErrorFeedback::kNone) << "a default must not reach a native rule";
    EXPECT_EQ(policy.rules[1].line, 12);
}

TEST(Policy, a_rule_that_is_off_is_passed_over) {
    Policy policy = parsed(
        "[[rule]]\nname = \"a\"\ncodec = \"int4\"\n[[rule]]\nname = \"b\"\ncodec = \"int8\"\n");
    const std::string before = policy.canonical();
    policy.rules[0].off = true;
    EXPECT_EQ(decision(policy, all_reduce()), "b");
    EXPECT_NE(policy.canonical(), before);
    policy.rules[1].off = true;
    EXPECT_EQ(decision(policy, all_reduce()), "-");
    EXPECT_FALSE(policy.has_codec());
    EXPECT_FALSE(policy.can_compress(4, Scope::kInterNode));
}

// Parameters at start-up, gathered state and the like stay exact unless a rule names them.
TEST(Policy, a_rule_without_operations_leaves_copies_of_state_alone) {
    const Policy any = parsed("[[rule]]\nname = \"a\"\ncodec = \"int8\"\n");
    const Policy named = parsed(
        "[[rule]]\nname = \"a\"\nmatch = { op = [\"allgather\", \"broadcast\", \"gather\", "
        "\"scatter\"] }\ncodec = \"int8\"\n");
    for (const Op op : {Op::kAllGather, Op::kBroadcast, Op::kGather, Op::kScatter}) {
        const CallSignature signature{op, DType::kFloat32, RedOp::kNone, 0, 9};
        EXPECT_EQ(decision(any, signature), "-") << op_name(op);
        EXPECT_EQ(decision(named, signature), "a") << op_name(op);
    }
    for (const Op op : {Op::kAllToAll, Op::kSend, Op::kRecv}) {
        EXPECT_EQ(decision(any, {op, DType::kFloat32, RedOp::kNone, 0, 9}), "a") << op_name(op);
    }
    EXPECT_EQ(decision(named, {Op::kAllToAll, DType::kFloat32, RedOp::kNone, 0, 9}), "-");
}

TEST(Policy, both_ends_of_a_message_are_named_together) {
    for (const char* op : {"send", "recv"}) {
        const Policy policy = parsed("[[rule]]\nname = \"a\"\nmatch = { op = \"" + std::string(op) +
                                     "\" }\ncodec = \"int8\"\n");
        for (const Op end : {Op::kSend, Op::kRecv}) {
            EXPECT_EQ(decision(policy, {end, DType::kFloat32, RedOp::kNone, 1, 9}), "a");
        }
    }
}

TEST(Policy, can_compress_follows_shape_and_operation) {
    const Policy between = parsed(
        "[[rule]]\nname = \"a\"\nmatch = { scope = \"inter_node\", ranks = \"3..8\" }\n"
        "codec = \"int8\"\n");
    EXPECT_TRUE(between.can_compress(3, Scope::kInterNode));
    EXPECT_FALSE(between.can_compress(2, Scope::kInterNode));
    EXPECT_FALSE(between.can_compress(9, Scope::kInterNode));
    EXPECT_FALSE(between.can_compress(3, Scope::kIntraNode));
    EXPECT_FALSE(
        parsed("[[rule]]\nname = \"a\"\ncodec = \"int8\"\n").can_compress(1, Scope::kIntraNode));
    EXPECT_TRUE(parsed("[[rule]]\nname = \"a\"\nmatch = { op = \"send\" }\ncodec = \"int8\"\n")
                    .can_compress(4, Scope::kInterNode));
    EXPECT_FALSE(
        parsed("[[rule]]\nname = \"a\"\ncodec = \"native\"\n").can_compress(4, Scope::kInterNode));
}

TEST(Policy, can_compress_follows_names_algorithms_and_earlier_rules) {
    const Policy named = parsed(
        "[[rule]]\nname = \"a\"\nmatch = { role = \"tp\" }\ncodec = \"native\"\n"
        "[[rule]]\nname = \"b\"\nmatch = { comm = \"grads*\", op = \"send\" }\ncodec = \"int8\"\n"
        "[[rule]]\nname = \"c\"\nmatch = { role = \"tp\" }\ncodec = \"int8\"\n");
    EXPECT_TRUE(named.can_compress(4)) << "of any name";
    EXPECT_TRUE(named.can_compress(4, {}, "grads0"));
    EXPECT_EQ(named.compressed_ops(4, {}, "grads0"), bit_of(Op::kSend) | bit_of(Op::kRecv));
    EXPECT_FALSE(named.can_compress(4, {}, "other"));
    EXPECT_FALSE(named.can_compress(4, {}, "tp")) << "the first rule has all of it";
    EXPECT_FALSE(parsed("[[rule]]\nname = \"a\"\nmatch = { op = \"broadcast\" }\ncodec = \"int8\"\n"
                        "algorithm = \"two_shot\"\n")
                     .can_compress(4));
    // Of some bytes, or of one scope that is not known, is not all.
    for (const char* some : {"bytes = \"1MiB..\"", "scope = \"intra_node\"", "op = \"send\""}) {
        EXPECT_TRUE(parsed((std::string("[[rule]]\nname = \"a\"\nmatch = { ") + some +
                            " }\ncodec = \"native\"\n[[rule]]\nname = \"b\"\ncodec = \"int8\"\n")
                               .c_str())
                        .can_compress(4))
            << some;
    }
}

// Ranks compare the meaning: layout, names, comments and spelling do not enter, everything else
// does.
TEST(Policy, canonical_text_is_the_meaning) {
    const std::string canonical = parsed(R"(
[[rule]]
name = "a"
match = { op = "allreduce", dtype = "f32", bytes = "1MiB.." }
codec = "int4"
error_feedback = "ef14"
)")
                                      .canonical();
    EXPECT_EQ(canonical, parsed(R"(
# the same, otherwise written
[defaults]
ef = "ef14"
[[rule]]
codec = "int4:block=64"
min_bytes = 0
name = "gradients"
[rule.match]
bytes = "1048576.."
dtype = ["float"]
op = ["ALL_REDUCE"]
)")
                             .canonical());
    const std::string grads = R"(op = "allreduce", dtype = "f32", bytes = "1MiB..")";
    const std::string shards = R"(op = "reducescatter", dtype = "f32", bytes = "1MiB..")";
    const std::string fed = "codec = \"int4\"\nef = \"ef14\"\n";
    const auto expect_other = [&](const std::string& match, const std::string& action) {
        const std::string other = "match = { " + match + " }\n" + action + "\n";
        EXPECT_NE(canonical, parsed("[[rule]]\nname = \"a\"\n" + other).canonical()) << other;
    };
    for (const char* match :
         {R"(ranks = "2..")", "ordinal = 1", R"(redop = "sum")", R"(scope = "inter_node")",
          R"(comm = "dp")", R"(role = "dp")", R"(param = "1d")", "index = 1", R"(name = "*")",
          R"(ordinal = "0-4294967295")"}) {
        expect_other(grads + ", " + match, fed);
    }
    for (const char* match :
         {R"(op = "allreduce", dtype = "f32", bytes = "1MiB..2MiB")",
          R"(op = "allreduce", bytes = "1MiB..")", R"(dtype = "f32", bytes = "1MiB..")",
          R"(op = "send", dtype = "f32", bytes = "1MiB..", direction = "forward")"}) {
        expect_other(match, fed);
    }
    for (const char* action : {"codec = \"int4\"\nef = \"ema\"", "codec = \"int4\"\nef = \"ef21\"",
                               "codec = \"int4:block=128\"\nef = \"ef14\"", "codec = \"int4\""}) {
        expect_other(grads, action);
    }
    for (const char* action :
         {R"(residual = "int8")", R"(residual = "bf16")", R"(algorithm = "two_shot")",
          "start_step = 1", R"(accordion = { low = "int8", window = 100 })",
          R"(min_bytes = "auto")", "min_bytes = 1", "average_every = 20", "average_every = 21",
          "average_every = 20\naverage_codec = \"int8\""}) {
        expect_other(grads, fed + action);
    }
    const std::string a = "[[rule]]\nname = \"a\"\ncodec = \"int4\"\n";
    const std::string b = "[[rule]]\nname = \"b\"\ncodec = \"int8\"\n";
    EXPECT_NE(parsed(a + b).canonical(), parsed(b + a).canonical());
    for (const char* table :
         {"{}", "{ gain = 2 }", "{ step_size = 0.1 }", R"({ step_size = "told" })"}) {
        expect_other(shards, fed + "step_ahead = " + table);
    }
}

TEST(Policy, ordinals_are_numbers_and_ranges_and_match_where_one_is_known) {
    const Policy policy = parsed(
        "[[rule]]\nname = \"a\"\nmatch = { ordinal = [0, \"3-5\", 4, 6] }\ncodec = \"int4\"\n"
        "[[rule]]\nname = \"b\"\nmatch = { ordinal = 2 }\ncodec = \"int8\"\n");
    EXPECT_EQ(policy.rules[0].match.ordinals,
              (std::vector<ParameterMatch::Indices>{{0, 0}, {3, 6}}));
    EXPECT_NE(policy.canonical().find("ordinal=[1:0,3:3-6] "), std::string::npos)
        << policy.canonical();
    CallSignature signature = all_reduce();
    std::string decided;
    for (signature.ordinal = 0; signature.ordinal < 9; ++signature.ordinal) {
        decided += decision(policy, signature);
    }
    EXPECT_EQ(decided, "-a-baaaa-");
    EXPECT_TRUE(policy.wants_steps());
    signature.ordinal = 900;
    EXPECT_EQ(decision(parsed("[[rule]]\nname = \"a\"\nmatch = { ordinal = \"12-\" }\ncodec = "
                              "\"int4\"\n"),
                       signature),
              "a");
    Policy off = policy;
    off.rules[0].off = off.rules[1].off = true;
    EXPECT_FALSE(off.wants_steps());
}

// What all ranks of a tensor keep alike waits for its slot.
TEST(Policy, SlotsAreNeededForWhatRanksKeepAlike) {
    const auto action = [](const std::string& keys) {
        return parsed("[[rule]]\nname = \"r\"\nmatch = { op = \"allreduce\" }\n" + keys).rules[0];
    };
    for (const char* keys : {"codec = \"int4\"", "codec = \"int4\"\nef = \"ef14\"",
                             "codec = \"threshold\"\nef = \"ema\""}) {
        EXPECT_FALSE(action(keys).action.needs_slot()) << keys;
    }
    for (const char* keys :
         {"codec = \"int4\"\nef = \"ef21\"", "codec = \"powersgd\"",
          "codec = \"int4\"\nef = \"ef14\"\naccordion = { low = \"int8\", window = 9 }",
          "codec = \"int4\"\nef = \"ef14\"\naverage_every = 5",
          "codec = \"int4\"\nef = \"ef14\"\nstep_ahead = { step_size = 1 }"}) {
        EXPECT_TRUE(action(keys).action.needs_slot()) << keys;
        Policy policy;
        policy.rules.push_back(action(keys));
        EXPECT_TRUE(policy.wants_steps()) << keys;
        EXPECT_TRUE(policy.wants_parameters()) << "DDP's bucket table tells slots: " << keys;
        policy.rules[0].match.ops = bit_of(Op::kReduceScatter);
        EXPECT_FALSE(policy.wants_parameters()) << keys;
    }
}

TEST(Policy, parameters_are_wanted_where_a_rule_that_is_on_asks) {
    for (const char* match : {"param = \"1d\"", "index = 3", "name = \"*\""}) {
        Policy policy = parsed(std::string("[[rule]]\nname = \"r\"\nmatch = { ") + match + " }\n");
        EXPECT_TRUE(policy.wants_parameters()) << match;
        policy.rules[0].off = true;
        EXPECT_FALSE(policy.wants_parameters()) << match;
    }
}

TEST(Policy, shipped_examples_parse_without_warnings) {
    const char* root = std::getenv("SOURCE_ROOT");
    ASSERT_NE(root, nullptr);
    int seen = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(std::string(root) + "/tools/policies")) {
        if (entry.path().extension() != ".toml") {
            continue;
        }
        ++seen;
        const auto policy = load_policy_file(entry.path());
        ASSERT_TRUE(policy.ok()) << policy.status().message();
        EXPECT_TRUE(policy.value().warnings.empty()) << policy.value().warnings[0];
        EXPECT_EQ(policy.value().has_codec(), entry.path().stem() != "off") << entry.path();
    }
    EXPECT_GE(seen, 5);
}

ParameterMatch match_of(const std::string& keys) {
    const auto policy =
        parse_policy("version = 1\n[[rule]]\nname = \"r\"\nmatch = { " + keys + " }\n", "p.toml");
    EXPECT_TRUE(policy.ok()) << policy.status().message();
    return policy.ok() ? policy.value().rules[0].match.parameters : ParameterMatch{};
}

// What ranks compare of it.
std::string canonical(const ParameterMatch& parameters) {
    Match match;
    match.parameters = parameters;
    return value_of(match_values(match)).canonical();
}

ParameterRange range_of(uint32_t parameter, uint8_t dimensions, std::string name = "") {
    return {.offset = 0,
            .count = 1,
            .parameter = parameter,
            .dimensions = dimensions,
            .name = std::move(name)};
}

std::string taken_dimensions(const std::string& keys) {
    const ParameterMatch match = match_of(keys);
    std::string taken;
    for (uint8_t d = 0; d < 20; ++d) {
        taken += match.matches(range_of(0, d)) ? std::to_string(d) + " " : "";
    }
    return taken;
}

TEST(ParameterMatch, dimensions) {
    EXPECT_EQ(taken_dimensions("param = \"1d\""), "1 ");
    EXPECT_EQ(taken_dimensions("param = [\"1d\", \"4d\"]"), "1 4 ");
    EXPECT_EQ(taken_dimensions("param = \"5d\""), "5 ");
    EXPECT_EQ(taken_dimensions("param = [\"2d\", \"4d+\"]"),
              "2 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 ");
    EXPECT_TRUE(match_of("op = \"allreduce\"").any());
    EXPECT_FALSE(match_of("param = \"1d+\"").any()) << "without dimensions is another";
    for (const char* bad : {"", "d", "1", "0d", "6d", "1d-", "1d++", "11d", "1D", " 1d"}) {
        EXPECT_EQ(parse_dimensions(bad), 0u) << bad;
    }
    EXPECT_EQ(dimensions_texts(parse_dimensions("3d+") | parse_dimensions("1d")),
              (std::vector<std::string>{"1d", "3d+"}));
}

TEST(ParameterMatch, indices) {
    const ParameterMatch match = match_of("index = [\"10-20\", 3, \"7\", 21, \"15-18\"]");
    std::string taken;
    for (uint32_t i = 0; i < 40; ++i) {
        taken += match.matches(range_of(i, 1)) ? std::to_string(i) + " " : "";
    }
    EXPECT_EQ(taken, "3 7 10 11 12 13 14 15 16 17 18 19 20 21 ");
    EXPECT_EQ(canonical(match), "{index=[1:3,1:7,5:10-21]}");
    EXPECT_EQ(match, match_of("index = [3, \"7-7\", \"10-21\"]"));
    const ParameterMatch top = match_of("index = [\"4294967295\", 4294967294]");
    EXPECT_TRUE(top.matches(range_of(~0u, 1)));
    EXPECT_FALSE(top.matches(range_of(0, 1)));
    const ParameterMatch open = match_of("index = [\"12-\", 3]");
    EXPECT_TRUE(open.matches(range_of(12, 1)) && open.matches(range_of(~0u, 1)));
    EXPECT_FALSE(open.matches(range_of(11, 1)));
    EXPECT_EQ(canonical(open), "{index=[1:3,3:12-]}");
    EXPECT_EQ(open, match_of("index = [3, \"12-4294967295\"]"));
    for (const char* bad : {"", "-", "1--", "-1", "3-2", "1-2-3", "4294967296", "1 - 2", "0x1"}) {
        EXPECT_FALSE(parse_indices(bad).has_value()) << bad;
    }
}

TEST(ParameterMatch, names) {
    const ParameterMatch match = match_of("name = [\"*.bias\", \"norm?.weight\"]");
    EXPECT_TRUE(match.matches(range_of(0, 1, "layer.3.bias")));
    EXPECT_TRUE(match.matches(range_of(0, 1, ".bias")));
    EXPECT_TRUE(match.matches(range_of(0, 1, "norm1.weight")));
    EXPECT_FALSE(match.matches(range_of(0, 1, "norm12.weight")));
    EXPECT_FALSE(match.matches(range_of(0, 1, "layer.3.bias2")));
    EXPECT_FALSE(match.matches(range_of(0, 1))) << "its name is not known";
    EXPECT_FALSE(match_of("name = \"*\"").matches(range_of(0, 1)));
    EXPECT_FALSE(match_of("name = \"*\"").any());
}

TEST(ParameterMatch, all_conditions_must_hold) {
    const ParameterMatch match = match_of("param = \"1d\", index = \"5-9\", name = \"*.bias\"");
    EXPECT_TRUE(match.matches(range_of(7, 1, "a.bias")));
    EXPECT_FALSE(match.matches(range_of(7, 2, "a.bias")));
    EXPECT_FALSE(match.matches(range_of(4, 1, "a.bias")));
    EXPECT_FALSE(match.matches(range_of(7, 1, "a.weight")));
    EXPECT_EQ(canonical(match), "{param=[2:1d],index=[3:5-9],name=[6:*.bias]}");
}

// What ranks compare: names of any characters cannot look like other conditions.
TEST(ParameterMatch, canonical_texts_differ) {
    EXPECT_NE(canonical(match_of("name = [\"a\", \"b\"]")),
              canonical(match_of("name = \"a,1:b\"")));
    EXPECT_EQ(canonical(match_of("name = [\"b\", \"a\", \"b\"]")),
              canonical(match_of("name = [\"a\", \"b\"]")));
    EXPECT_NE(canonical(match_of("index = 1")), canonical(match_of("param = \"1d\"")));
    EXPECT_EQ(canonical(match_of("op = \"allreduce\"")), "{}");
}

// Every split of the name between the characters of the pattern, tried one by one.
bool slow_match(std::string_view pattern, std::string_view name) {
    if (pattern.empty()) {
        return name.empty();
    }
    if (pattern[0] == '*') {
        for (size_t skip = 0; skip <= name.size(); ++skip) {
            if (slow_match(pattern.substr(1), name.substr(skip))) {
                return true;
            }
        }
        return false;
    }
    return !name.empty() && (pattern[0] == '?' || pattern[0] == name[0]) &&
           slow_match(pattern.substr(1), name.substr(1));
}

TEST(ParameterMatch, patterns_agree_with_trying_every_split) {
    const uint64_t seed = test_seed();
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto text = [&](std::string_view letters, size_t most) {
        std::string out(random() % (most + 1), ' ');
        for (char& c : out) {
            c = letters[random() % letters.size()];
        }
        return out;
    };
    int matched = 0;
    for (int round = 0; round < 20000; ++round) {
        const std::string pattern = text("ab**?", 7), name = text("ab", 8);
        matched += slow_match(pattern, name) ? 1 : 0;
        ASSERT_EQ(name_matches(pattern, name), slow_match(pattern, name))
            << pattern << " and " << name;
    }
    EXPECT_GT(matched, 1000);
    // Many stars take no longer than the product of both lengths.
    const std::string stars(200, '*'), letters(20000, 'a');
    EXPECT_FALSE(name_matches(stars + "b" + stars, letters));
}

}  // namespace
}  // namespace slimwire
