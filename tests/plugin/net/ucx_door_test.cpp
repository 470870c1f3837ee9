// Who comes to a listener of the wire over UCX, and whom its connector meets: strangers, the
// silent, the slow, storms.
#include "tests/plugin/net/ucx_fixture.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "plugin/net/ucx/handshake.h"
#include "tests/plugin/net/hand_made.h"
#include "tests/support/has.h"
#include "tests/support/seed.h"

namespace slimwire::net {
namespace {

using namespace std::chrono_literals;

TEST_F(UcxWire, TooFewFilesAreNamed) {
    const UcxApi* const api = load_ucx().value();
    const auto device =
        std::make_shared<UcxDevice>(*api, find_devices("=lo", "").value().at(0), UcxSettings());
    ASSERT_TRUE(device->open().ok());
    ProgressThread progress_thread;
    rlimit usual{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &usual), 0);
    const int next = dup(STDIN_FILENO);
    close(next);
    const rlimit few{static_cast<rlim_t>(next) + 2, usual.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    const auto link = Link::create(device, &progress_thread, 0);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &usual), 0);
    ASSERT_FALSE(link.ok());
    EXPECT_HAS(link.status().message(),
               "files open and may have " + std::to_string(few.rlim_cur) + ": ulimit -n");
}

TEST_F(UcxWire, StrangersAreRefusedWithOneLineEach) {
    expect_refused("GET / HTTP/1.1\r\n\r\n", 18, "does not speak slimwire's protocol");
    expect_refused("X", 1, "does not speak slimwire's protocol");
    Hello wrong = hello();
    wrong.version = 77;
    expect_refused(&wrong, sizeof wrong,
                   "wire version 77, this plugin speaks " + std::to_string(kWireVersion));
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
    attend_until([&] { return !lines_.empty(); });
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
        EXPECT_HAS(line, "did not say its hello in time");
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
    attend_until([&] { return came_in_.size() == 1; });
    Answer answer{};
    EXPECT_EQ(recv(fd, &answer, sizeof answer, MSG_WAITALL), static_cast<ssize_t>(sizeof answer));
    EXPECT_EQ(answer.magic, kWireMagic);
    EXPECT_GT(answer.address_bytes, 0u);
    close(fd);
    EXPECT_TRUE(lines_.empty());
    // It has gone without sending: the connection is lost, the listener is not.
    char byte = 0;
    WireRequest* receive = start_receive(*came_in_[0], Lane::kData, &byte, 1);
    const Finished over = finish(*came_in_[0], receive);
    EXPECT_TRUE(over.in_time);
    EXPECT_EQ(over.status.code(), Code::kRemoteError);
    expect_works();
}

TEST_F(UcxWire, HandlesThatAreNoneAreRefused) {
    std::unique_ptr<WireConnecting> attempt;
    std::unique_ptr<SendWire> wire;
    char handle[kNetHandleBytes] = {};
    EXPECT_EQ(pair_.sender_context->connect(0, handle, &attempt, &wire).code(),
              Code::kInvalidArgument);
    WireHandle later = handle_;
    later.version = 77;
    EXPECT_EQ(pair_.sender_context->connect(0, &later, &attempt, &wire).code(),
              Code::kInvalidArgument);
    EXPECT_EQ(attempt, nullptr);
}

