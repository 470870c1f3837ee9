// The wire over UCX beyond the contract of all wires: strangers at its door, what runs ahead, large
// messages, and work that goes on while nobody asks.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "plugin/net/ucx/connections.h"
#include "plugin/net/ucx/handshake.h"
#include "plugin/net/ucx/ucx_wire.h"
#include "tests/plugin/net/wire_pair.h"
#include "tests/support/seed.h"

namespace slimwire::net {
namespace {

using namespace std::chrono_literals;

class UcxWire : public testing::Test {
  protected:
    void SetUp() override { open(30s); }
    void open(std::chrono::nanoseconds patience) {
        pair_ = {};
        wire_.reset();
        UcxSettings settings = read_ucx_settings();
        settings.interfaces = "=lo";
        settings.transports.clear();
        settings.handshake_ns = static_cast<uint64_t>(patience.count());
        settings.warn = [this](const std::string& line) {
            const std::lock_guard lock(mutex_);
            lines_.push_back(line);
        };
        auto wire = open_ucx_wire(settings);
        ASSERT_TRUE(wire.ok()) << wire.status().message();
        wire_ = std::move(wire).value();
        const Status status = pair_.open(*wire_, *wire_);
        ASSERT_TRUE(status.ok()) << status.message();
        memcpy(&handle_, pair_.handle, sizeof handle_);
    }

    // A stranger's blocking socket to the listener.
    int knock() const {
        const SocketAddress address = address_of(handle_).value();
        const int fd = socket(AF_INET, SOCK_STREAM, 0);
        EXPECT_EQ(connect(fd, &address.any, sizeof address.v4), 0) << strerror(errno);
        return fd;
    }
    Hello hello() const { return {kWireMagic, kWireVersion, 0, handle_.cookie}; }
    static void say(int fd, const void* bytes, size_t count) {
        EXPECT_EQ(send(fd, bytes, count, MSG_NOSIGNAL), static_cast<ssize_t>(count));
    }
    // Lets the listener look at its door for a while; whoever comes in is kept.
    void attend(std::chrono::milliseconds time) {
        const auto end = std::chrono::steady_clock::now() + time;
        while (std::chrono::steady_clock::now() < end) {
            std::unique_ptr<ReceiveWire> wire;
            const Status status = pair_.listener->accept(&wire);
            ASSERT_TRUE(status.ok()) << status.message();
            if (wire != nullptr) {
                came_in_.push_back(std::move(wire));
            }
            std::this_thread::sleep_for(1ms);
        }
    }
    static bool closed_by_peer(int fd) {
        pollfd entry{fd, POLLIN, 0};
        char byte = 0;
        return poll(&entry, 1, 2000) == 1 && recv(fd, &byte, 1, 0) <= 0;
    }
    void expect_one_line(const std::string& part) {
        ASSERT_EQ(lines_.size(), 1u) << testing::PrintToString(lines_);
        EXPECT_NE(lines_[0].find(part), std::string::npos) << lines_[0];
        EXPECT_NE(lines_[0].find("127.0.0.1:"), std::string::npos) << lines_[0];
        lines_.clear();
    }
    void expect_refused(const void* bytes, size_t count, const std::string& why) {
        const int fd = knock();
        say(fd, bytes, count);
        attend(20ms);
        EXPECT_TRUE(closed_by_peer(fd));
        close(fd);
        expect_one_line(why);
        EXPECT_TRUE(came_in_.empty());
    }
    void expect_works() {
        const std::string message = "still here";
        char buffer[16] = {};
        WireRequest* receive = start_receive(*pair_.receiver, Lane::kData, buffer, sizeof buffer);
        start_send(*pair_.sender, Lane::kData, message.data(), message.size());
        const Finished over = finish(*pair_.receiver, receive);
        EXPECT_TRUE(over.in_time && over.status.ok()) << over.status.message();
        EXPECT_EQ(std::string(buffer), message);
    }

