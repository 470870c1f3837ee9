// The wire over UCX beyond the contract of all wires: what runs ahead, connections that are cut,
// large messages, and work that goes on while nobody asks.
#include "tests/plugin/net/ucx_fixture.h"

#include <gtest/gtest.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/seed.h"

namespace slimwire::net {
namespace {

using namespace std::chrono_literals;

TEST_F(UcxWire, ControlMessagesFlowAsLongAsReceivesArePosted) {
    int in[kControlSlots] = {};
    WireRequest* posted[kControlSlots];
    for (int i = 0; i < kControlSlots; ++i) {
        posted[i] = start_receive(*pair_.receiver, Lane::kControl, &in[i], sizeof in[i]);
    }
    constexpr int kMessages = 20 * kControlSlots;
    std::thread sending([&] {
        for (int i = 0; i < kMessages; ++i) {
            WireRequest* send = start_send(*pair_.sender, Lane::kControl, &i, sizeof i);
            ASSERT_NE(send, nullptr) << i;
            const Finished over = finish(*pair_.sender, send);
            ASSERT_TRUE(over.in_time && over.status.ok()) << over.status.message();
        }
    });
    for (int i = 0; i < kMessages; ++i) {
        const int slot = i % kControlSlots;
        const Finished over = finish(*pair_.receiver, posted[slot]);
        EXPECT_TRUE(over.in_time && over.status.ok()) << over.status.message();
        EXPECT_EQ(in[slot], i);
        if (HasFailure()) {
            break;
        }
        posted[slot] = start_receive(*pair_.receiver, Lane::kControl, &in[slot], sizeof in[slot]);
    }
    sending.join();
}

// Bytes that nobody acknowledges keep keepalive silent: the system's own patience is 15 minutes.
TEST_F(UcxWire, BothEndsNoticeAMachineThatIsGoneWithBytesUnderWay) {
    int ends = 0;
    for (int fd = 0; fd < 1024; ++fd) {
        sockaddr_in own{}, other{};
        socklen_t own_bytes = sizeof own, other_bytes = sizeof other;
        if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_bytes) != 0 ||
            getpeername(fd, reinterpret_cast<sockaddr*>(&other), &other_bytes) != 0 ||
            own.sin_family != AF_INET ||
            (ntohs(own.sin_port) != handle_.port && ntohs(other.sin_port) != handle_.port)) {
            continue;
        }
        ++ends;
        unsigned limit_ms = 0;
        socklen_t bytes = sizeof limit_ms;
        ASSERT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, &bytes), 0);
        EXPECT_EQ(limit_ms, 30'000u);
    }
    EXPECT_EQ(ends, 2);
}

TEST_F(UcxWire, ADataSenderRunsAheadOnlySoFar) {
    const std::vector<uint8_t> message(1 << 20, 3);
    std::vector<WireRequest*> sent;
    auto end = std::chrono::steady_clock::now() + 200ms;  // since the last that went
    while (std::chrono::steady_clock::now() < end) {
        WireRequest* request = nullptr;
        ASSERT_TRUE(
            pair_.sender->send(Lane::kData, message.data(), message.size(), nullptr, &request)
                .ok());
        if (request != nullptr) {
            sent.push_back(request);
            end = std::chrono::steady_clock::now() + 200ms;
        }
        ASSERT_LE(sent.size() * message.size(), kAheadBytes);
    }
    EXPECT_EQ(sent.size() * message.size(), kAheadBytes);
    // The receives that come late get all of it, and let the next message go.
    std::vector<uint8_t> buffer(message.size());
    for (size_t i = 0; i < 2 * sent.size(); ++i) {
        if (i >= sent.size()) {
            ASSERT_NE(start_send(*pair_.sender, Lane::kData, message.data(), message.size()),
                      nullptr);
        }
        std::fill(buffer.begin(), buffer.end(), 0);
        WireRequest* receive =
            start_receive(*pair_.receiver, Lane::kData, buffer.data(), buffer.size());
        const Finished over = finish(*pair_.receiver, receive);
        ASSERT_TRUE(over.in_time && over.status.ok()) << over.status.message();
        ASSERT_EQ(over.bytes, message.size());
        ASSERT_EQ(buffer, message);
    }
}

