// libnccl-net-slimwire.so as NCCL uses it, each table version, in one process: streams of messages,
// groups, many requests, connection storms, ends in the middle. Which transport and whether it
// compresses comes from the environment, as for a user (meson.build lists the combinations).
#include "tests/plugin/net/proxy.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <thread>

#include "tests/plugin/net/long_form.h"
#include "tests/support/seed.h"

namespace slimwire::net {
namespace {

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

    // Calls until `request` is over; its sizes.
    std::array<int, 8> finish(void* request) {
        std::array<int, 8> sizes{};
        const Watch watch;
        for (int done = 0; done == 0 && !watch.expired();) {
            const ncclResult_t result = net_->test(request, &done, sizes.data());
            EXPECT_EQ(result, ncclSuccess);
            if (result != ncclSuccess) {
                break;
            }
        }
        EXPECT_FALSE(watch.expired());
        return sizes;
    }

    [[nodiscard]] static int part(int all, int some) { return plays_all(GetParam()) ? all : some; }

    std::unique_ptr<InnerTable> net_;
    void *sending_ = nullptr, *receiving_ = nullptr, *listen_comm_ = nullptr;
    alignas(16) char handle_[kNetHandleBytes] = {};
};

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

TEST_P(Proxy, GroupedReceivesTakeTheirTagsInAnyOrder) {
    InnerProperties properties;
    ASSERT_EQ(net_->properties(0, &properties), ncclSuccess);
    const int group = properties.max_recvs;
    ASSERT_GE(group, 2);
    const Link link = connect();
    std::mt19937 random(test_seed());
    constexpr size_t kMost = 150'000;
    std::vector<uint8_t> out(kMost * 8), in(kMost * 8);
    void *out_handle = nullptr, *in_handle = nullptr;
    ASSERT_EQ(net_->reg_mr(link.send, out.data(), out.size(), kPtrHost, &out_handle), ncclSuccess);
    ASSERT_EQ(net_->reg_mr(link.receive, in.data(), in.size(), kPtrHost, &in_handle), ncclSuccess);
    for (int round = 0; round < 12; ++round) {
        std::vector<int> order(static_cast<size_t>(group));
        for (int i = 0; i < group; ++i) {
            order[static_cast<size_t>(i)] = i;
        }
        std::shuffle(order.begin(), order.end(), random);
        std::vector<std::vector<uint8_t>> messages;
        for (int i = 0; i < group; ++i) {
            const size_t bytes = round == 0 ? 0 : random() % (kMost - 100);
            messages.push_back(i % 2 == 0 ? gaussian_bytes(DType::kBfloat16, bytes, random)
                                          : random_bytes(bytes, random));
        }
        std::fill(in.begin(), in.end(), 0xd7);
        std::vector<void*> data, handles;
        std::vector<size_t> capacities;
        std::vector<int> tags;
        for (int i = 0; i < group; ++i) {  // the i-th receive wants tag 100 + order[i]
            data.push_back(in.data() + kMost * static_cast<size_t>(i));
            handles.push_back(in_handle);
            capacities.push_back(kMost);
            tags.push_back(100 + order[static_cast<size_t>(i)]);
        }
        void* receive = nullptr;
        std::vector<void*> sends;
        Watch watch;
        while (sends.size() < static_cast<size_t>(group) && !watch.expired()) {
            if (receive == nullptr) {
                ASSERT_EQ(net_->irecv(link.receive, group, data.data(), capacities.data(),
                                      tags.data(), handles.data(), &receive),
                          ncclSuccess);
            }
            const size_t next = sends.size();
            uint8_t* const from = out.data() + kMost * next;
            std::copy(messages[next].begin(), messages[next].end(), from);
            void* request = nullptr;
            ASSERT_EQ(net_->isend(link.send, from, messages[next].size(),
                                  100 + static_cast<int>(next), out_handle, &request),
                      ncclSuccess);
            if (request != nullptr) {
                sends.push_back(request);
            }
        }
        ASSERT_NE(receive, nullptr);
        std::array<int, 8> sizes{};
        std::thread other([&] { sizes = finish(receive); });
        for (void* request : sends) {
            finish(request);
        }
        other.join();
        for (int i = 0; i < group; ++i) {
            const auto& wanted = messages[static_cast<size_t>(order[static_cast<size_t>(i)])];
            EXPECT_EQ(static_cast<size_t>(sizes[static_cast<size_t>(i)]), wanted.size());
            EXPECT_TRUE(
                std::equal(wanted.begin(), wanted.end(), in.begin() + static_cast<long>(kMost) * i))
                << "receive " << i << " of round " << round;
        }
    }
    EXPECT_EQ(net_->dereg_mr(link.send, out_handle), ncclSuccess);
    EXPECT_EQ(net_->dereg_mr(link.receive, in_handle), ncclSuccess);
    close(link);
}

TEST_P(Proxy, ConnectionsOfOneListenerWorkAtTheSameTime) {
    std::vector<Link> links;
    for (int i = 0; i < 4; ++i) {
        links.push_back(connect());
    }
    std::vector<std::thread> threads;
    for (size_t i = 0; i < links.size(); ++i) {
        threads.emplace_back([&, i] {
            expect_stream(links[i], {.seed = test_seed() + static_cast<uint32_t>(i) * 13,
                                     .messages = 50,
                                     .most_bytes = 300'000});
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (const Link& link : links) {
        close(link);
    }
}

TEST_P(Proxy, AStormOfConnectionsIsServed) {
    constexpr int kThreads = 4, kEach = 8;
    std::atomic<int> sent{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
            for (int i = 0; i < kEach; ++i) {
                alignas(16) char handle[kNetHandleBytes];
                std::memcpy(handle, handle_, sizeof handle);
                ncclResult_t result = ncclSuccess;
                void* comm = connect_polling(*net_, sending_, handle, &result);
                ASSERT_NE(comm, nullptr);
                const Outcome outcome =
                    send_stream(*net_, comm, {.seed = 5, .messages = 3, .most_bytes = 70'000});
                EXPECT_EQ(outcome.result, ncclSuccess) << t << " " << i;
                EXPECT_EQ(outcome.what, "");
                EXPECT_EQ(net_->close_send(comm), ncclSuccess);
                ++sent;
            }
        });
    }
    std::vector<std::thread> receivers;
    for (int i = 0; i < kThreads * kEach; ++i) {
        ncclResult_t result = ncclSuccess;
        void* comm = accept_polling(*net_, listen_comm_, &result);
        ASSERT_NE(comm, nullptr);
        receivers.emplace_back([&, comm] {
            const Outcome outcome =
                receive_stream(*net_, comm, {.seed = 5, .messages = 3, .most_bytes = 70'000});
            EXPECT_EQ(outcome.result, ncclSuccess);
            EXPECT_EQ(outcome.what, "");
            EXPECT_EQ(net_->close_recv(comm), ncclSuccess);
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (std::thread& thread : receivers) {
        thread.join();
    }
    EXPECT_EQ(sent, kThreads * kEach);
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

TEST_P(Proxy, AMessageLargerThanItsReceiveIsAnError) {
    const Link link = connect();
    std::vector<uint8_t> out(100'000, 1), in(60'000, 0xd7);
    void *out_handle = nullptr, *in_handle = nullptr, *send = nullptr, *receive = nullptr;
    ASSERT_EQ(net_->reg_mr(link.send, out.data(), out.size(), kPtrHost, &out_handle), ncclSuccess);
    ASSERT_EQ(net_->reg_mr(link.receive, in.data(), in.size(), kPtrHost, &in_handle), ncclSuccess);
    const size_t capacity = 50'000;
    const int tag = 0;
    void* data = in.data();
    Watch watch;
    while ((send == nullptr || receive == nullptr) && !watch.expired()) {
        if (receive == nullptr) {
            ASSERT_EQ(net_->irecv(link.receive, 1, &data, &capacity, &tag, &in_handle, &receive),
                      ncclSuccess);
        }
        if (send == nullptr) {
            ASSERT_EQ(net_->isend(link.send, out.data(), out.size(), 0, out_handle, &send),
                      ncclSuccess);
        }
    }
    ncclResult_t result = ncclSuccess;
    int done = 0, size = 0;
    bool sending = true;
    while (result == ncclSuccess && done == 0 && !watch.expired()) {
        int sent = 0;
        sending = sending && net_->test(send, &sent, &size) == ncclSuccess && sent == 0;
        result = net_->test(receive, &done, &size);
    }
    EXPECT_EQ(result, ncclInvalidArgument);
    EXPECT_EQ(done, 0);
    EXPECT_EQ(in[capacity], 0xd7);
    EXPECT_EQ(net_->dereg_mr(link.send, out_handle), ncclSuccess);
    EXPECT_EQ(net_->dereg_mr(link.receive, in_handle), ncclSuccess);
    close(link);
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
