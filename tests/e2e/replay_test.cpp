// Captured graphs: every fixed-size codec inside a graph that is replayed gives the bits that plain
// calls give, with error feedback and stochastic rounding moving on at each replay.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/job.h"

namespace slimwire::test {
namespace {

struct ReplayCase {
    const char* name;
    const char* codec;
    bool feedback;
    int steps;
    const char* slices = "0";
    const char* kind = "ef14";
    const char* residual = "";
};

class Replay : public testing::TestWithParam<ReplayCase> {};

TEST_P(Replay, EqualsPlainCallsBitForBit) {
    const ReplayCase& of = GetParam();
    const TemporaryFolder reports;
    Job job =
        slimwire_job({SLIMWIRE_TEST_REPLAY, std::to_string(of.steps), "4097"}, 2, reports.path());
    job.environment["SLIMWIRE_CODEC"] = of.codec;
    job.environment["SLIMWIRE_OPS"] = "all";
    job.environment["SLIMWIRE_MIN_BYTES"] = "1KiB";
    job.environment["runtime.slice_bytes"] = of.slices;
    if (of.feedback) {
        job.environment["SLIMWIRE_EF"] = of.kind;
    }
    if (*of.residual != 0) {
        for (const char* name :
             {"SLIMWIRE_CODEC", "SLIMWIRE_OPS", "SLIMWIRE_MIN_BYTES", "SLIMWIRE_EF"}) {
            job.environment.erase(name);
        }
        job.environment["SLIMWIRE_POLICY"] =
            "[[rule]]\nname = \"all\"\nmatch = { op = [\"allreduce\", \"reducescatter\", "
            "\"reduce\", \"allgather\", \"broadcast\", \"alltoall\", \"gather\", \"scatter\", "
            "\"send\"] }\nmin_bytes = \"1KiB\"\ncodec = \"" +
            std::string(of.codec) + "\"\nef = \"" + of.kind + "\"\nresidual = \"" + of.residual +
            "\"\n";
    }
    job.limit_s = 120;
    const auto ranks = run_ranks(job);
    ASSERT_EQ(unless_all_exit(ranks), "");
    const auto records = read_reports(reports.path());
    // Nothing went native: five operations, and each was captured once.
    EXPECT_EQ(sum_keys(records, "calls", [](const auto& key) { return !compressed(key); }), 0u);
    EXPECT_GT(sum_keys(records, "calls", compressed), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Codecs,
    Replay,
    testing::Values(
        ReplayCase{"int8", "int8", false, 40},
        ReplayCase{"int4_stochastic_feedback", "int4:rounding=stochastic", true, 1000},
        ReplayCase{"int4_sliced", "int4:block=64,rounding=stochastic", true, 60, "4096"},
        ReplayCase{"int4_average", "int4:block=64", true, 60, "4096", "ema"},
        ReplayCase{"int8_half_residual", "int8", true, 40, "0", "ef14", "bf16"},
        ReplayCase{"topk_small_residual", "topk:fraction=0.05", true, 40, "0", "ef14", "int8"},
        ReplayCase{"int2_rotated", "int2:rotate=64", true, 40},
        ReplayCase{"bf16_stochastic", "bf16:rounding=stochastic", false, 40},
        ReplayCase{"fp8", "fp8e4m3", true, 40},
        ReplayCase{"topk", "topk:fraction=0.05", true, 40},
        ReplayCase{"threshold", "threshold:threshold=4,fraction=0.2", true, 40},
        ReplayCase{"thresholds_that_follow", "threshold:fraction=0.1,refresh=3", true, 40},
        ReplayCase{"blocktopk", "blocktopk", true, 40},
        ReplayCase{"rowtopk", "rowtopk", true, 40},
        ReplayCase{"randomk", "randomk:fraction=0.1", true, 40}),
    [](const auto& info) { return std::string(info.param.name); });

// State that ranks keep alike, where steps are marked: replays move it on as calls do, with a graph
// on every rank, of a tensor's first call too, or on rank 0 alone; and a later job goes on with it.
TEST(ReplayOfState, EqualsPlainCallsOnRanksWithAGraphAndWithout) {
    for (const char* way : {"marked", "first", "alone"}) {
        for (const char* action :
             {"codec = \"int4:block=64\"\nef = \"ef21\"",
              "codec = \"topk:fraction=0.05\"\nef = \"ef21\"\nalgorithm = \"sparse\"",
              "codec = \"int4:rounding=stochastic\"\nef = \"ef14\"",
              "codec = \"powersgd:rank=2,row=64\"\nef = \"ef14\"\nresidual = \"bf16\"",
              "codec = \"powersgd:rank=2,row=64\"", "codec = \"linear_ae:width=3,row=64\""}) {
            SCOPED_TRACE(std::string(way) + " " + action);
            const TemporaryFolder folder;
            std::ofstream(folder.file("policy.toml"))
                << "version = 1\n[[rule]]\nname = \"r\"\n"
                << "match = { op = [\"allreduce\", \"reducescatter\"] }\nmin_bytes = 2048\n"
                << action << "\n";
            for (const bool again : {false, true}) {
                const TemporaryFolder reports;
                Job job =
                    slimwire_job({SLIMWIRE_TEST_REPLAY, "20", "4097", way, folder.file("state.%r")},
                                 3, reports.path());
                job.environment["SLIMWIRE_POLICY"] = folder.file("policy.toml");
                const auto ranks = run_ranks(job);
                EXPECT_EQ(unless_all_exit(ranks), "");
                EXPECT_EQ(ranks[0].out.find("loaded\n") != std::string::npos, again);
                EXPECT_EQ(ranks[0].err.find("another state"), std::string::npos) << ranks[0].err;
                const auto records = read_reports(reports.path());
                EXPECT_GT(sum_keys(records, "calls", compressed), 0u);
                EXPECT_EQ(sum_keys(records, "calls",
                                   [](const auto& key) {
                                       return key.at("reason") == "under stream capture";
                                   }),
                          0u);
            }
        }
    }
}

}  // namespace
}  // namespace slimwire::test
