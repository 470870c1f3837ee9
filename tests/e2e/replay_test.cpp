// Captured graphs: every fixed-size codec inside a graph that is replayed gives the bits that plain
// calls give, with error feedback and stochastic rounding moving on at each replay.
#include <gtest/gtest.h>

#include "tests/support/has.h"
#include "tests/support/job.h"

namespace slimwire::test {
namespace {

constexpr char kAllOps[] =
    "allreduce\", \"reducescatter\", \"reduce\", \"allgather\", \"broadcast\", \"alltoall\", "
    "\"gather\", \"scatter\", \"send";

// The records of a job that replays calls which a rule with these operations and actions takes.
std::vector<nlohmann::json> replayed(const std::vector<std::string>& arguments,
                                     int ranks,
                                     const std::string& operations,
                                     const std::string& actions,
                                     const Environment& environment,
                                     std::vector<Ended>* ended) {
    const TemporaryFolder reports;
    std::vector<std::string> command = {SLIMWIRE_TEST_REPLAY};
    command.insert(command.end(), arguments.begin(), arguments.end());
    Job job = slimwire_job(command, ranks, reports.path());
    job.environment.insert(environment.begin(), environment.end());
    job.environment["SLIMWIRE_POLICY"] = "[[rule]]\nname = \"r\"\nmatch = { op = [\"" + operations +
                                         "\"] }\nmin_bytes = 1024\n" + actions;
    job.limit_s = 120;
    *ended = run_ranks(job);
    EXPECT_EQ(unless_all_exit(*ended), "");
    const auto records = read_reports(reports.path());
    const auto captured = [](const auto& key) {
        return key.at("reason") == "under stream capture";
    };
    EXPECT_EQ(sum_keys(records, "calls", captured), 0u);
    EXPECT_GT(sum_keys(records, "calls", compressed), 0u);
    return records;
}

struct ReplayCase {
    const char* name;
    const char* codec;
    const char* more = "ef = \"ef14\"\n";
    const char* steps = "40";
    const char* slices = "0";
    // Of rules that ask for it, and where ranks are; other operations are native then.
    const char* algorithm = "";
    int ranks = 2;
    const char* nodes = "2x1";
};

class Replay : public testing::TestWithParam<ReplayCase> {};

TEST_P(Replay, EqualsPlainCallsBitForBit) {
    const ReplayCase& of = GetParam();
    const std::string algorithm = of.algorithm;
    std::string actions = "codec = \"" + std::string(of.codec) + "\"\n" + of.more;
    actions += algorithm.empty() ? "" : "algorithm = \"" + algorithm + "\"\n";
    std::vector<Ended> ended;
    const auto records = replayed(
        {of.steps, "4097"}, of.ranks,
        algorithm.empty()             ? kAllOps
        : algorithm == "hierarchical" ? "allreduce\", \"reduce\", \"reducescatter"
                                      : "allreduce",
        actions, {{"SLIMWIRE_EMU_NODES", of.nodes}, {"runtime.slice_bytes", of.slices}}, &ended);
    if (algorithm.empty()) {
        // Nothing went native: five operations, and each was captured once.
        EXPECT_EQ(sum_keys(records, "calls", [](const auto& key) { return !compressed(key); }), 0u);
    } else {
        const auto by_it = [&](const auto& key) { return key.at("algorithm") == algorithm; };
        EXPECT_GT(sum_keys(records, "calls", by_it), 0u);
    }
}

constexpr char kAverage[] = "ef = \"ema\"\n";
constexpr ReplayCase kReplays[] = {
    {"int8", "int8", ""},
    {"int4_stochastic_feedback", "int4:rounding=stochastic", "ef = \"ef14\"\n", "1000"},
    {"int4_sliced", "int4:block=64,rounding=stochastic", "ef = \"ef14\"\n", "60", "4096"},
    {"int4_average", "int4:block=64", kAverage, "60", "4096"},
    {"int8_half_residual", "int8", "ef = \"ef14\"\nresidual = \"bf16\"\n"},
    {"topk_small_residual", "topk:fraction=0.05", "ef = \"ef14\"\nresidual = \"int8\"\n"},
    {"int2_rotated", "int2:rotate=64"},
    {"bf16_stochastic", "bf16:rounding=stochastic", ""},
    {"fp8", "fp8e4m3"},
    {"topk", "topk:fraction=0.05"},
    {"threshold", "threshold:threshold=4,fraction=0.2"},
    {"thresholds_that_follow", "threshold:fraction=0.1,refresh=3"},
    {"blocktopk", "blocktopk"},
    {"rowtopk", "rowtopk"},
    {"randomk", "randomk:fraction=0.1"},
    {"nodes", "int4:rounding=stochastic", "ef = \"ef14\"\n", "40", "0", "hierarchical", 3, "2x2"},
    {"nodes_average", "int4", kAverage, "40", "4096", "hierarchical", 4, "2x2"},
    {"nodes_sliced", "int4:rounding=stochastic", "ef = \"ef14\"\n", "40", "4096", "hierarchical", 4,
     "2x2"},
    {"gather", "int8:rounding=stochastic", "ef = \"ef14\"\n", "40", "0", "gather"},
    {"summable", "randomk:fraction=0.3", "ef = \"ef14\"\n", "40", "0", "summable"},
    {"summable_average", "randomk:fraction=0.3", kAverage, "40", "0", "summable"},
};
INSTANTIATE_TEST_SUITE_P(Codecs, Replay, testing::ValuesIn(kReplays), name_of);

// State that ranks keep alike, where steps are marked: replays move it on as calls do, with a graph
// on every rank, of a tensor's first call too, or on rank 0 alone; and a later job goes on with it.
TEST(ReplayOfState, EqualsPlainCallsOnRanksWithAGraphAndWithout) {
    for (const char* way : {"marked", "first", "alone"}) {
        for (const char* actions :
             {"codec = \"int4:block=64\"\nef = \"ef21\"",
              "codec = \"topk:fraction=0.05\"\nef = \"ef21\"\nalgorithm = \"sparse\"",
              "codec = \"int4:rounding=stochastic\"\nef = \"ef14\"",
              "codec = \"powersgd:rank=2,row=64\"\nef = \"ef14\"\nresidual = \"bf16\"",
              "codec = \"powersgd:rank=2,row=64\"", "codec = \"linear_ae:width=3,row=64\""}) {
            SCOPED_TRACE(std::string(way) + " " + actions);
            const TemporaryFolder folder;
            for (const bool again : {false, true}) {
                std::vector<Ended> ranks;
                (void)replayed({"20", "4097", way, folder.file("state.%r")}, 3,
                               "allreduce\", \"reducescatter", actions, {}, &ranks);
                EXPECT_EQ(ranks[0].out.find("loaded\n") != std::string::npos, again);
                EXPECT_HAS_NOT(ranks[0].err, "another state");
            }
        }
    }
}

}  // namespace
}  // namespace slimwire::test
