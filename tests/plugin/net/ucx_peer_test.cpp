// The wire over UCX when the process at the other end is killed or stopped, at each step. The other
// process is this program again, started with --peer.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "plugin/net/ucx/ucx_wire.h"
#include "tests/plugin/net/other_process.h"
#include "tests/plugin/net/wire_pair.h"
#include "tests/support/has.h"

namespace slimwire::net {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr size_t kPeerMessage = 1 << 20;
constexpr int kOpen = 4;

// Keeps kOpen messages going until told otherwise by a signal; each message holds its number.
template <class Start>
void keep_going(WireConnection& wire, bool receiving, Start&& start) {
    std::vector<std::vector<uint32_t>> buffers(kOpen, std::vector<uint32_t>(kPeerMessage / 4));
    std::vector<WireRequest*> open(kOpen, nullptr);
    for (uint32_t begun = 0, ended = 0;;) {
        std::vector<uint32_t>& next = buffers[begun % kOpen];
        if (begun - ended < kOpen) {
            if (!receiving) {
                next.front() = next.back() = begun;
            }
            must(start(next.data(), &open[begun % kOpen]));
            begun += open[begun % kOpen] != nullptr ? 1 : 0;
        }
        bool done = false;
        if (begun > ended) {
            must(wire.test(open[ended % kOpen], &done, nullptr));
        }
        if (done) {
            const std::vector<uint32_t>& over = buffers[ended % kOpen];
            if (receiving && (over.front() != ended || over.back() != ended)) {
                failed("message " + std::to_string(ended) + " is wrong");
            }
            ++ended;
        }
        std::this_thread::yield();
    }
}

Result<std::unique_ptr<Wire>> open_peer_wire(const std::string& transports) {
    UcxSettings settings = read_ucx_settings();
    settings.interfaces = "=lo";
    settings.transports = transports;
    return open_ucx_wire(settings);
}

// Sends or receives messages of kPeerMessage until a signal ends it. `role`: send or receive;
// `step`: connect, idle or flow. The handle comes by stdin or goes out by stdout, then an R.
int ucx_peer(const std::string& transports, const std::string& role, const std::string& step) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    auto wire = open_peer_wire(transports);
    must(wire.status());
    std::unique_ptr<WireContext> context;
    must(wire.value()->open(1, -1, &context));
    alignas(8) char handle[kNetHandleBytes];
    if (role == "receive") {
        std::unique_ptr<WireListener> listener;
        must(context->listen(0, handle, &listener));
        write_out(handle, sizeof handle);
        if (step == "connect") {
            pause();
        }
        std::unique_ptr<ReceiveWire> receiver;
        while (receiver == nullptr) {
            must(listener->accept(&receiver));
        }
        write_out("R", 1);
        if (step == "idle") {
            pause();
        }
        keep_going(*receiver, true, [&](void* data, WireRequest** request) {
            return receiver->receive(Lane::kData, data, kPeerMessage, nullptr, request);
        });
    }
    read_in(handle, sizeof handle);
    std::unique_ptr<WireConnecting> attempt;
    std::unique_ptr<SendWire> sender;
    must(context->connect(0, handle, &attempt, &sender));
    if (step == "connect") {
        write_out("R", 1);
        pause();
    }
    while (sender == nullptr) {
        must(context->connect(0, handle, &attempt, &sender));
    }
    write_out("R", 1);
    if (step == "idle") {
        pause();
    }
    keep_going(*sender, false, [&](void* data, WireRequest** request) {
        return sender->send(Lane::kData, data, kPeerMessage, nullptr, request);
    });
    return 0;
}

// --- The tests

class UcxPeer : public testing::TestWithParam<std::string> {
  protected:
    void SetUp() override {
        auto wire = open_peer_wire(GetParam());
        ASSERT_TRUE(wire.ok()) << wire.status().message();
        wire_ = std::move(wire).value();
        ASSERT_TRUE(wire_->open(1, -1, &context_).ok());
    }
    void close() {
        sender_.reset();
        receiver_.reset();
        listener_.reset();
        number_ = 0;
    }
    void TearDown() override {
        const auto begin = Clock::now();
        close();
        context_.reset();
        wire_.reset();
        EXPECT_LT(Clock::now() - begin, 5s) << "closing took too long";
    }

