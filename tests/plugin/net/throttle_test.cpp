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

std::unique_ptr<Wire> throttled(double gbit, uint64_t latency_ns, size_t eager_bytes = 0) {
    MemoryWireOptions options;
    options.device.speed_mbps = 100'000;
    options.device.latency_us = 1;
    options.eager_bytes = eager_bytes;
    return make_throttled_wire(MemoryNetwork::make(options)->wire(), gbit * 1e9 / 8, latency_ns,
                               look);
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

void expect_rate(Wire& wire, size_t connections, double gbit, double tolerance) {
    const int count = static_cast<int>(gbit * 8) / static_cast<int>(connections) + 10;
    std::vector<WirePair> pairs(connections);
    for (WirePair& pair : pairs) {
        ASSERT_TRUE(pair.open(wire, wire).ok());
    }
    expect_rate(pairs, count, gbit, tolerance);
}

TEST(Throttle, MebibytesGoAtOneAndTenGigabits) {
    for (const double gbit : {1.0, 10.0}) {
        const auto wire = throttled(gbit, 0);
        expect_rate(*wire, 1, gbit, 0.01);
    }
}

TEST(Throttle, ConnectionsShareTheirDevice) {
    const auto wire = throttled(4, 0);
    expect_rate(*wire, 4, 4, 0.02);
}

TEST(Throttle, SendersShareTheRateOfTheirReceiver) {
    // Two processes send to a third: each has the full rate out, together they have one rate in.
    MemoryWireOptions options;
    const auto network = MemoryNetwork::make(options);
    const auto a = make_throttled_wire(network->wire(), 4e9 / 8, 0, look);
    const auto b = make_throttled_wire(network->wire(), 4e9 / 8, 0, look);
    const auto to = make_throttled_wire(network->wire(), 4e9 / 8, 0, look);
    std::vector<WirePair> pairs(2);
    ASSERT_TRUE(pairs[0].open(*a, *to).ok());
    ASSERT_TRUE(pairs[1].open(*b, *to).ok());
    expect_rate(pairs, 40, 4, 0.02);
}

TEST(Throttle, AMessageIsLateByItsLatencyAndItsLength) {
    const auto wire = throttled(1, 20'000'000);
    std::vector<WirePair> pairs(1);
    ASSERT_TRUE(pairs[0].open(*wire, *wire).ok());
    const double time = stream(pairs, 1, 1'250'000);  // 10 ms at 1 Gbit/s
    EXPECT_GE(time, 0.030);
    EXPECT_LT(time, 0.0301);
}

TEST(Throttle, ACallerThatLooksSeldomIsNotPunished) {
    // 10 ms of network arrive while nobody looks; then everything is there at once.
    const auto wire = throttled(1, 0, 2 << 20);
    WirePair pair;
    ASSERT_TRUE(pair.open(*wire, *wire).ok());
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
    const auto wire = throttled(0.001, 1'000'000'000);
    WirePair pair;
    ASSERT_TRUE(pair.open(*wire, *wire).ok());
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
    const auto wire = throttled(1, 50'000);
    ASSERT_EQ(wire->devices(), 1);
    EXPECT_EQ(wire->device(0).speed_mbps, 1000);
    EXPECT_FLOAT_EQ(wire->device(0).latency_us, 51);
    EXPECT_EQ(throttled(0, 0)->device(0).speed_mbps, 100'000);
    std::unique_ptr<WireContext> context;
    ASSERT_TRUE(wire->open(0, -1, &context).ok());
    char handle[kNetHandleBytes];
    std::unique_ptr<WireListener> listener;
    EXPECT_EQ(context->listen(1, handle, &listener).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace slimwire::net
