// The slower network keeps its rate and its latency, alone and shared, in both directions.
#include "plugin/net/throttle.h"

#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "tests/plugin/net/memory_wire.h"
#include "tests/plugin/net/wire_pair.h"

namespace slimwire::net {
namespace {

constexpr size_t kUnderWay = 16;

// Time that passes by looking at it: how busy the machine is makes no difference.
double g_now_ns = 0;
double look() {
    return g_now_ns += 200;
}

std::shared_ptr<Throttle> throttle_of(double gbit, uint64_t latency_ns = 0) {
    return make_throttle(gbit * 1e9 / 8, latency_ns, nullptr, look);
}

// Connections over throttles of their own or shared ones.
std::vector<WirePair> pairs_over(const std::vector<std::shared_ptr<Throttle>>& sending,
                                 const std::shared_ptr<Throttle>& receiving,
                                 size_t eager_bytes = 0) {
    const auto wire = MemoryNetwork::make({.eager_bytes = eager_bytes})->wire();
    std::vector<WirePair> pairs(sending.size());
    for (size_t i = 0; i < pairs.size(); ++i) {
        EXPECT_TRUE(pairs[i].open(*wire, *wire).ok());
        pairs[i].sender = throttled(std::move(pairs[i].sender), sending[i]);
        pairs[i].receiver = throttled(std::move(pairs[i].receiver), receiving);
    }
    return pairs;
}

// Sends `count` messages with up to kUnderWay of them over each pair, all polled by this thread;
// the seconds from the first send until the last is received.
double stream(std::vector<WirePair>& pairs, int count, size_t bytes) {
    struct Flow {
        std::deque<WireRequest*> out, in;
        int sent = 0, posted = 0, received = 0;
    };
    std::vector<Flow> flows(pairs.size());
    std::vector<uint8_t> message(bytes, 1), buffer(bytes);
    const double begin = g_now_ns;
    bool busy = true;
    while (busy && g_now_ns < begin + 30e9) {
        busy = false;
        for (size_t i = 0; i < pairs.size(); ++i) {
            Flow& flow = flows[i];
            WireRequest* request = nullptr;
            if (flow.posted < count && flow.in.size() < kUnderWay) {
                EXPECT_TRUE(
                    pairs[i]
                        .receiver->receive(Lane::kData, buffer.data(), bytes, nullptr, &request)
                        .ok());
                flow.in.push_back(request);
                ++flow.posted;
            }
            if (flow.sent < count && flow.out.size() < kUnderWay) {
                EXPECT_TRUE(pairs[i]
                                .sender->send(Lane::kData, message.data(), bytes, nullptr, &request)
                                .ok());
                flow.out.push_back(request);
                ++flow.sent;
            }
            bool done = false;
            if (!flow.out.empty()) {
                EXPECT_TRUE(pairs[i].sender->test(flow.out.front(), &done, nullptr).ok());
                if (done) {
                    flow.out.pop_front();
                }
            }
            done = false;
            if (!flow.in.empty()) {
                EXPECT_TRUE(pairs[i].receiver->test(flow.in.front(), &done, nullptr).ok());
                if (done) {
                    flow.in.pop_front();
                    ++flow.received;
                }
            }
            busy |= flow.received < count || !flow.out.empty();
        }
    }
    EXPECT_FALSE(busy) << "not over after 30 s";
    return (g_now_ns - begin) / 1e9;
}

void expect_rate(std::vector<WirePair>& pairs, int count, double gbit, double tolerance) {
    const double bits = static_cast<double>(pairs.size()) * count * (1 << 20) * 8;
    EXPECT_NEAR(bits / 1e9 / stream(pairs, count, 1 << 20), gbit, gbit * tolerance);
}

TEST(Throttle, MebibytesGoAtOneAndTenGigabits) {
    for (const double gbit : {1.0, 10.0}) {
        const auto throttle = throttle_of(gbit);
        auto pairs = pairs_over({throttle}, throttle);
        expect_rate(pairs, static_cast<int>(gbit * 8) + 10, gbit, 0.01);
    }
}

TEST(Throttle, ConnectionsShareTheirDevice) {
    const auto throttle = throttle_of(4);
    auto pairs = pairs_over({4, throttle}, throttle);
    expect_rate(pairs, 18, 4, 0.02);
}

TEST(Throttle, SendersShareTheRateOfTheirReceiver) {
    // Two processes send to a third: each has the full rate out, together they have one rate in.
    auto pairs = pairs_over({throttle_of(4), throttle_of(4)}, throttle_of(4));
    expect_rate(pairs, 40, 4, 0.02);
}

TEST(Throttle, AMessageIsLateByItsLatencyAndItsLength) {
    const auto throttle = throttle_of(1, 20'000'000);
    auto pairs = pairs_over({throttle}, throttle);
    const double time = stream(pairs, 1, 1'250'000);  // 10 ms at 1 Gbit/s
    EXPECT_GE(time, 0.030);
    EXPECT_LT(time, 0.0301);
}

TEST(Throttle, ACallerThatLooksSeldomIsNotPunished) {
    // 10 ms of network arrive while nobody looks; then everything is there at once.
    const auto throttle = throttle_of(1);
    auto pairs = pairs_over({throttle}, throttle, 2 << 20);
    WirePair& pair = pairs[0];
    std::vector<uint8_t> message(125'000), buffer(message.size());
    std::vector<WireRequest*> out, in;
    for (int i = 0; i < 10; ++i) {
        in.push_back(start_receive(*pair.receiver, Lane::kData, buffer.data(), buffer.size()));
        out.push_back(start_send(*pair.sender, Lane::kData, message.data(), message.size()));
    }
    for (WireRequest* request : out) {
        ASSERT_TRUE(finish(*pair.sender, request).status.ok());
    }
    for (WireRequest* request : in) {
        bool done = false;
        ASSERT_TRUE(pair.receiver->test(request, &done, nullptr).ok());
        EXPECT_TRUE(done);
    }
}

TEST(Throttle, NothingWaits) {
    const auto throttle = throttle_of(0.001, 1'000'000'000);
    auto pairs = pairs_over({throttle}, throttle);
    WirePair& pair = pairs[0];
    std::vector<uint8_t> message(10 << 20), buffer(message.size());  // 84 s
    const double began_ns = g_now_ns;
    WireRequest* in = start_receive(*pair.receiver, Lane::kData, buffer.data(), buffer.size());
    WireRequest* out = start_send(*pair.sender, Lane::kData, message.data(), message.size());
    bool done = true;
    ASSERT_TRUE(pair.sender->test(out, &done, nullptr).ok());
    EXPECT_FALSE(done);
    ASSERT_TRUE(pair.receiver->test(in, &done, nullptr).ok());
    EXPECT_FALSE(done);
    pair.sender.reset();
    pair.receiver.reset();
    EXPECT_LT(g_now_ns, began_ns + 1e9);
}

TEST(Throttle, TheDeviceSaysWhatItIsLikeNow) {
    WireDevice device{.speed_mbps = 100'000, .latency_us = 1};
    (void)make_throttle(0, 0, &device);
    EXPECT_EQ(device.speed_mbps, 100'000);
    (void)make_throttle(1e9 / 8, 50'000, &device);
    EXPECT_EQ(device.speed_mbps, 1000);
    EXPECT_FLOAT_EQ(device.latency_us, 51);
}

}  // namespace
}  // namespace slimwire::net
