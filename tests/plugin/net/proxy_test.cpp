// libnccl-net-slimwire.so as NCCL uses it, each table version, in one process: streams of messages,
// many requests, ends in the middle. Which transport and whether it
// compresses comes from the environment, as for a user (meson.build lists the combinations).
#include "tests/plugin/net/proxy.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <thread>

#include "tests/support/seed.h"

namespace slimwire::net {
namespace {

// How much of a long test is played: all of it on the newest table, a part on the others, which
// share what is below the tables. TEST_NET_LONG=1 plays all of it on each.
bool is_long_form() {
    const char* const wanted = std::getenv("TEST_NET_LONG");
    return wanted != nullptr && std::strcmp(wanted, "1") == 0;
}

class Proxy : public testing::TestWithParam<int> {
  protected:
    void SetUp() override {
        auto opened = InnerTable::open(SLIMWIRE_TEST_NET_PLUGIN, GetParam());
        ASSERT_TRUE(opened.ok()) << opened.status().message();
        net_ = std::move(opened).value();
        ASSERT_EQ(net_->version(), GetParam());
        ASSERT_EQ(net_->init(&sending_, 1, -1, log_to_stderr), ncclSuccess);
        ASSERT_EQ(net_->init(&receiving_, 1, -1, log_to_stderr), ncclSuccess);
        int devices = 0;
        ASSERT_EQ(net_->devices(&devices), ncclSuccess);
        ASSERT_GE(devices, 1);
        ASSERT_EQ(net_->listen(receiving_, 0, handle_, &listen_comm_), ncclSuccess);
    }
    void TearDown() override {
        if (listen_comm_ != nullptr) {
            EXPECT_EQ(net_->close_listen(listen_comm_), ncclSuccess);
            EXPECT_EQ(net_->finalize(sending_), ncclSuccess);
            EXPECT_EQ(net_->finalize(receiving_), ncclSuccess);
        }
    }

    struct Link {
        void *send = nullptr, *receive = nullptr;
    };
    Link connect() {
        Link link;
        alignas(16) char handle[kNetHandleBytes];
        std::memcpy(handle, handle_, sizeof handle);
        ncclResult_t sent = ncclSuccess, received = ncclSuccess;
        std::thread other([&] { link.receive = accept_polling(*net_, listen_comm_, &received); });
        link.send = connect_polling(*net_, sending_, handle, &sent);
        other.join();
        EXPECT_EQ(sent, ncclSuccess);
        EXPECT_EQ(received, ncclSuccess);
        EXPECT_NE(link.send, nullptr);
        EXPECT_NE(link.receive, nullptr);
        return link;
    }
    void close(const Link& link) {
        EXPECT_EQ(net_->close_send(link.send), ncclSuccess);
        EXPECT_EQ(net_->close_recv(link.receive), ncclSuccess);
    }

    // A whole stream with a thread on each side.
    void expect_stream(const Link& link, const Traffic& traffic) {
        Outcome sent, received;
        std::thread other([&] { received = receive_stream(*net_, link.receive, traffic); });
        sent = send_stream(*net_, link.send, traffic);
        other.join();
        EXPECT_EQ(sent.result, ncclSuccess);
        EXPECT_EQ(sent.what, "");
        EXPECT_EQ(received.result, ncclSuccess);
        EXPECT_EQ(received.what, "");
        EXPECT_EQ(received.messages, traffic.messages);
    }

    [[nodiscard]] static int part(int all, int some) {
        return GetParam() == kNewestTable || is_long_form() ? all : some;
    }