    static std::unique_ptr<OtherProcess> start(const std::string& role, const std::string& step) {
        return std::make_unique<OtherProcess>(
            std::vector<std::string>{"--peer", GetParam(), role, step});
    }
    // Connects to a peer that sends or receives.
    void connect(const std::string& role, const std::string& step) {
        peer_ = start(role, step);
        alignas(8) char handle[kNetHandleBytes];
        if (role == "send") {
            ASSERT_TRUE(context_->listen(0, handle, &listener_).ok());
            ASSERT_TRUE(peer_->tell(handle, sizeof handle));
            ASSERT_TRUE(poll_until([&] {
                const Status status = listener_->accept(&receiver_);
                EXPECT_TRUE(status.ok()) << status.message();
                return receiver_ != nullptr || HasFailure();
            }));
        } else {
            ASSERT_TRUE(peer_->hear(handle, sizeof handle));
            std::unique_ptr<WireConnecting> attempt;
            ASSERT_TRUE(poll_until([&] {
                const Status status = context_->connect(0, handle, &attempt, &sender_);
                EXPECT_TRUE(status.ok()) << status.message();
                return sender_ != nullptr || HasFailure();
            }));
        }
        ASSERT_TRUE(peer_->ready());
    }

    // One more message; what became of it, within `limit`.
    Finished pass(std::chrono::milliseconds limit) {
        Finished result;
        WireConnection& wire =
            sender_ != nullptr ? static_cast<WireConnection&>(*sender_) : *receiver_;
        const auto end = Clock::now() + limit;
        while (Clock::now() < end) {
            bool done = false;
            if (pending_ != nullptr) {
                result.status = wire.test(pending_, &done, &result.bytes);
            } else if (sender_ != nullptr) {
                message_.front() = message_.back() = number_;
                result.status =
                    sender_->send(Lane::kData, message_.data(), kPeerMessage, nullptr, &pending_);
            } else {
                result.status = receiver_->receive(Lane::kData, message_.data(), kPeerMessage,
                                                   nullptr, &pending_);
            }
            if (done || !result.status.ok()) {
                pending_ = nullptr;
                result.in_time = true;
                if (done && sender_ == nullptr) {
                    EXPECT_EQ(message_.front(), number_);
                    EXPECT_EQ(message_.back(), number_);
                }
                number_ += done ? 1 : 0;
                return result;
            }
            std::this_thread::yield();
        }
        return result;
    }
    void expect_flow(int messages) {
        for (int i = 0; i < messages; ++i) {
            const Finished over = pass(60s);
            ASSERT_TRUE(over.in_time && over.status.ok()) << over.status.message();
        }
    }
    // A stopped peer: until nothing more comes or goes.
    Finished pass_what_is_under_way(std::chrono::milliseconds quiet) {
        Finished over;
        do {
            over = pass(quiet);
        } while (over.in_time && over.status.ok());
        return over;
    }
    void expect_to_go_on_after_a_stop(const std::string& role) {
        connect(role, "flow");
        expect_flow(50);
        peer_->signal(SIGSTOP);
        const Finished over = pass_what_is_under_way(500ms);
        EXPECT_FALSE(over.in_time) << over.status.message();
        peer_->signal(SIGCONT);
        expect_flow(50);
    }
    // The connection is over, and that is known soon.
    void expect_lost() {
        const auto begin = Clock::now();
        Finished over;
        do {
            over = pass(5s);
        } while (over.in_time && over.status.ok() && Clock::now() - begin < 5s);
        EXPECT_TRUE(over.in_time);
        EXPECT_EQ(over.status.code(), Code::kRemoteError) << over.status.message();
        EXPECT_HAS(over.status.message(), "127.0.0.1:");
        EXPECT_LT(Clock::now() - begin, 5s);
        EXPECT_EQ(pass(1s).status.code(), Code::kRemoteError) << "it stays lost";
    }

    std::unique_ptr<Wire> wire_;
    std::unique_ptr<WireContext> context_;
    std::unique_ptr<WireListener> listener_;
    std::unique_ptr<SendWire> sender_;
    std::unique_ptr<ReceiveWire> receiver_;
    std::unique_ptr<OtherProcess> peer_;
    std::vector<uint32_t> message_ = std::vector<uint32_t>(kPeerMessage / 4);
    WireRequest* pending_ = nullptr;
    uint32_t number_ = 0;
};

