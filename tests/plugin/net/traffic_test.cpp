// What the engine counts is what was sent, to the byte, at both ends; the totals outlive their
// connections and stay bounded.
#include "plugin/net/engine/traffic.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "plugin/net/engine/frame.h"
#include "tests/plugin/net/exchange.h"
#include "tests/plugin/net/messages.h"
#include "tests/support/seed.h"

namespace slimwire::net {
namespace {

struct Case {
    const char* name;
    void (*change)(EngineSettings&);
};

class NetTraffic : public testing::TestWithParam<Case> {};

const Case kCases[] = {
    {"palette", [](EngineSettings&) {}},
    {"codec_off", [](EngineSettings& s) { s.codec = false; }},
    {"checksums", [](EngineSettings& s) { s.checksum = true; }},
    {"small_pieces",
     [](EngineSettings& s) {
         s.piece_bytes = kLeastPieceBytes;
         s.min_bytes = 5000;
     }},
};

PeerTotals only(const Traffic& traffic) {
    const std::vector<PeerTraffic> peers = traffic.peers();
    EXPECT_EQ(peers.size(), 1u);
    return peers.empty() ? PeerTotals() : peers[0].totals;
}

TEST_P(NetTraffic, both_ends_count_what_the_network_moved) {
    EngineSettings settings;
    GetParam().change(settings);
    EnginePair pair;
    ASSERT_TRUE(pair.open(settings, {}).ok());
    std::mt19937 random(test_seed());
    std::vector<Message> messages;
    uint64_t bytes = 0;
    for (const size_t size : {0, 1, 4000, 5001, 40'000, 200'000, 1 << 20}) {
        messages.emplace_back(gaussian_bytes(DType::kBfloat16, size, random), 100);
        messages.emplace_back(random_bytes(size, random), 0);
        bytes += 2 * size;
    }
    uint64_t flagged_bytes = 0;
    for (const size_t size : {64'000, 128'000}) {
        messages.emplace_back(ll128_message(size, 7, random), 0);
        bytes += messages.back().data.size();
        flagged_bytes += settings.codec ? messages.back().data.size() : 0;
    }
    // Enough alike in a row that they are timed.
    for (int i = 0; i < 10; ++i) {
        messages.emplace_back(gaussian_bytes(DType::kBfloat16, 100'000, random), 0);
        bytes += 100'000;
    }
    const Status status = exchange(pair, messages, kNetMaxRequests);
    ASSERT_TRUE(status.ok()) << status.message();
    const MemoryWireCounts& moved = pair.network->counts;
    const uint64_t control = moved.bytes[0], data = moved.bytes[1];
    for (const Traffic* traffic : {&pair.sent, &pair.received}) {
        const bool sends = traffic == &pair.sent;
        SCOPED_TRACE(sends ? "sender" : "receiver");
        const PeerTotals totals = only(*traffic);
        EXPECT_EQ(totals.connections, 1u);
        EXPECT_EQ(totals.open, 1u);
        EXPECT_EQ(totals.messages, messages.size());
        EXPECT_EQ(totals.bytes, bytes);
        EXPECT_EQ(totals.wire_bytes, control + data);
        EXPECT_EQ(totals.flagged_messages, sends && settings.codec ? 2u : 0u);
        EXPECT_EQ(totals.flagged_bytes, sends ? flagged_bytes : 0u);
        EXPECT_LE(totals.timed_coded_bytes, totals.coded_bytes);
        EXPECT_EQ(totals.timed_coded_ns > 0, totals.timed_coded_bytes > 0);
        EXPECT_LE(totals.timed_raw_bytes, bytes - totals.coded_bytes);
        EXPECT_EQ(totals.timed_raw_ns > 0, totals.timed_raw_bytes > 0);
        if (!settings.codec) {  // else the times decide what goes which way
            EXPECT_EQ(totals.timed_raw_bytes > 0, !sends);
        }
        if (settings.codec) {
            // What was not coded went as it is; the inline messages are in their frames.
            uint64_t in_frames = 0;
            for (const Message& m : messages) {
                in_frames += m.data.size() <= kInlineBytes ? m.data.size() : 0;
            }
            EXPECT_GT(totals.coded_messages, 0u);
            EXPECT_LT(totals.coded_wire_bytes, totals.coded_bytes);
            EXPECT_EQ(totals.coded_wire_bytes + (bytes - in_frames - totals.coded_bytes), data);
        } else {
            EXPECT_EQ(totals.coded_messages + totals.coded_bytes + totals.coded_wire_bytes, 0u);
        }
    }
    // The direction and the device are those of the connection.
    const PeerKey key = pair.sent.peers()[0].key;
    EXPECT_EQ(key.direction, Direction::kSend);
    EXPECT_EQ(key.host, "memory");
    EXPECT_EQ(key.device, "memory0");
    EXPECT_EQ(pair.received.peers()[0].key.direction, Direction::kReceive);
    pair.close();
    EXPECT_EQ(only(pair.sent).open, 0u);
    EXPECT_EQ(only(pair.sent).bytes, bytes);
    EXPECT_EQ(only(pair.received).wire_bytes, control + data);
}

INSTANTIATE_TEST_SUITE_P(Cases, NetTraffic, testing::ValuesIn(kCases), [](const auto& info) {
    return std::string(info.param.name);
});

TEST(NetTraffic, a_peer_is_its_host_without_port) {
    const auto key = [](const std::string& peer) {
        return peer_key(Direction::kSend, peer, "eth0");
    };
    EXPECT_EQ(key("10.0.0.2:4711 (ucx tcp)"),
              (PeerKey{Direction::kSend, "10.0.0.2", "ucx tcp", "eth0"}));
    EXPECT_EQ(key("[fe80::1%eth0]:7 (ucx tcp)").host, "[fe80::1%eth0]");
    EXPECT_EQ(key("a peer (chain: Socket)"),
              (PeerKey{Direction::kSend, "a peer", "chain: Socket", "eth0"}));
    EXPECT_EQ(key("").host, "");
    EXPECT_EQ(key("name:").host, "name:");
}

TEST(NetTraffic, totals_outlive_connections_and_stay_bounded) {
    Traffic traffic;
    EXPECT_EQ(traffic.mark(), 0u);
    constexpr int kHosts = 1000;
    uint64_t mark = 0;
    for (int i = 0; i < 2 * kHosts; ++i) {
        TrafficEntry entry(&traffic, Direction::kReceive, "h" + std::to_string(i % kHosts) + ":1",
                           "eth0");
        Counters::add(entry.counters().messages, 1);
        Counters::add(entry.counters().bytes, static_cast<uint64_t>(i));
        EXPECT_GT(traffic.mark(), mark);
        mark = traffic.mark();
    }
    EXPECT_GT(traffic.mark(), mark);
    TrafficEntry live(&traffic, Direction::kReceive, "late:2", "eth0");
    TrafficEntry other(&traffic, Direction::kSend, "late:2", "eth0");
    Counters::add(live.counters().bytes, 5);
    const std::vector<PeerTraffic> peers = traffic.peers();
    ASSERT_EQ(peers.size(), kMostPeers + 2);  // and the folded one, and what is sent
    EXPECT_EQ(peers[0].key.direction, Direction::kSend);
    EXPECT_EQ(peers.back().key.host, "folded");
    PeerTotals sum;
    for (const PeerTraffic& peer : peers) {
        sum.add(peer.totals);
    }
    EXPECT_EQ(sum.connections, 2u * kHosts + 2);
    EXPECT_EQ(sum.open, 2u);
    EXPECT_EQ(sum.messages, 2u * kHosts);
    EXPECT_EQ(sum.bytes, uint64_t{kHosts} * (2 * kHosts - 1) + 5);
}

TEST(NetTraffic, reading_while_connections_come_and_go) {
    Traffic traffic;
    constexpr int kThreads = 4, kRounds = 300;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&traffic, t] {
            for (int i = 0; i < kRounds; ++i) {
                TrafficEntry entry(&traffic, Direction::kSend, "h" + std::to_string(t), "d");
                Counters::add(entry.counters().messages, 3);
            }
        });
    }
    uint64_t last = 0;
    for (int i = 0; i < 200; ++i) {
        const uint64_t mark = traffic.mark();
        EXPECT_GE(mark, last);
        last = mark;
        EXPECT_LE(traffic.peers().size(), size_t{kThreads});
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    uint64_t messages = 0;
    for (const PeerTraffic& peer : traffic.peers()) {
        messages += peer.totals.messages;
    }
    EXPECT_EQ(messages, uint64_t{3} * kThreads * kRounds);
}

}  // namespace
}  // namespace slimwire::net