// UCX's own port asks nobody for a cookie. A socket's peer, which said one, may send others, too.
TEST_F(UcxWire, MessagesWithoutTheTokenAreNobodys) {
    HandMadeSender sender;
    Status status = sender.say_hello(handle_);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(poll_until([&] {
        attend(1ms);
        return came_in_.size() == 1;
    }));
    status = sender.hear_answer();
    ASSERT_TRUE(status.ok()) << status.message();
    const uint64_t token = sender.token();
    const std::string wrong = "wrong", right = "right";
    char buffer[16] = {};
    WireRequest* receive = start_receive(*came_in_[0], Lane::kData, buffer, sizeof buffer);
    ASSERT_TRUE(sender.add_link(token ^ 1).ok());
    for (const Lane lane : {Lane::kControl, Lane::kData}) {
        status = sender.send(lane, 0, wrong.data(), wrong.size());
        ASSERT_TRUE(status.ok()) << status.message();
    }
    for (int look = 0; look < 50; ++look) {
        bool done = false;
        ASSERT_TRUE(came_in_[0]->test(receive, &done, nullptr).ok());
        ASSERT_FALSE(done) << buffer;
        std::this_thread::sleep_for(1ms);
    }
    ASSERT_TRUE(sender.add_link(token).ok());
    status = sender.send(Lane::kData, 0, right.data(), right.size());
    ASSERT_TRUE(status.ok()) << status.message();
    const Finished over = finish(*came_in_[0], receive);
    EXPECT_TRUE(over.in_time && over.status.ok()) << over.status.message();
    EXPECT_EQ(std::string(buffer), right);
    expect_works();
}

// A server that is not ours: closes at once, says nonsense, or promises an endless address.
TEST_F(UcxWire, AConnectorRefusesWrongAnswers) {
    SocketAddress address{};
    address.v4.sin_family = AF_INET;
    address.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    Socket door = listen_at(&address).value();
    WireHandle handle = make_handle(address, handle_.cookie);
    Answer endless{kWireMagic, kWireVersion, 1 << 30, 0};
    Answer wild{kWireMagic, kWireVersion, 4, ~uint64_t{0}};
    struct {
        Answer answer;
        char address[4];
    } later = {{kWireMagic, kWireVersion + 1, 4, 0}, {'a', 'b', 'c', 'd'}};
    const std::string answers[] = {"", std::string(100, 'x'),
                                   std::string(reinterpret_cast<char*>(&later), sizeof later),
                                   std::string(reinterpret_cast<char*>(&endless), sizeof endless),
                                   std::string(reinterpret_cast<char*>(&wild), sizeof wild)};
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
        EXPECT_HAS(status.message(), "no connection to 127.0.0.1:");
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
    EXPECT_HAS(status.message(), "refused");
}

// One whose answer is right and whose credits are not.
TEST_F(UcxWire, AReceiverThatSaysNonsenseIsAnErrorOrHarmless) {
    std::mt19937 random(test_seed());
    const std::vector<uint8_t> data(100'000, 1);
    int errors = 0;
    for (int trial = 0; trial < 30; ++trial) {
        HandMadeReceiver receiver;
        WireHandle handle{};
        Status status = receiver.listen(&handle);
        ASSERT_TRUE(status.ok()) << status.message();
        std::unique_ptr<WireConnecting> attempt;
        std::unique_ptr<SendWire> sender;
        bool answered = false;
        ASSERT_TRUE(poll_until([&] {
            status = answered ? Status() : receiver.attend(&answered);
            if (status.ok() && sender == nullptr) {
                status = pair_.sender_context->connect(0, &handle, &attempt, &sender);
            }
            return !status.ok() || (answered && sender != nullptr);
        }));
        ASSERT_TRUE(status.ok()) << status.message();
        WireRequest* requests[32] = {};
        const auto go_on = [&] {
            for (WireRequest*& request : requests) {
                bool done = false;
                if (status.ok() && request == nullptr) {
                    status = sender->send(Lane::kData, data.data(), data.size(), nullptr, &request);
                } else if (status.ok()) {
                    status = sender->test(request, &done, nullptr);
                    request = done ? nullptr : request;
                }
            }
            return !status.ok();
        };
        for (int words = 0; status.ok() && words < 2000; ++words) {
            std::vector<uint8_t> some(random() % 200);
            std::generate(some.begin(), some.end(), [&] { return static_cast<uint8_t>(random()); });
            receiver.say(some.data(), some.size());
            go_on();
        }
        errors += status.ok() ? 0 : 1;
        receiver.hang_up();
        EXPECT_TRUE(poll_until(go_on));
        EXPECT_EQ(status.code(), Code::kRemoteError) << status.message();
    }
    EXPECT_GT(errors, 27);
    expect_works();
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

}  // namespace
}  // namespace slimwire::net
