// What goes over the wire and through which network: byte counts of a ring, traffic inside a node
// and between nodes, and a plugin named by NCCL_NET_PLUGIN, found as NCCL finds it.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/support/has.h"
#include "tests/tools/emulator/nccl_net_log.h"

namespace slimwire::test {
namespace {

struct Wire {
    unsigned long sent = 0, inter_node = 0, messages = 0;
};

std::vector<Wire> wire_of(Job job) {
    const auto ended = run_ranks(job);
    EXPECT_EQ(unless_all_exit(ended), "");
    std::vector<Wire> wires;
    for (const Ended& rank : ended) {
        Wire wire;
        EXPECT_EQ(sscanf(rank.out.c_str(), "sent %lu inter_node %lu messages %lu", &wire.sent,
                         &wire.inter_node, &wire.messages),
                  3)
            << rank.out;
        wires.push_back(wire);
    }
    return wires;
}

TEST(NcclNet, a_ring_sends_its_byte_count) {
    for (const Wire& wire : wire_of(emulator_job("wire", 4))) {
        EXPECT_EQ(wire.inter_node, wire.sent) << "each rank is a node of its own";
    }
}

TEST(NcclNet, traffic_inside_a_node_is_counted_apart) {
    Job job = emulator_job("wire", 4);
    job.environment["SLIMWIRE_EMU_NODES"] = "2x2";
    const std::vector<Wire> wires = wire_of(job);
    // Ranks 0 and 2 send to a neighbour on their node, 1 and 3 to the other node.
    EXPECT_EQ(wires[0].inter_node, 0u);
    EXPECT_EQ(wires[1].inter_node, wires[1].sent);
    EXPECT_EQ(wires[2].inter_node, 0u);
    EXPECT_EQ(wires[3].inter_node, wires[3].sent);
}

long bytes_carried(const std::string& log) {
    return sum_of(read_net_log(log), "bytes");
}

TEST(NcclNet, a_plugin_carries_the_traffic_between_nodes) {
    const TemporaryFolder folder;
    // By name, by the library's file name, and by path; after an entry that does not exist.
    const std::string path = std::string(SLIMWIRE_TEST_PROGRAMS) + "/libnccl-net-testtcp.so";
    for (const std::string& entry :
         {std::string("nonesuch,testtcp"), std::string("libnccl-net-testtcp.so"), path}) {
        const std::string log = folder.file("log" + std::to_string(entry.size()));
        Job job = plugin_job("wire", 4, log);
        job.environment["NCCL_NET_PLUGIN"] = entry;
        unsigned long expected = 0;
        for (const Wire& wire : wire_of(job)) {
            expected += wire.inter_node;
        }
        EXPECT_EQ(bytes_carried(log), static_cast<long>(expected)) << entry;
    }
}

TEST(NcclNet, inside_a_node_the_plugin_is_not_used) {
    const TemporaryFolder folder;
    Job job = plugin_job("wire", 4, folder.file("log"));
    job.environment["NCCL_NET_PLUGIN"] = "testtcp";
    job.environment["SLIMWIRE_EMU_NODES"] = "2x2";
    const std::vector<Wire> wires = wire_of(job);
    EXPECT_EQ(bytes_carried(folder.file("log")),
              static_cast<long>(wires[1].inter_node + wires[3].inter_node));
}

TEST(NcclNet, a_plugin_that_cannot_be_used_is_passed_over) {
    const struct {
        const char *variable, *value, *said;
        bool carries;  // another entry of the list does
    } cases[] = {
        {"NCCL_NET", "IB", "NCCL_NET wants 'IB'", false},
        {"TEST_NET_BROKEN", "1", "failed to initialize", false},
        {"NCCL_NET_PLUGIN", "libc.so.6,testtcp", "libc.so.6 is unsupported", true},
    };
    for (const auto& one : cases) {
        const TemporaryFolder folder;
        Job job = plugin_job("wire", 2, folder.file("log"));
        job.environment[one.variable] = one.value;
        const auto ended = run_ranks(job);
        EXPECT_EQ(unless_all_exit(ended), "");
        EXPECT_HAS(ended[0].err, one.said);
        EXPECT_EQ(bytes_carried(folder.file("log")) > 0, one.carries) << one.said;
    }
}

TEST(NcclNet, a_name_that_nobody_has_is_an_error) {
    const TemporaryFolder folder;
    Job job = plugin_job("wire", 2, folder.file("log"));
    job.environment["NCCL_NET"] = "nonesuch";
    const auto ended = run_ranks(job);
    EXPECT_NE(unless_all_exit(ended), "");
    EXPECT_HAS(ended[0].err, "no network is named 'nonesuch'");
}

}  // namespace
}  // namespace slimwire::test
