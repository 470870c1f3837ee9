// Every operation, type and operator of the emulated NCCL equals the float64 reference: with
// devices of one process, with several processes, with both, on one node and on several, strict and
// shaped.
#include <gtest/gtest.h>

#include "tests/support/has.h"
#include "tests/tools/emulator/nccl_jobs.h"

namespace slimwire::test {
namespace {

// Returns what the ranks wrote to stderr.
std::string expect_sweep(int ranks,
                         const std::string& size,
                         const Environment& environment,
                         const std::string& way = "eager") {
    Job job = emulator_job("sweep", ranks, {size, way});
    for (const auto& [name, value] : environment) {
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

TEST(NcclSweep, one_rank) {
    expect_sweep(1, "small", {});
}
TEST(NcclSweep, three_devices_of_one_process) {
    expect_sweep(1, "small", {{"SLIMWIRE_EMU_DEVICES", "3"}});
}
TEST(NcclSweep, four_processes) {
    expect_sweep(4, "small", {});
}
TEST(NcclSweep, processes_and_devices_on_two_nodes_in_strict_mode) {
    expect_sweep(2, "small",
                 {{"SLIMWIRE_EMU_DEVICES", "2"},
                  {"SLIMWIRE_EMU_NODES", "2x2"},
                  {"SLIMWIRE_EMU_STRICT", "1"}});
}
TEST(NcclSweep, shaped_link_with_latency) {
    const std::string said = expect_sweep(3, "small", {{"SLIMWIRE_EMU_LINK", "5gbit,20us"}});
    EXPECT_HAS_NOT(said, "SLIMWIRE_EMU_LINK");
}
TEST(NcclSweep, a_link_that_no_rank_uses_is_said_once) {
    const std::string said =
        expect_sweep(3, "tiny", {{"SLIMWIRE_EMU_LINK", "5gbit"}, {"SLIMWIRE_EMU_NODES", "1x3"}});
    const std::string line =
        "SLIMWIRE_EMU_LINK=5gbit shapes what leaves a node, and all 3 ranks of this communicator "
        "stand on one; SLIMWIRE_EMU_NODES=3x1 makes each rank a node";
    EXPECT_HAS(said, line);
    EXPECT_EQ(said.find("EMU_LINK"), said.rfind("EMU_LINK")) << said;
}
TEST(NcclSweep, large_blocks_of_many_slices) {
    expect_sweep(3, "large", {});
}

TEST(NcclSweep, captured_and_replayed_by_processes_and_devices) {
    expect_sweep(2, "small", {{"SLIMWIRE_EMU_DEVICES", "2"}, {"SLIMWIRE_EMU_STRICT", "1"}},
                 "graphs");
}
TEST(NcclSweep, one_graph_over_three_devices) {
    expect_sweep(1, "small", {{"SLIMWIRE_EMU_DEVICES", "3"}}, "one_graph");
}

}  // namespace
}  // namespace slimwire::test