    std::unique_ptr<InnerTable> net_;
    void *sending_ = nullptr, *receiving_ = nullptr, *listen_comm_ = nullptr;
    alignas(16) char handle_[kNetHandleBytes] = {};
};

// A child has neither the threads nor a network of its own: what waits for them would wait for
// ever.
TEST_P(Proxy, AForkOfTheProcessIsRefused) {
    const pid_t child = fork();
    if (child == 0) {
        void *context = nullptr, *listen_comm = nullptr;
        const bool refused = net_->init(&context, 1, -1, log_to_stderr) != ncclSuccess ||
                             net_->listen(context, 0, handle_, &listen_comm) != ncclSuccess;
        _exit(refused ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    const Link link = connect();
    expect_stream(link, Traffic{.messages = 5});
    close(link);
}

TEST_P(Proxy, MessagesOfAllKindsAndSizesArriveExactly) {
    const Link link = connect();
    expect_stream(link, {.seed = test_seed(), .messages = part(140, 30)});
    expect_stream(link, {.seed = test_seed() + 1, .messages = part(20, 5), .ragged = false});
    close(link);
}

TEST_P(Proxy, ThirtyTwoRequestsAreUnderWayAndTestedInAnyOrder) {
    const Link link = connect();
    expect_stream(link,
                  {.seed = test_seed(), .messages = 128, .most_bytes = 200'000, .window = 32});
    close(link);
}

TEST_P(Proxy, EndsInTheMiddleOfAStreamLeaveNothingHanging) {
    for (const bool sender_ends : {true, false}) {
        const Link link = connect();
        const Traffic traffic{.seed = test_seed(), .messages = 100'000, .most_bytes = 400'000};
        const StopAt stop = [](int over) { return over == 30; };
        Outcome staying;
        // The one that ends deregisters and closes with requests in flight, as an abort does.
        std::thread other([&] {
            staying = sender_ends ? receive_stream(*net_, link.receive, traffic)
                                  : send_stream(*net_, link.send, traffic);
        });
        const Outcome ending = sender_ends ? send_stream(*net_, link.send, traffic, stop)
                                           : receive_stream(*net_, link.receive, traffic, stop);
        EXPECT_EQ(ending.result, ncclSuccess);
        EXPECT_EQ(ending.what, "");
        const auto begin = std::chrono::steady_clock::now();
        EXPECT_EQ(sender_ends ? net_->close_send(link.send) : net_->close_recv(link.receive),
                  ncclSuccess);
        other.join();
        EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
        EXPECT_EQ(staying.result, ncclRemoteError);
        EXPECT_EQ(staying.what, "");
        EXPECT_EQ(sender_ends ? net_->close_recv(link.receive) : net_->close_send(link.send),
                  ncclSuccess);
    }
    // The listener goes on.
    const Link link = connect();
    expect_stream(link, {.seed = 3, .messages = 10});
    close(link);
}

// Also where the sender comes after the receiver's end: its calls hand out requests, which fail.
// What aws-ofi-nccl's functional test inflight_close does.
TEST_P(Proxy, BothDeregisterAndCloseWithRequestsInFlight) {
    constexpr size_t kBytes = 1 << 20, kRequests = 8;
    constexpr int kTag = 1;
    for (const bool one_by_one : {false, true}) {
        const Link link = connect();
        std::vector<uint8_t> in(kRequests * kBytes), out(kRequests * kBytes);
        const auto run = [&](void* comm, std::vector<uint8_t>& buffer, auto&& post) {
            std::vector<void*> handles(kRequests), requests(kRequests);
            for (size_t i = 0; i < kRequests; ++i) {
                uint8_t* const data = buffer.data() + i * kBytes;
                EXPECT_EQ(net_->reg_mr(comm, data, kBytes, kPtrHost, &handles[i]), ncclSuccess);
                const Watch watch;
                while (requests[i] == nullptr && !watch.expired() && !HasFailure()) {
                    EXPECT_EQ(post(data, handles[i], &requests[i]), ncclSuccess);
                }
                EXPECT_NE(requests[i], nullptr);
            }
            for (void* handle : handles) {
                EXPECT_EQ(net_->dereg_mr(comm, handle), ncclSuccess);
            }
        };
        const auto receive = [&] {
            run(link.receive, in, [&](uint8_t* data, void* handle, void** request) {
                void* into = data;
                const size_t size = kBytes;
                return net_->irecv(link.receive, 1, &into, &size, &kTag, &handle, request);
            });
            EXPECT_EQ(net_->close_recv(link.receive), ncclSuccess);
        };
        std::thread other(receive);
        if (one_by_one) {
            other.join();
        }
        run(link.send, out, [&](uint8_t* data, void* handle, void** request) {
            return net_->isend(link.send, data, kBytes, kTag, handle, request);
        });
        EXPECT_EQ(net_->close_send(link.send), ncclSuccess);
        if (!one_by_one) {
            other.join();
        }
    }
}

TEST_P(Proxy, LargeMessages) {
    const Link link = connect();
    expect_stream(link, {.seed = test_seed(),
                         .messages = part(7, 1),
                         .most_bytes = 10 << 20,
                         .window = 2,
                         .ragged = false});
    close(link);
}

INSTANTIATE_TEST_SUITE_P(Tables,
                         Proxy,
                         testing::Range(kOldestTable, kNewestTable + 1),
                         [](const auto& info) { return "v" + std::to_string(info.param); });

class LargestMessages : public Proxy {};

TEST_P(LargestMessages, OfAGibibyteArriveExactly) {
    const bool all = is_long_form();
    const Link link = connect();
    expect_stream(link, {.seed = test_seed(),
                         .messages = all ? 4 : 1,
                         .most_bytes = size_t{1} << 30,
                         .window = all ? 2 : 1,
                         .ragged = false});
    close(link);
}

INSTANTIATE_TEST_SUITE_P(NewestTable, LargestMessages, testing::Values(kNewestTable));

}  // namespace
}  // namespace slimwire::net