    std::mutex mutex_;
    std::vector<std::string> lines_;
    std::unique_ptr<Wire> wire_;
    WirePair pair_;
    std::vector<std::unique_ptr<ReceiveWire>> came_in_;
    WireHandle handle_{};
};

TEST_F(UcxWire, StrangersAreRefusedWithOneLineEach) {
    expect_refused("GET / HTTP/1.1\r\n\r\n", 18, "does not speak slimwire's protocol");
    expect_refused("X", 1, "does not speak slimwire's protocol");
    Hello wrong = hello();
    wrong.version = 77;
    expect_refused(&wrong, sizeof wrong, "wire version 77, this plugin speaks 1");
    wrong = hello();
    wrong.cookie[15] ^= 1;
    expect_refused(&wrong, sizeof wrong, "the cookie of another connection");
    expect_works();
}

TEST_F(UcxWire, WhoLeavesEarlyIsRefused) {
    const int fd = knock();
    const Hello right = hello();
    say(fd, &right, sizeof right - 1);
    close(fd);
    attend(20ms);
    expect_one_line("left before");
    expect_works();
}

TEST_F(UcxWire, TheSilentAreSentAwayAndDisturbNobody) {
    open(1s);
    const auto begin = std::chrono::steady_clock::now();
    const int silent = knock();
    const int half = knock();
    const Hello right = hello();
    say(half, &right, 20);
    attend(50ms);
    // Meanwhile others get in.
    std::unique_ptr<SendWire> sender;
    std::unique_ptr<ReceiveWire> receiver;
    const Status status = pair_.connect(&sender, &receiver);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(poll_until([&] {
        attend(10ms);
        return lines_.size() == 2;
    }));
    EXPECT_GE(std::chrono::steady_clock::now() - begin, 1s);
    for (const std::string& line : lines_) {
        EXPECT_NE(line.find("did not say its hello in time"), std::string::npos) << line;
    }
    EXPECT_TRUE(closed_by_peer(silent));
    EXPECT_TRUE(closed_by_peer(half));
    close(silent);
    close(half);
    expect_works();
}

TEST_F(UcxWire, ASlowPeerIsHeardOut) {
    const int fd = knock();
    const Hello right = hello();
    for (size_t i = 0; i < sizeof right; ++i) {
        say(fd, reinterpret_cast<const char*>(&right) + i, 1);
        attend(2ms);
    }
    attend(20ms);
    EXPECT_EQ(came_in_.size(), 1u);
    Answer answer{};
    EXPECT_EQ(recv(fd, &answer, sizeof answer, MSG_WAITALL), static_cast<ssize_t>(sizeof answer));
    EXPECT_EQ(answer.magic, kWireMagic);
    EXPECT_GT(answer.address_bytes, 0u);
    close(fd);
    EXPECT_TRUE(lines_.empty());
    // It has gone without sending: the connection is lost, the listener is not.
    char byte = 0;
    WireRequest* receive = start_receive(*came_in_[0], Lane::kData, &byte, 1);
    const auto begin = std::chrono::steady_clock::now();
    const Finished over = finish(*came_in_[0], receive);
    EXPECT_TRUE(over.in_time);
    EXPECT_EQ(over.status.code(), Code::kRemoteError);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 2s);
    expect_works();
}

TEST_F(UcxWire, HandlesThatAreNoneAreRefused) {
    std::unique_ptr<WireConnecting> attempt;
    std::unique_ptr<SendWire> wire;
    char handle[kNetHandleBytes] = {};
    EXPECT_EQ(pair_.sender_context->connect(0, handle, &attempt, &wire).code(),
              Code::kInvalidArgument);
    WireHandle later = handle_;
    later.version = 2;
    EXPECT_EQ(pair_.sender_context->connect(0, &later, &attempt, &wire).code(),
              Code::kInvalidArgument);
    EXPECT_EQ(pair_.sender_context->connect(99, pair_.handle, &attempt, &wire).code(),
              Code::kInvalidArgument);
    EXPECT_EQ(attempt, nullptr);
}

// A server that is not ours: closes at once, says nonsense, or promises an endless address.
TEST_F(UcxWire, AConnectorRefusesWrongAnswers) {
    SocketAddress address{};
    address.v4.sin_family = AF_INET;
    address.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    Socket door = listen_at(&address).value();
    WireHandle handle = make_handle(address, handle_.cookie);
    Answer endless{kWireMagic, kWireVersion, 1 << 30};
    struct {
        Answer answer;
        char address[4];
    } later = {{kWireMagic, kWireVersion + 1, 4}, {'a', 'b', 'c', 'd'}};
    const std::string answers[] = {"", std::string(100, 'x'),
                                   std::string(reinterpret_cast<char*>(&later), sizeof later),
                                   std::string(reinterpret_cast<char*>(&endless), sizeof endless)};
    for (const std::string& answer : answers) {
        std::unique_ptr<WireConnecting> attempt;
        std::unique_ptr<SendWire> wire;
        Status status;
        Socket visitor;
        EXPECT_TRUE(poll_until([&] {
            status = pair_.sender_context->connect(0, &handle, &attempt, &wire);
            SocketAddress peer;
            if (!visitor.valid()) {
                visitor = accept_waiting(door, &peer).value();
                if (visitor.valid() && !answer.empty()) {
                    say(visitor.fd(), answer.data(), answer.size());
                } else if (visitor.valid()) {
                    shutdown(visitor.fd(), SHUT_RDWR);
                }
            }
            return !status.ok();
        }));
        EXPECT_EQ(status.code(), Code::kRemoteError) << status.message();
        EXPECT_NE(status.message().find("no connection to 127.0.0.1:"), std::string::npos)
            << status.message();
        EXPECT_EQ(attempt, nullptr);
    }
    door.reset();
    std::unique_ptr<WireConnecting> attempt;
    std::unique_ptr<SendWire> wire;
    Status status;
    EXPECT_TRUE(poll_until([&] {
        status = pair_.sender_context->connect(0, &handle, &attempt, &wire);
        return !status.ok();
    }));
    EXPECT_EQ(status.code(), Code::kRemoteError);
    EXPECT_NE(status.message().find("refused"), std::string::npos) << status.message();
}

TEST_F(UcxWire, AStormOfConnectsAtOneListener) {
    constexpr int kConnections = 256;
    std::vector<std::unique_ptr<WireConnecting>> attempts(kConnections);
    std::vector<std::unique_ptr<SendWire>> senders(kConnections);
    std::vector<std::unique_ptr<ReceiveWire>> receivers;
    ASSERT_TRUE(poll_until([&] {
        bool all = true;
        for (int i = 0; i < kConnections; ++i) {
            if (senders[i] == nullptr) {
                const Status status =
                    pair_.sender_context->connect(0, pair_.handle, &attempts[i], &senders[i]);
                EXPECT_TRUE(status.ok()) << status.message();
                all = all && senders[i] != nullptr;
            }
        }
        std::unique_ptr<ReceiveWire> wire;
        EXPECT_TRUE(pair_.listener->accept(&wire).ok());
        if (wire != nullptr) {
            receivers.push_back(std::move(wire));
        }
        return HasFailure() || (all && receivers.size() == kConnections);
    }));
    ASSERT_FALSE(HasFailure());
    // Each carries its own message: the sum of what arrives is right whoever is whose.
    std::vector<int> out(kConnections), in(kConnections);
    std::iota(out.begin(), out.end(), 1);
    std::vector<WireRequest*> requests;
    for (int i = 0; i < kConnections; ++i) {
        requests.push_back(start_receive(*receivers[i], Lane::kData, &in[i], sizeof in[i]));
        start_send(*senders[i], Lane::kData, &out[i], sizeof out[i]);
    }
    for (int i = 0; i < kConnections; ++i) {
        const Finished over = finish(*receivers[i], requests[i]);
        ASSERT_TRUE(over.in_time && over.status.ok()) << over.status.message();
    }
    EXPECT_EQ(std::accumulate(in.begin(), in.end(), 0), kConnections * (kConnections + 1) / 2);
}

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

TEST_F(UcxWire, ADataSenderRunsAheadOnlySoFar) {
    const std::vector<uint8_t> message(1 << 20, 3);
    std::vector<WireRequest*> sent;
    const auto end = std::chrono::steady_clock::now() + 200ms;
    while (std::chrono::steady_clock::now() < end) {
        WireRequest* request = nullptr;
        ASSERT_TRUE(
            pair_.sender->send(Lane::kData, message.data(), message.size(), nullptr, &request)
                .ok());
        if (request != nullptr) {
            sent.push_back(request);
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

TEST_F(UcxWire, TheHousekeeperReceivesWhileNobodyAsks) {
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
