// The wire over UCX when the process at the other end is killed or stopped, at each step. The other
// process is this program again, started with --peer.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/plugin/net/ucx_peer.h"
#include "tests/plugin/net/wire_pair.h"
#include "tests/support/has.h"

namespace slimwire::net {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class Peer {
  public:
    Peer(const std::string& transports, const std::string& role, const std::string& step) {
        int in[2], out[2];
        EXPECT_EQ(pipe2(in, O_CLOEXEC), 0);
        EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
        pid_ = fork();
        if (pid_ == 0) {
            dup2(in[0], STDIN_FILENO);
            dup2(out[1], STDOUT_FILENO);
            execl("/proc/self/exe", "ucx_peer", "--peer", transports.c_str(), role.c_str(),
                  step.c_str(), nullptr);
            _exit(127);
        }
        close(in[0]);
        close(out[1]);
        in_ = in[1];
        out_ = out[0];
    }
    ~Peer() {
        end(SIGKILL);
        close(in_);
        close(out_);
    }
    Peer(const Peer&) = delete;
    Peer& operator=(const Peer&) = delete;
    void tell(const void* data, size_t bytes) const {
        EXPECT_EQ(write(in_, data, bytes), static_cast<ssize_t>(bytes));
    }
    // False when the peer says nothing within `limit`.
    bool hear(void* data, size_t bytes, std::chrono::milliseconds limit = 10s) const {
        pollfd entry{out_, POLLIN, 0};
        return poll(&entry, 1, static_cast<int>(limit.count())) == 1 &&
               read(out_, data, bytes) == static_cast<ssize_t>(bytes);
    }
    bool ready() const {
        char byte = 0;
        return hear(&byte, 1);
    }
    void signal(int number) const { kill(pid_, number); }
    void end(int number) {
        if (pid_ > 0) {
            kill(pid_, number);
            kill(pid_, SIGCONT);
            waitpid(pid_, nullptr, 0);
            pid_ = -1;
        }
    }

  private:
    pid_t pid_ = -1;
    int in_ = -1, out_ = -1;
};

class UcxPeer : public testing::TestWithParam<std::string> {
  protected:
    void SetUp() override {
        auto wire = open_peer_wire(GetParam());
        ASSERT_TRUE(wire.ok()) << wire.status().message();
        wire_ = std::move(wire).value();
        ASSERT_TRUE(wire_->open(1, -1, &context_).ok());
    }
    void TearDown() override {
        const auto begin = Clock::now();
        sender_.reset();
        receiver_.reset();
        listener_.reset();
        context_.reset();
        wire_.reset();
        EXPECT_LT(Clock::now() - begin, 5s) << "closing took too long";
    }

    // Connects to a peer that sends or receives.
    void connect(const std::string& role, const std::string& step) {
        peer_ = std::make_unique<Peer>(GetParam(), role, step);
        alignas(8) char handle[kNetHandleBytes];
        if (role == "send") {
            ASSERT_TRUE(context_->listen(0, handle, &listener_).ok());
            peer_->tell(handle, sizeof handle);
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
    std::unique_ptr<Peer> peer_;
    std::vector<uint32_t> message_ = std::vector<uint32_t>(kPeerMessage / 4);
    WireRequest* pending_ = nullptr;
    uint32_t number_ = 0;
};

TEST_P(UcxPeer, SenderKilledWhileConnecting) {
    alignas(8) char handle[kNetHandleBytes];
    ASSERT_TRUE(context_->listen(0, handle, &listener_).ok());
    for (int i = 0; i < 3; ++i) {
        Peer stranger(GetParam(), "send", "connect");
        stranger.tell(handle, sizeof handle);
        ASSERT_TRUE(stranger.ready());
        stranger.end(SIGKILL);
    }
    // Whoever came in by then is lost at once, and the next one, whose message comes, is welcome.
    peer_ = std::make_unique<Peer>(GetParam(), "send", "flow");
    peer_->tell(handle, sizeof handle);
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
    Peer listening(GetParam(), "receive", "connect");
    alignas(8) char handle[kNetHandleBytes];
    ASSERT_TRUE(listening.hear(handle, sizeof handle));
    std::unique_ptr<WireConnecting> attempt;
    for (int i = 0; i < 100; ++i) {
        ASSERT_TRUE(context_->connect(0, handle, &attempt, &sender_).ok());
        ASSERT_EQ(sender_, nullptr);  // nobody accepts, nobody waits
    }
    listening.end(SIGKILL);
    Status status;
    EXPECT_TRUE(poll_until([&] {
        status = context_->connect(0, handle, &attempt, &sender_);
        return !status.ok();
    }));
    EXPECT_EQ(status.code(), Code::kRemoteError) << status.message();
}

TEST_P(UcxPeer, SenderKilledWhenIdle) {
    connect("send", "idle");
    peer_->end(SIGKILL);
    expect_lost();
}

TEST_P(UcxPeer, SenderKilledInTransfer) {
    connect("send", "flow");
    expect_flow(50);
    peer_->end(SIGKILL);
    expect_lost();
}

TEST_P(UcxPeer, ReceiverKilledWhenIdle) {
    connect("receive", "idle");
    peer_->end(SIGKILL);
    expect_lost();
}

TEST_P(UcxPeer, ReceiverKilledInTransfer) {
    connect("receive", "flow");
    expect_flow(50);
    peer_->end(SIGKILL);
    expect_lost();
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
