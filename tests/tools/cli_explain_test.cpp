// `slimwire explain`: the plan that a job would make, rules that do not take the call, and
// arguments that cannot be.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "tests/tools/cli_program.h"

namespace slimwire::cli::test {
namespace {

constexpr char kPolicy[] =
    "version = 1\n"
    "[[rule]]\nname = \"small\"\nmatch = { bytes = \"..1MiB\" }\ncodec = \"native\"\n"
    "[[rule]]\nname = \"other\"\nmatch = { op = \"allgather\" }\ncodec = \"native\"\n"
    "[[rule]]\nname = \"tensor\"\nmatch = { role = \"tp\" }\ncodec = \"native\"\n"
    "[[rule]]\nname = \"big\"\nmatch = { op = \"allreduce\" }\ncodec = \"int4:block=64\"\n"
    "error_feedback = \"ef14\"\nstart_step = 10\n";

class Explain : public testing::Test {
  protected:
    using Words = std::vector<std::string>;
    Words command(const Words& more) const { return with({"explain", "--policy", policy_}, more); }
    nlohmann::json json(const Words& more) const { return record_of(command(more)); }
    void use(const std::string& rules) {
        policy_ = folder_.write("q.toml", "version = 1\n" + rules);
    }
    ScratchFolder folder_;
    std::string policy_ = folder_.write("p.toml", kPolicy);
};

TEST_F(Explain, ThePlanItsBytesAndMemory) {
    const auto found = json({"--op", "allreduce", "--bytes", "64MiB", "--ranks", "4"});
    // Natively a ring's 2 (N - 1) / N; of residuals what a rank gives and its part of the sums, in
    // fp32.
    expect_members(found, {{"record", "explain"},
                           {"count", 16u << 20},
                           {"rule", "big"},
                           {"algorithm", "two_shot"},
                           {"codec", "int4+ef14"},
                           {"error_feedback", "ef14"},
                           {"start_step", 10},
                           {"captured", true},
                           {"slices", 4},
                           {"native_wire_bytes", (64u << 20) / 4 * 2 * 3},
                           {"residual_bytes", (64u << 20) / 4 * 5}});
    // Encodings of 4.25 bits go the same way.
    EXPECT_NEAR(found.at("wire_bytes").get<double>(), 4.25 / 32 * (64 << 20) / 4 * 2 * 3, 2000);
    EXPECT_EQ(found.at("passed_over"),
              (nlohmann::json{{{"rule", "small"}, {"for", "bytes"}},
                              {{"rule", "other"}, {"for", "op"}},
                              {{"rule", "tensor"}, {"for", "comm or role"}}}));
}

TEST_F(Explain, MessagesGoByTheirDirection) {
    use("[[rule]]\nname = \"back\"\nmatch = { op = \"send\", dtype = \"f16\", direction = "
        "\"backward\" }\ncodec = \"int8\"\n[[rule]]\nname = \"stages\"\nmatch = { op = \"send\" }\n"
        "codec = \"threshold:fraction=0.05,refresh=1,pair=mask\"\n");
    const auto sent = [&](const std::string& direction, const std::string& dtype = "f32") {
        return json(
            {"--op", "send", "--count", "4194304", "--direction", direction, "--dtype", dtype});
    };
    const auto forward = sent("forward"), backward = sent("backward");
    expect_members(backward, {{"direction", "backward"}, {"rule", "stages"}, {"captured", false}});
    EXPECT_NE(forward.at("steps"), backward.at("steps"));
    EXPECT_LT(backward.at("wire_bytes").get<double>(), 0.051 * 4 * (4 << 20));
    EXPECT_EQ(sent("backward", "f16").at("rule"), "back");
    EXPECT_EQ(sent("forward", "f16").at("passed_over")[0].at("for"), "direction");
    expect_says(2, command({"--op", "allreduce", "--count", "9", "--direction", "forward"}), {});
    succeed(command({"--op", "alltoall", "--count", "9", "--direction", "forward"}));
}

TEST_F(Explain, NodesMakeItHierarchical) {
    const Words call = {"--bytes", "64MiB", "--nodes", "2x4"};
    const auto found = json(call);
    expect_members(found, {{"ranks", 8}, {"algorithm", "hierarchical"}});
    EXPECT_LT(found.at("node_wire_bytes").get<uint64_t>(),
              found.at("native_wire_bytes").get<uint64_t>() / 6);
    // On slow links what crosses them decides.
    const auto slow = json(with(call, {"--between", "1"})).at("predicted");
    EXPECT_GT(slow.at("native_s").get<double>(), 5 * slow.at("hierarchical_s").get<double>());
    EXPECT_EQ(slow.at("gpu"), "h100");
    expect_prints(command(call), {"allreduce of 64 MiB (16777216 f32, sum) on 8 ranks, 2 nodes",
                                  "exchange parts between 2 nodes", "out of a node at most",
                                  "native for the first 10 calls"});
}

// Rings leave a node once, messages of ranks to ranks each for itself, and a root's go one way.
TEST_F(Explain, BytesThatLeaveANode) {
    constexpr double kEighth = (8 << 20) * 8.25 / 32;  // of the message, encoded
    const struct {
        const char* op;
        int eighths;
        const char* step;
    } kCases[] = {{"allgather", 7, "decode"},
                  {"broadcast", 8, "decode"},
                  {"gather", 2, "decode"},
                  {"scatter", 6, "decode"},
                  {"alltoall", 12, "decode"},
                  {"reducescatter", 6, "add them as they are decoded"},
                  {"reduce", 8, "decode on the root"}};
    for (const auto& one : kCases) {
        SCOPED_TRACE(one.op);
        use("[[rule]]\nname = \"r\"\nmatch = { op = \"" + std::string(one.op) +
            "\" }\ncodec = \"int8\"\n");
        const auto found = json({"--op", one.op, "--bytes", "64MiB", "--nodes", "4x2"});
        EXPECT_NEAR(found.at("node_wire_bytes").get<double>(), one.eighths * kEighth, 4096);
        EXPECT_EQ(found.at("steps").back(), one.step);
        const auto& times = found.at("predicted");
        EXPECT_GT(times.at("native_s"), 0);
        EXPECT_GT(times.size(), 3u);
    }
}

TEST_F(Explain, NativeSaysWhy) {
    const auto small = json({"--bytes", "1MiB"});
    expect_members(small, {{"rule", "small"},
                           {"algorithm", "native"},
                           {"wire_bytes", small.at("native_wire_bytes")},
                           {"remedy", nullptr}});  // the rule says so
    EXPECT_EQ(json({"--op", "broadcast", "--bytes", "64MiB"}).at("rule"), "");
    EXPECT_EQ(json({"--bytes", "64MiB", "--comm", "mesh_tp"}).at("rule"), "tensor");
    expect_prints(command({"--bytes", "64MiB", "--redop", "max"}),
                  {"native: max is not a sum", "remedy     sums or averages"});
    EXPECT_EQ(json({"--count", "1000", "--dtype", "bf16"}).at("bytes"), 2000);
}

TEST_F(Explain, ACodecWithoutTheErrorFeedbackThatItNeeds) {
    use("[[rule]]\nname = \"small\"\nmatch = { bytes = \"..1KiB\" }\ncodec = \"sign\"\n"
        "[[rule]]\nname = \"lossy\"\ncodec = \"topk:fraction=0.1\"\n");
    const std::string warning = "rule 'lossy' has no error feedback, which topk:fraction=0.1 needs";
    expect_prints(command({"--bytes", "4MiB"}), {"warning    ", warning});
    EXPECT_EQ(json({"--bytes", "4MiB"}).at("warnings").size(), 1u);  // not of the other rule
    expect_prints({"policy", "check", policy_}, {"  warning: ", warning});
}

TEST_F(Explain, RulesForParameters) {
    use("[[rule]]\nname = \"norms\"\nmatch = { param = \"1d\" }\ncodec = \"native\"\n"
        "[[rule]]\nname = \"matrices\"\ncodec = \"powersgd:rank=4\"\n");
    const Words call = {"--count", "525312", "--nodes", "1x2"};
    const auto unknown = json(call);
    EXPECT_EQ(unknown.at("algorithm"), "native");
    EXPECT_HAS(unknown.at("reason").get<std::string>(), "which parameters it carries");
    const auto known = json(with(call, {"--shapes", "1024x512,1024"}));
    // Of 2 ranks a ring's bytes are those of the message: factors and what is raw.
    expect_members(known, {{"algorithm", "low_rank"},
                           {"rule", "matrices"},
                           {"wire_bytes", 4 * (4 * (1024 + 512) + 1024)}});
    EXPECT_EQ(known.at("passed_over")[0].at("for"), "param");
    for (const auto& [shapes, why] :
         {std::pair{"1024x512", "have 524288 elements, the message 525312"},
          {"1024y2", "accepted: shapes of parameters"},
          {"0x7,7", "accepted: shapes of parameters"}}) {
        expect_says(2, command({"--count", "525312", "--shapes", shapes}), {why});
    }
}

TEST_F(Explain, RowsOfMessagesThatAreToldOrSaid) {
    use("[[rule]]\nname = \"stages\"\nmatch = { op = [\"send\", \"recv\"] }\n"
        "codec = \"powersgd:rank=4\"\n");
    const std::string both = "row= in the codec, or shapes in front of messages";
    expect_prints({"policy", "check", policy_}, {both});
    expect_prints(command({"--bytes", "4MiB", "--op", "send"}), {"has no row", both});
}

TEST_F(Explain, StagesOfARamp) {
    use("[[rule]]\nname = \"slow\"\ncodec = \"topk:fraction=0.01\"\nef = \"ef14\"\n"
        "ramp = [{ until = 10, codec = \"topk:fraction=1\" }, { until = 20, codec = "
        "\"topk:fraction=0.1\" },\n        { until = 30, codec = \"int8\" }]\n");
    const auto ramp = json({"--bytes", "4MiB"}).at("ramp");
    ASSERT_EQ(ramp.size(), 3u);
    EXPECT_EQ(ramp[0].at("codec"), "native");
    EXPECT_HAS(ramp[0].at("reason").get<std::string>(), "topk:fraction=1 of its ramp would not do");
    expect_members(ramp[1], {{"codec", "topk:fraction=0.1+ef14"}, {"until", 20}});
    EXPECT_HAS(ramp[2].at("reason").get<std::string>(), "keeps residuals otherwise");
}

// By a ring; and as a two-shot of 4 ranks, of quarters of 8.25 bits an element.
TEST_F(Explain, AveragingAndWhatItCosts) {
    const Words call = {"--bytes", "4MiB", "--nodes", "4x1"};
    for (const auto& [codec, bytes] :
         {std::pair("native", 2 * 3 * (4 << 20) / 4), {"int8", 2 * 3 * (1 << 18) * 33 / 32}}) {
        const std::string own = codec == std::string("native")
                                    ? ""
                                    : "average_codec = \"" + std::string(codec) + "\"\n";
        use("[[rule]]\nname = \"slow\"\nmatch = { op = \"allreduce\" }\n"
            "codec = \"topk:fraction=0.001\"\nef = \"ef14\"\naverage_every = 20\n" +
            own);
        EXPECT_EQ(json(call).at("averaging"),
                  (nlohmann::json{{"every", 20}, {"codec", codec}, {"wire_bytes", bytes}}));
        if (own.empty()) {
            expect_prints(command(call),
                          {"averaging  of residuals every 20 of a tensor's calls, as they are: ",
                           "307.2 KiB a call"});
        }
    }
}

// In front of a file's rules.
TEST_F(Explain, ACodecWithoutAPolicy) {
    const Words call = {"--bytes", "1MiB", "--ranks", "2", "--codec", "int8"};
    expect_prints(with({"explain"}, call), {"int8", "'env' of environment\n"});
    expect_prints(command(call), {"'env' of environment\n"});
    expect_says(1, {"explain", "--bytes", "1MiB", "--codec", "int5"}, {});
}

// The table of tools/policies/README.md: 64 MiB, natively and by the policy.
TEST(ExplainPolicies, TheirPageSaysWhatExplainSays) {
    const std::string folder = std::string(TOPOLOGY_DATA) + "/../../../tools/policies/";
    const std::string page = read_file(folder + "README.md");
    using Arguments = std::vector<std::string>;
    const std::tuple<const char*, const char*, Arguments> kCalls[] = {
        {"int8", "allreduce", {"--ranks", "8", "--between", "25"}},
        {"int4-ef14", "allreduce", {"--ranks", "8", "--between", "25"}},
        {"hierarchical", "allreduce", {"--nodes", "4x8", "--between", "3.125"}},
        {"sharded-int4", "reducescatter", {"--nodes", "4x8", "--between", "3.125"}},
        {"sharded-weights",
         "allgather",
         {"--nodes", "4x8", "--between", "3.125", "--dtype", "bf16"}},
        {"tensor-parallel", "allreduce", {"--nodes", "1x8", "--gpu", "l40s", "--dtype", "bf16"}},
        {"dct-pipeline", "send", {"--ranks", "2", "--between", "25", "--dtype", "bf16"}}};
    for (const auto& [policy, op, more] : kCalls) {
        SCOPED_TRACE(policy);
        const auto found = record_of(
            with({"explain", "--policy", folder + policy + ".toml", "--op", op, "--bytes", "64MiB"},
                 more));
        ASSERT_TRUE(found.contains("predicted")) << found;
        const auto& times = found.at("predicted");
        const std::string own = found.at("algorithm").get<std::string>() + "_s";
        ASSERT_TRUE(times.contains(own)) << times;
        EXPECT_HAS(page, fmt::format("`{}` | {:.1f} | {:.1f} |", policy,
                                     1e3 * times.at("native_s").get<double>(),
                                     1e3 * times.at(own).get<double>()));
    }
}

TEST_F(Explain, ArgumentsThatCannotBe) {
    const std::pair<std::vector<std::string>, const char*> kWrong[] = {
        {{}, "one of --bytes and --count"},
        {{"--bytes", "1MiB", "--count", "7"}, "one of --bytes and --count"},
        {{"--bytes", "1MiB", "--op", "alreduce"},
         "--op 'alreduce' (did you mean 'allreduce'?); accepted: allreduce, "},
        {{"--bytes", "16777215TiB"}, "accepted: at most 1099511627776 elements"},
        {{"--bytes", "1MiB", "--dtype", "f31"}, "--dtype 'f31' (did you mean 'f32'?); accepted: "},
        {{"--bytes", "1MiB", "--op", "send", "--redop", "sum"}, "send reduces nothing"},
        {{"--bytes", "1MB5"}, "1MB5"},
        {{"--bytes", "10", "--dtype", "f32"}, "needs a multiple of 4"},
        {{"--bytes", "4", "--op", "reducescatter", "--ranks", "3"}, "needs a multiple of 12"},
        {{"--bytes", "1MiB", "--nodes", "2y4"}, "--nodes '2y4'"},
        {{"--bytes", "1MiB", "--gpu", "gtx"}, "--gpu gtx; accepted: v100 "},
        {{"--bytes", "1MiB", "--nodes", "2x4", "--ranks", "3"}, "--nodes"},
        {{"--bytes", "1MiB", "--nodes", "46341x46341"}, "of at most 65536 ranks"},
        {{"--bytes", "1MiB", "--nodes", "65536x65536"}, "of at most 65536 ranks"},
        {{"--bytes", "1MiB", "--nodes", "32768x32768"}, "of at most 65536 ranks"},
        {{"--count", "-1"}, "--count: '-1': accepted: a whole number from 1 to "},
        {{"--count", "18446744073709551616"}, "--count: '18446744073709551616': accepted: "},
        {{"--bytes", "1MiB", "--between", "nan"}, "--between: 'nan': accepted: a finite number"},
    };
    for (const auto& [arguments, expected] : kWrong) {
        expect_says(2, command(arguments), {expected});
    }
    expect_says(1, {"explain", "--bytes", "1MiB", "--policy", "none.toml"}, {"none.toml"});
}

}  // namespace
}  // namespace slimwire::cli::test