// Connections that end at any moment of their life, from either side, with or without drop(): UCX
// stays whole, and what was dropped is left alone.
TEST_F(UcxWire, ConnectionsCutAtAnyMoment) {
    const uint32_t seed = test_seed();
    std::mt19937 random(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto draw = [&](size_t below) { return static_cast<size_t>(random() % below); };
    constexpr int kRounds = 150;
    for (int round = 0; round < kRounds; ++round) {
        SCOPED_TRACE("round " + std::to_string(round));
        std::unique_ptr<SendWire> sender;
        std::unique_ptr<ReceiveWire> receiver;
        const Status status = pair_.connect(&sender, &receiver);
        ASSERT_TRUE(status.ok()) << status.message();
        const size_t bytes = draw(2) == 0 ? draw(5000) : draw(2 << 20);
        std::vector<uint8_t> out(bytes + 1, 1), in(bytes + 1, 2);
        std::vector<WireRequest*> sends, receives;
        for (size_t i = draw(4); i > 0; --i) {
            WireRequest* request = nullptr;
            ASSERT_TRUE(receiver->receive(Lane::kData, in.data(), bytes, nullptr, &request).ok());
            receives.push_back(request);
        }
        for (size_t i = draw(4); i > 0; --i) {
            WireRequest* request = nullptr;
            ASSERT_TRUE(sender->send(Lane::kData, out.data(), bytes, nullptr, &request).ok());
            if (request != nullptr) {
                sends.push_back(request);
            }
        }
        const auto ask = [](WireConnection& wire, std::vector<WireRequest*>& requests) {
            bool done = false;
            if (!requests.empty()) {
                const Status asked = wire.test(requests.front(), &done, nullptr);
                EXPECT_TRUE(asked.ok()) << asked.message();
                if (done || !asked.ok()) {
                    requests.erase(requests.begin());
                }
            }
        };
        for (size_t i = draw(50); i > 0; --i) {
            draw(2) == 0 ? ask(*sender, sends) : ask(*receiver, receives);
        }
        std::unique_ptr<WireConnection> first = std::move(sender), second = std::move(receiver);
        if (draw(2) == 0) {
            std::swap(first, second);
        }
        if (draw(2) == 0) {
            first->drop();
        }
        first.reset();
        if (draw(2) == 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(draw(3000)));
        }
        second->drop();
        std::fill(in.begin(), in.end(), 0xcc);
        second.reset();
        ASSERT_TRUE(std::all_of(in.begin(), in.end(), [](uint8_t b) { return b == 0xcc; }));
        ASSERT_FALSE(HasFailure());
    }
    expect_works();
}

TEST_F(UcxWire, AMessageOfOneGibibyte) {
    const size_t bytes = size_t{1} << 30;
    std::vector<uint64_t> out(bytes / 8), in(bytes / 8);
    std::mt19937_64 random(test_seed());
    const uint64_t begin = random();
    for (size_t i = 0; i < out.size(); ++i) {
        out[i] = begin + i * 0x9e3779b97f4a7c15;
    }
    std::thread receiving([&] {
        WireRequest* receive = start_receive(*pair_.receiver, Lane::kData, in.data(), bytes);
        const Finished over = finish(*pair_.receiver, receive);
        EXPECT_TRUE(over.in_time && over.status.ok()) << over.status.message();
        EXPECT_EQ(over.bytes, bytes);
    });
    WireRequest* send = start_send(*pair_.sender, Lane::kData, out.data(), bytes);
    const Finished over = finish(*pair_.sender, send);
    EXPECT_TRUE(over.in_time && over.status.ok()) << over.status.message();
    receiving.join();
    EXPECT_EQ(memcmp(in.data(), out.data(), bytes), 0);
}

TEST_F(UcxWire, TheProgressThreadReceivesWhileNobodyAsks) {
    const std::vector<uint8_t> message(64 << 20, 9);
    std::vector<uint8_t> buffer(message.size());
    WireRequest* receive =
        start_receive(*pair_.receiver, Lane::kData, buffer.data(), buffer.size());
    WireRequest* send = start_send(*pair_.sender, Lane::kData, message.data(), message.size());
    const Finished over = finish(*pair_.sender, send);
    EXPECT_TRUE(over.in_time && over.status.ok()) << over.status.message();
    // It sleeps when there is nothing to do.
    std::this_thread::sleep_for(50ms);
    const std::clock_t before = std::clock();
    std::this_thread::sleep_for(500ms);
    EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 20);
    EXPECT_TRUE(finish(*pair_.receiver, receive).status.ok());
    EXPECT_EQ(buffer, message);
}

}  // namespace
}  // namespace slimwire::net
