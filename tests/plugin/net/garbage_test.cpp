// The library that ships towards a receiver that sends garbage: an error in bounded time, and
// honest connections go on. Strangers are in ucx_door_test.cpp, wild senders in tests/fuzz.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "plugin/net/engine/frame.h"
#include "tests/plugin/net/hand_made.h"
#include "tests/plugin/net/proxy.h"
#include "tests/support/seed.h"

namespace slimwire::net {
namespace {

using Clock = std::chrono::steady_clock;

class Garbage : public testing::Test {
  protected:
    void SetUp() override {
        auto opened = InnerTable::open(SLIMWIRE_TEST_NET_PLUGIN);
        ASSERT_TRUE(opened.ok()) << opened.status().message();
        net_ = std::move(opened).value();
        ASSERT_EQ(net_->init(&context_, 1, -1, silent), ncclSuccess);
        ASSERT_EQ(net_->listen(context_, 0, &handle_, &listen_comm_), ncclSuccess);
    }
    void TearDown() override {
        if (listen_comm_ != nullptr) {
            EXPECT_EQ(net_->close_listen(listen_comm_), ncclSuccess);
            EXPECT_EQ(net_->finalize(context_), ncclSuccess);
        }
    }
    // Each stranger is a line, of which there are hundreds.
    static void silent(LogLevel, unsigned long, const char*, int, const char*, ...) {}

    void expect_honest_stream(uint32_t seed) {
        void *send = nullptr, *receive = nullptr;
        ncclResult_t sent = ncclSuccess, received = ncclSuccess;
        std::thread accepting([&] { receive = accept_polling(*net_, listen_comm_, &received); });
        WireHandle handle = handle_;
        send = connect_polling(*net_, context_, &handle, &sent);
        accepting.join();
        ASSERT_EQ(sent, ncclSuccess);
        ASSERT_EQ(received, ncclSuccess);
        const Traffic traffic{.seed = seed, .messages = 12, .most_bytes = 100'000};
        Outcome there;
        std::thread other([&] { there = receive_stream(*net_, receive, traffic); });
        const Outcome here = send_stream(*net_, send, traffic);
        other.join();
        for (const Outcome& outcome : {here, there}) {
            EXPECT_EQ(outcome.result, ncclSuccess);
            EXPECT_EQ(outcome.what, "");
        }
        EXPECT_EQ(net_->close_send(send), ncclSuccess);
        EXPECT_EQ(net_->close_recv(receive), ncclSuccess);
    }

    std::unique_ptr<InnerTable> net_;
    void *context_ = nullptr, *listen_comm_ = nullptr;
    WireHandle handle_{};
    std::mt19937 random_{test_seed()};
};

std::vector<uint8_t> random_some(std::mt19937& random, size_t most) {
    std::vector<uint8_t> bytes(random() % (most + 1));
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<uint8_t>(random()); });
    return bytes;
}

// A receiver whose answer is right and whose credits are not.
TEST_F(Garbage, FromAReceiverIsAnErrorOrHarmless) {
    int errors = 0;
    for (int trial = 0; trial < 30; ++trial) {
        HandMadeReceiver receiver;
        WireHandle handle{};
        Status status = receiver.listen(&handle);
        ASSERT_TRUE(status.ok()) << status.message();
        void* comm = nullptr;
        bool answered = false;
        ASSERT_TRUE(poll_until([&] {
            if (!answered) {
                status = receiver.attend(&answered);
            }
            return !status.ok() || net_->connect(context_, 0, &handle, &comm) != ncclSuccess ||
                   (answered && comm != nullptr);
        }));
        ASSERT_TRUE(status.ok()) << status.message();
        ASSERT_NE(comm, nullptr);
        std::vector<uint8_t> data(100'000, 1);
        void* mhandle = nullptr;
        ASSERT_EQ(net_->reg_mr(comm, data.data(), data.size(), kPtrHost, &mhandle), ncclSuccess);
        ncclResult_t result = ncclSuccess;
        void* requests[32] = {};
        const auto go_on = [&] {
            for (void*& request : requests) {
                int done = 0, size = 0;
                if (result == ncclSuccess && request == nullptr) {
                    result = net_->isend(comm, data.data(), data.size(), 0, mhandle, &request);
                } else if (result == ncclSuccess) {
                    result = net_->test(request, &done, &size);
                    request = done != 0 ? nullptr : request;
                }
            }
        };
        const auto end = Clock::now() + std::chrono::milliseconds(100);
        while (result == ncclSuccess && Clock::now() < end) {
            const std::vector<uint8_t> words = random_some(random_, 200);
            receiver.say(words.data(), words.size());
            go_on();
        }
        errors += result != ncclSuccess ? 1 : 0;
        receiver.hang_up();
        const auto limit = Clock::now() + std::chrono::minutes(1);
        while (result == ncclSuccess && Clock::now() < limit) {
            go_on();
        }
        EXPECT_EQ(result, ncclRemoteError);
        EXPECT_EQ(net_->dereg_mr(comm, mhandle), ncclSuccess);
        EXPECT_EQ(net_->close_send(comm), ncclSuccess);
    }
    EXPECT_GT(errors, 27);
    expect_honest_stream(7);
}

}  // namespace
}  // namespace slimwire::net
