// Every operation, type and operator of the emulated NCCL gives the exact result: with
// devices of one process, with several processes, with both, on one node and on several, strict and
// shaped.
#include <gtest/gtest.h>

#include "tests/support/has.h"
#include "tests/tools/emulator/nccl_jobs.h"

namespace slimwire::test {
namespace {

struct Sweep {
    const char* name;
    int ranks;
    std::vector<std::string> arguments;
    Environment environment = {};
};
const Sweep kSweeps[] = {
    {"one_rank", 1, {"small"}},
    {"three_devices_of_one_process", 1, {"small"}, {{"SLIMWIRE_EMU_DEVICES", "3"}}},
    {"four_processes", 4, {"small"}},
    {"processes_and_devices_on_two_nodes_in_strict_mode",
     2,
     {"small"},
     {{"SLIMWIRE_EMU_DEVICES", "2"}, {"SLIMWIRE_EMU_NODES", "2x2"}, {"SLIMWIRE_EMU_STRICT", "1"}}},
    {"shaped_link_with_latency", 3, {"small"}, {{"SLIMWIRE_EMU_LINK", "5gbit,20us"}}},
    {"large_blocks_of_many_slices", 3, {"large"}},
    {"captured_and_replayed_by_processes_and_devices",
     2,
     {"small", "graphs"},
     {{"SLIMWIRE_EMU_DEVICES", "2"}, {"SLIMWIRE_EMU_STRICT", "1"}}},
    {"one_graph_over_three_devices", 1, {"small", "one_graph"}, {{"SLIMWIRE_EMU_DEVICES", "3"}}},
};

// What the ranks wrote to stderr.
std::string run(const Sweep& sweep) {
    Job job = emulator_job("sweep", sweep.ranks, sweep.arguments);
    for (const auto& [name, value] : sweep.environment) {
        job.environment[name] = value;
    }
    job.limit_s = 200;
    const auto ended = run_ranks(job);
    EXPECT_EQ(unless_all_exit(ended), "");
    std::string said;
    for (const Ended& rank : ended) {
        EXPECT_HAS(rank.out, "checked ") << "nothing was checked";
        said += rank.err;
    }
    return said;
}

class NcclSweep : public testing::TestWithParam<Sweep> {};

TEST_P(NcclSweep, is_exact) {
    const std::string said = run(GetParam());
    EXPECT_HAS_NOT(said, "SLIMWIRE_EMU_LINK");
}
INSTANTIATE_TEST_SUITE_P(Of, NcclSweep, testing::ValuesIn(kSweeps), [](const auto& info) {
    return std::string(info.param.name);
});

TEST(NcclLink, one_that_no_rank_uses_is_said_once) {
    const std::string said =
        run({"", 3, {"tiny"}, {{"SLIMWIRE_EMU_LINK", "5gbit"}, {"SLIMWIRE_EMU_NODES", "1x3"}}});
    const std::string line =
        "SLIMWIRE_EMU_LINK=5gbit shapes what leaves a node, and all 3 ranks of this communicator "
        "stand on one; SLIMWIRE_EMU_NODES=3x1 makes each rank a node";
    EXPECT_HAS(said, line);
    EXPECT_EQ(said.find("EMU_LINK"), said.rfind("EMU_LINK")) << said;
}

}  // namespace
}  // namespace slimwire::test
