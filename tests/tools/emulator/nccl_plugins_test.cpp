// The emulated NCCL as plugins see it: every version of the network's table, protocols on the wire,
// tuner.
#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/support/has.h"
#include "tests/tools/emulator/nccl_net_log.h"

namespace slimwire::test {
namespace {

struct Outcome {
    std::vector<NetLog> logs;
    std::vector<Ended> ended;

    [[nodiscard]] long sum(const std::string& name) const { return sum_of(logs, name); }
};

// Runs `program` on two nodes over the test plugin; its ranks check their results.
Outcome over_plugin(const Environment& environment,
                    const std::string& program = "wire",
                    const std::string& argument = "") {
    constexpr int kRanks = 2;
    const TemporaryFolder folder;
    Job job = plugin_job(program, kRanks, folder.file("log"));
    if (!argument.empty()) {
        job.command.push_back(argument);
    }
    for (const auto& [name, value] : environment) {
        job.environment[name] = value;
    }
    Outcome outcome;
    outcome.ended = run_ranks(job);
    EXPECT_EQ(unless_all_exit(outcome.ended), "");
    outcome.logs = read_net_log(folder.file("log"));
    if (outcome.logs.size() != static_cast<size_t>(kRanks)) {
        throw std::runtime_error("the plugin was not closed in order: " + outcome.ended[0].err);
    }
    return outcome;
}

// The test plugin with all versions of the network's table, and with 11 alone.
constexpr std::pair<const char*, int> kVersions[] = {{"testtcp", 12}, {"testtcp11", 11}};

TEST(NcclPlugins, every_version_of_the_table_carries_everything) {
    for (const auto& [plugin, version] : kVersions) {
        SCOPED_TRACE(plugin);
        const Outcome outcome =
            over_plugin({{"NCCL_NET_PLUGIN", plugin}, {"NCCL_NET", "testTCP"}}, "sweep", "large");
        for (const NetLog& log : outcome.logs) {
            EXPECT_EQ(log.at("version"), version);
            EXPECT_GT(log.at("attributes"), 0);
        }
        EXPECT_GT(outcome.sum("bytes"), 1'000'000);
    }
}

TEST(NcclPlugins, contexts_belong_to_communicators) {
    for (const auto& [plugin, version] : kVersions) {
        SCOPED_TRACE(plugin);
        const Outcome outcome = over_plugin({{"NCCL_NET_PLUGIN", plugin}}, "wire", "split");
        for (const NetLog& log : outcome.logs) {
            EXPECT_EQ(log.at("inits"), 2);
            EXPECT_EQ(log.at("finalizes"), 2);
        }
    }
}

TEST(NcclPlugins, protocols_carry_their_flags) {
    const Outcome ll = over_plugin({{"NCCL_PROTO", "LL"}}, "sweep");
    EXPECT_GT(ll.sum("ll"), 0);
    EXPECT_GT(ll.sum("told_ll"), 0);
    EXPECT_GT(ll.sum("optional"), 0);
    const Outcome ll128 = over_plugin({{"NCCL_PROTO", "LL128"}}, "sweep");
    EXPECT_GT(ll128.sum("ll128"), 0);
    EXPECT_EQ(ll128.sum("told_ll"), 0);
    const Outcome simple = over_plugin({{"NCCL_PROTO", "Simple"}, {"NCCL_P2P_LL_THRESHOLD", "0"}});
    EXPECT_EQ(simple.sum("optional"), 0);
    EXPECT_LT(simple.sum("bytes"), ll128.sum("bytes"));
    EXPECT_LT(ll128.sum("bytes"), ll.sum("bytes"));
}

TEST(NcclPlugins, a_completion_that_is_not_optional_is_waited_for) {
    const Outcome outcome = over_plugin(
        {{"NCCL_PROTO", "LL"}, {"NCCL_NET_OPTIONAL_RECV_COMPLETION", "0"}}, "sweep", "large");
    EXPECT_EQ(outcome.sum("optional"), 0);
    EXPECT_GT(outcome.sum("ll"), 0);
}

TEST(NcclPlugins, a_protocol_that_is_none_is_refused) {
    Job job = plugin_job("wire", 2, "/dev/null");
    job.environment["NCCL_PROTO"] = "LL,Fast";
    const auto ended = run_ranks(job);
    EXPECT_NE(unless_all_exit(ended), "");
    EXPECT_HAS(ended[0].err, "NCCL_PROTO: 'Fast'");
}

// Buffers are divided as in NCCL: a message takes two of eight steps of Simple's buffer.
TEST(NcclPlugins, messages_have_the_sizes_of_nccl) {
    const Outcome all = over_plugin({{"NCCL_PROTO", "Simple"}});
    EXPECT_EQ(all.logs[0].at("largest"), 500'000) << "a quarter of a block";
    EXPECT_GT(all.sum("larger_receives"), 0) << "a slot is larger";
    const Outcome small = over_plugin({{"NCCL_PROTO", "Simple"}, {"NCCL_BUFFSIZE", "65536"}});
    EXPECT_EQ(small.logs[0].at("largest"), 16384);
    const Outcome ll = over_plugin({{"NCCL_PROTO", "LL"}});
    EXPECT_EQ(ll.logs[0].at("largest"), 65536);
    const Outcome p2p = over_plugin(
        {{"NCCL_PROTO", "Simple"}, {"NCCL_BUFFSIZE", "4096"}, {"NCCL_P2P_NET_CHUNKSIZE", "2048"}},
        "sweep", "large");
    EXPECT_EQ(p2p.logs[0].at("largest"), 2048);
}

TEST(NcclPlugins, the_tuner_chooses_the_protocol) {
    const Outcome with_ll =
        over_plugin({{"NCCL_P2P_LL_THRESHOLD", "0"}, {"TEST_TUNER_PROTOCOL", "0"}});
    EXPECT_GT(with_ll.sum("tuned"), 0);
    EXPECT_GT(with_ll.sum("told_ll"), 0);
    const Outcome with_simple =
        over_plugin({{"NCCL_P2P_LL_THRESHOLD", "0"}, {"TEST_TUNER_PROTOCOL", "2"}});
    EXPECT_EQ(with_simple.sum("told_ll"), 0);
    const Outcome none = over_plugin({{"NCCL_TUNER_PLUGIN", "none"}});
    EXPECT_EQ(none.sum("tuned"), 0);
}

}  // namespace
}  // namespace slimwire::test
