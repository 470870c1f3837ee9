// What a sender promised with its goodbye is waited for, with patience that has an end.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

#include "plugin/net/ucx/ucx_wire.h"
#include "tests/plugin/net/hand_made.h"
#include "tests/support/has.h"

namespace slimwire::net {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class UcxPromise : public testing::Test {
  protected:
    static constexpr auto kPromise = 400ms;

    void SetUp() override {
        meet();
        const Status status = sender_.say_goodbye({kByeMagic, {0, kMessages}});
        ASSERT_TRUE(status.ok()) << status.message();
        for (uint32_t i = 0; i < kMessages; ++i) {
            ask_for(i);
        }
    }
    void meet() {
        UcxSettings settings = read_ucx_settings();
        settings.interfaces = "=lo";
        settings.transports.clear();
        settings.promise_ns = std::chrono::nanoseconds(kPromise).count();
        auto wire = open_ucx_wire(settings);
        ASSERT_TRUE(wire.ok()) << wire.status().message();
        wire_ = std::move(wire).value();
        ASSERT_TRUE(wire_->open(1, -1, &context_).ok());
        WireHandle handle{};
        ASSERT_TRUE(context_->listen(0, &handle, &listener_).ok());
        Status status = sender_.say_hello(handle);
        ASSERT_TRUE(status.ok()) << status.message();
        ASSERT_TRUE(poll_until([&] {
            EXPECT_TRUE(listener_->accept(&receiver_).ok());
            return receiver_ != nullptr || HasFailure();
        }));
        status = sender_.hear_answer();
        ASSERT_TRUE(status.ok()) << status.message();
    }
    void ask_for(uint32_t number) {
        requests_[number] =
            start_receive(*receiver_, Lane::kData, &received_[number], sizeof received_[number]);
        ASSERT_NE(requests_[number], nullptr);
    }
    Status send(uint32_t number) {
        return sender_.send(Lane::kData, number, &number, sizeof number);
    }
    // Looks for message `number` for a while.
    Status look(uint32_t number, std::chrono::milliseconds time, bool* done) {
        Status status;
        const auto end = Clock::now() + time;
        *done = false;
        do {
            status = receiver_->test(requests_[number], done, nullptr);
            std::this_thread::sleep_for(1ms);
        } while (status.ok() && !*done && Clock::now() < end);
        return status;
    }

    static constexpr uint32_t kMessages = 10;
    std::unique_ptr<Wire> wire_;
    std::unique_ptr<WireContext> context_;
    std::unique_ptr<WireListener> listener_;
    std::unique_ptr<ReceiveWire> receiver_;
    HandMadeSender sender_;
    WireRequest* requests_[kMessages] = {};
    uint32_t received_[kMessages] = {};
};

TEST_F(UcxPromise, IsWaitedForAsLongAsSomethingComes) {
    for (uint32_t number = 0; number < kMessages; ++number) {
        bool done = false;
        Status status = look(number, kPromise / 4, &done);
        ASSERT_TRUE(status.ok()) << number << ": " << status.message();
        ASSERT_FALSE(done);
        status = send(number);
        ASSERT_TRUE(status.ok()) << status.message();
        status = look(number, 60s, &done);
        ASSERT_TRUE(status.ok() && done) << number << ": " << status.message();
        EXPECT_EQ(received_[number], number);
    }
}

TEST_F(UcxPromise, IsNotHeldAgainstThePeerWhileNobodyLooks) {
    bool done = false;
    Status status = look(0, 20ms, &done);
    ASSERT_TRUE(status.ok()) << status.message();
    std::this_thread::sleep_for(2 * kPromise);
    status = look(0, kPromise / 4, &done);
    ASSERT_TRUE(status.ok()) << status.message();
    status = send(0);
    ASSERT_TRUE(status.ok()) << status.message();
    status = look(0, 60s, &done);
    EXPECT_TRUE(status.ok() && done) << status.message();
}

TEST_F(UcxPromise, ThatIsBrokenIsAnErrorThatSaysWhat) {
    ASSERT_TRUE(send(0).ok());
    bool done = false;
    ASSERT_TRUE(look(0, 60s, &done).ok());
    ASSERT_TRUE(done);
    const auto begin = Clock::now();
    const Status status = look(1, 60s, &done);
    EXPECT_EQ(status.code(), Code::kRemoteError);
    EXPECT_HAS(status.message(), "message 1 of lane 1, which it sent before, has not come");
    EXPECT_GE(Clock::now() - begin, kPromise / 2);
}

class UcxNoGoodbye : public UcxPromise {
  protected:
    void SetUp() override { meet(); }
};

// A process that ends without closing: the last of its messages may be asked for much later than
// the receiver has given up on another one.
TEST_F(UcxNoGoodbye, WhatHadBeenSentIsThereForWhoAsksLate) {
    ASSERT_TRUE(send(0).ok());
    ASSERT_TRUE(send(1).ok());
    shutdown(sender_.socket_fd(), SHUT_WR);
    uint32_t never = 0;
    requests_[2] = start_receive(*receiver_, Lane::kControl, &never, sizeof never);
    bool done = false;
    ASSERT_EQ(look(2, 60s, &done).code(), Code::kRemoteError);
    for (const uint32_t number : {0, 1}) {
        ASSERT_NO_FATAL_FAILURE(ask_for(number));
        const Status status = look(number, 60s, &done);
        ASSERT_TRUE(status.ok() && done) << number << ": " << status.message();
        EXPECT_EQ(received_[number], number);
    }
    ASSERT_NO_FATAL_FAILURE(ask_for(2));
    EXPECT_EQ(look(2, 60s, &done).code(), Code::kRemoteError);
}

// Its end may come before its messages, of which the network lost one and has to bring it again.
TEST_F(UcxNoGoodbye, WhatIsStillUnderWayHasTimeToBeSentAgain) {
    shutdown(sender_.socket_fd(), SHUT_WR);
    ASSERT_NO_FATAL_FAILURE(ask_for(0));
    bool done = false;
    Status status = look(0, 500ms, &done);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(send(0).ok());
    status = look(0, 60s, &done);
    EXPECT_TRUE(status.ok() && done) << status.message();
}

}  // namespace
}  // namespace slimwire::net