TEST_P(UcxPeer, SenderKilledWhileConnecting) {
    alignas(8) char handle[kNetHandleBytes];
    ASSERT_TRUE(context_->listen(0, handle, &listener_).ok());
    for (int i = 0; i < 3; ++i) {
        const auto stranger = start("send", "connect");
        ASSERT_TRUE(stranger->tell(handle, sizeof handle) && stranger->ready());
    }
    // Whoever came in by then is lost at once, and the next one, whose message comes, is welcome.
    peer_ = start("send", "flow");
    ASSERT_TRUE(peer_->tell(handle, sizeof handle));
    ASSERT_TRUE(poll_until([&] {
        const Status status = listener_->accept(&receiver_);
        EXPECT_TRUE(status.ok()) << status.message();
        if (receiver_ != nullptr) {
            const Finished first = pass(5s);
            if (!first.in_time || !first.status.ok()) {
                expect_lost();
                receiver_.reset();
            }
        }
        return receiver_ != nullptr || HasFailure();
    }));
    ASSERT_NE(receiver_, nullptr);
    expect_flow(20);
}

TEST_P(UcxPeer, ReceiverKilledWhileConnecting) {
    const auto listening = start("receive", "connect");
    alignas(8) char handle[kNetHandleBytes];
    ASSERT_TRUE(listening->hear(handle, sizeof handle));
    std::unique_ptr<WireConnecting> attempt;
    for (int i = 0; i < 100; ++i) {
        ASSERT_TRUE(context_->connect(0, handle, &attempt, &sender_).ok());
        ASSERT_EQ(sender_, nullptr);  // nobody accepts, nobody waits
    }
    listening->end();
    Status status;
    EXPECT_TRUE(poll_until([&] {
        status = context_->connect(0, handle, &attempt, &sender_);
        return !status.ok();
    }));
    EXPECT_EQ(status.code(), Code::kRemoteError) << status.message();
}

TEST_P(UcxPeer, KilledWhenIdleOrInTransfer) {
    for (const char* role : {"send", "receive"}) {
        for (const char* step : {"idle", "flow"}) {
            SCOPED_TRACE(std::string(role) + " " + step);
            ASSERT_NO_FATAL_FAILURE(connect(role, step));
            if (std::string(step) == "flow") {
                expect_flow(50);
            }
            peer_->end();
            expect_lost();
            close();
        }
    }
}

TEST_P(UcxPeer, StoppedSenderGoesOnWhereItWas) {
    expect_to_go_on_after_a_stop("send");
}

TEST_P(UcxPeer, StoppedReceiverGoesOnWhereItWas) {
    expect_to_go_on_after_a_stop("receive");
}

// Closing does not wait for a peer that does nothing, nor touch buffers afterwards.
TEST_P(UcxPeer, CloseTowardsAStoppedReceiver) {
    connect("receive", "flow");
    expect_flow(10);
    peer_->signal(SIGSTOP);
    pass_what_is_under_way(300ms);
    const auto begin = Clock::now();
    sender_->drop();
    EXPECT_LT(Clock::now() - begin, 20s);  // and not for ever
    std::fill(message_.begin(), message_.end(), 0xdddddddd);
    sender_.reset();
    EXPECT_LT(Clock::now() - begin, 20s);
}

TEST_P(UcxPeer, CloseTowardsAStoppedSenderThatGoesOn) {
    connect("send", "flow");
    expect_flow(10);
    peer_->signal(SIGSTOP);
    pass_what_is_under_way(300ms);
    const auto begin = Clock::now();
    receiver_->drop();
    EXPECT_LT(Clock::now() - begin, 20s);  // and not for ever
    std::fill(message_.begin(), message_.end(), 0xdddddddd);
    peer_->signal(SIGCONT);
    std::this_thread::sleep_for(300ms);
    receiver_.reset();
    for (const uint32_t word : message_) {
        ASSERT_EQ(word, 0xddddddddu);
    }
}

INSTANTIATE_TEST_SUITE_P(Transports, UcxPeer, testing::Values("", "posix"), [](const auto& info) {
    return info.param.empty() ? "tcp" : info.param;
});

}  // namespace
}  // namespace slimwire::net

int main(int argc, char** argv) {
    if (argc == 5 && std::string(argv[1]) == "--peer") {
        return slimwire::net::ucx_peer(argv[2], argv[3], argv[4]);
    }
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
