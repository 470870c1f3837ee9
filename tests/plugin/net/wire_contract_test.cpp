// Every wire keeps the contract of plugin/net/wire.h: messages and their lanes.
#include "tests/plugin/net/wire_contract_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <thread>
#include <vector>

#include "tests/support/seed.h"

namespace slimwire::net {
namespace {

// 16 MiB, what sockets may hold back for a silent receiver.
constexpr int kMostAhead = 4096;

TEST_P(WireContract, EverySizeArrivesInReceivesOfItsSizeAndLarger) {
    const uint32_t seed = test_seed();
    for (const size_t bytes : {0, 1, 7, 4095, 4096, 65537, 1 << 20, 3'000'001}) {
        for (const size_t more : {0, 1, 100'000}) {
            const auto message = random_bytes(bytes, seed);
            EXPECT_EQ(pass(Lane::kData, message, bytes + more), message) << bytes << "+" << more;
        }
    }
    for (const size_t bytes : {size_t{0}, size_t{16}, kControlBytes}) {
        const auto message = random_bytes(bytes, seed);
        EXPECT_EQ(pass(Lane::kControl, message, kControlBytes), message) << bytes;
    }
}

// The message is there when its receive is posted: a control message behind it has come.
TEST_P(WireContract, AMessageMayComeBeforeItsReceive) {
    for (const size_t bytes : {1, 100, 17408, 300'000}) {
        const auto message = random_bytes(bytes, test_seed());
        const std::vector<uint8_t> announcement(16, 0x11);
        std::vector<uint8_t> control(64), data(bytes + 5);
        WireRequest* send = start_send(*pair_.sender, Lane::kData, message.data(), bytes);
        WireRequest* announce =
            start_send(*pair_.sender, Lane::kControl, announcement.data(), announcement.size());
        WireRequest* announced =
            start_receive(*pair_.receiver, Lane::kControl, control.data(), control.size());
        ASSERT_TRUE(send != nullptr && announce != nullptr && announced != nullptr);
        finish_both(pair_, announce, announced);
        WireRequest* receive =
            start_receive(*pair_.receiver, Lane::kData, data.data(), data.size());
        ASSERT_NE(receive, nullptr);
        EXPECT_EQ(finish_both(pair_, send, receive).bytes, bytes);
        EXPECT_TRUE(std::equal(message.begin(), message.end(), data.begin()));
    }
}

TEST_P(WireContract, ALaneKeepsTheOrderAndDoesNotWaitForTheOther) {
    constexpr int kMessages = 24;
    std::vector<std::vector<uint8_t>> control(kMessages), data(kMessages);
    std::vector<WireRequest*> control_in, data_in;
    std::deque<WireRequest*> out;
    for (int i = 0; i < kMessages; ++i) {
        control[i].resize(64);
        data[i].resize(8192);
        control_in.push_back(
            start_receive(*pair_.receiver, Lane::kControl, control[i].data(), control[i].size()));
        data_in.push_back(
            start_receive(*pair_.receiver, Lane::kData, data[i].data(), data[i].size()));
    }
    // Only control at first: it arrives though no data does.
    std::vector<std::vector<uint8_t>> sent;
    for (int i = 0; i < kMessages; ++i) {
        sent.emplace_back(static_cast<size_t>(i + 1), static_cast<uint8_t>(i));
        out.push_back(start_send(*pair_.sender, Lane::kControl, sent[i].data(), sent[i].size()));
    }
    const auto pump = [&] {  // a sender may need its caller to make progress
        bool done = false;
        if (!out.empty() && pair_.sender->test(out.front(), &done, nullptr).ok() && done) {
            out.pop_front();
        }
    };
    for (int i = kMessages - 1; i >= 0; --i) {  // out of order
        const Finished over = finish(*pair_.receiver, control_in[i], pump);
        ASSERT_TRUE(over.in_time && over.status.ok()) << over.status.message();
        EXPECT_EQ(over.bytes, sent[i].size());
        EXPECT_EQ(control[i][0], i);
    }
    std::vector<std::vector<uint8_t>> payloads;
    for (int i = 0; i < kMessages; ++i) {
        payloads.push_back(random_bytes(8192 - static_cast<size_t>(i), test_seed() + i));
        out.push_back(
            start_send(*pair_.sender, Lane::kData, payloads[i].data(), payloads[i].size()));
    }
    for (int i = kMessages - 1; i >= 0; --i) {
        const Finished over = finish(*pair_.receiver, data_in[i], pump);
        ASSERT_TRUE(over.in_time && over.status.ok()) << over.status.message();
        data[i].resize(over.bytes);
        EXPECT_EQ(data[i], payloads[i]);
    }
    for (WireRequest* request : out) {
        const Finished over = finish(*pair_.sender, request);
        EXPECT_TRUE(over.in_time && over.status.ok()) << over.status.message();
    }
}

TEST_P(WireContract, AControlSenderDoesNotRunAwayFromASilentReceiver) {
    std::vector<uint8_t> message(kControlBytes, 0x5a);
    std::vector<std::vector<uint8_t>> buffers(kControlSlots, std::vector<uint8_t>(kControlBytes));
    std::deque<WireRequest*> posted;
    for (auto& buffer : buffers) {
        posted.push_back(
            start_receive(*pair_.receiver, Lane::kControl, buffer.data(), buffer.size()));
    }
    // The receiver does not look; what the sender gets done is bounded all the same.
    int sent = 0;
    std::deque<WireRequest*> out;
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
    while (std::chrono::steady_clock::now() < end) {
        WireRequest* request = nullptr;
        const Status status =
            pair_.sender->send(Lane::kControl, message.data(), message.size(), nullptr, &request);
        ASSERT_TRUE(status.ok()) << status.message();
        if (request != nullptr) {
            out.push_back(request);
            ++sent;
        }
        bool done = false;
        if (!out.empty()) {
            ASSERT_TRUE(pair_.sender->test(out.front(), &done, nullptr).ok());
        }
        if (done) {
            out.pop_front();
        }
        ASSERT_LE(sent, kMostAhead);
    }
    EXPECT_GE(sent, kControlSlots);
    // Nothing is lost.
    std::vector<uint8_t> late(kControlBytes);
    for (int i = 0; i < sent; ++i) {
        if (posted.empty()) {
            posted.push_back(
                start_receive(*pair_.receiver, Lane::kControl, late.data(), late.size()));
        }
        bool received = false;
        ASSERT_TRUE(poll_until([&] {
            bool done = false;
            if (!out.empty() && pair_.sender->test(out.front(), &done, nullptr).ok() && done) {
                out.pop_front();
            }
            EXPECT_TRUE(pair_.receiver->test(posted.front(), &received, nullptr).ok());
            return received || HasFailure();
        })) << "message "
            << i << " of " << sent;
        posted.pop_front();
    }
}

// With the messages that follow it at the latest; networks without a way back tell nothing.
TEST_P(WireContract, TheReceiversWordReachesItsSenderOrNothingDoes) {
    EXPECT_EQ(pair_.sender->word().raw_bytes_per_s, 0u);
    pair_.receiver->tell({111, 222});
    pair_.receiver->tell({123, 456'000'000'000});
    const auto message = random_bytes(100'000, test_seed());
    for (int i = 0; i < 20; ++i) {
        ASSERT_EQ(pass(Lane::kData, message, message.size()), message);
    }
    Word word;
    if (GetParam().name.rfind("wrapped", 0) != 0) {
        EXPECT_TRUE(poll_until([&] {
            word = pair_.sender->word();
            return word.raw_bytes_per_s == 123;
        }));
        EXPECT_EQ(word.coded_bytes_per_s, 456'000'000'000u);
    } else {
        word = pair_.sender->word();
        EXPECT_EQ(word.raw_bytes_per_s + word.coded_bytes_per_s, 0u);
    }
}

TEST_P(WireContract, AListenerTakesMoreConnectionsEachWithItsThread) {
    constexpr int kConnections = 8;
    std::vector<std::unique_ptr<SendWire>> senders(kConnections);
    std::vector<std::unique_ptr<ReceiveWire>> receivers(kConnections);
    for (int i = 0; i < kConnections; ++i) {
        const Status status = pair_.connect(&senders[i], &receivers[i]);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_FALSE(senders[i]->peer().empty());
    }
    pair_.listener.reset();  // connections outlive it
    std::vector<std::thread> threads;
    for (int i = 0; i < kConnections; ++i) {
        threads.emplace_back([&, i] {
            for (int round = 0; round < 20; ++round) {
                const std::vector<uint8_t> message(10'000, static_cast<uint8_t>(i * 20 + round));
                WireRequest* send =
                    start_send(*senders[i], Lane::kData, message.data(), message.size());
                const Finished over = finish(*senders[i], send);
                EXPECT_TRUE(over.in_time && over.status.ok()) << over.status.message();
            }
        });
        threads.emplace_back([&, i] {
            std::vector<uint8_t> buffer(10'000);
            for (int round = 0; round < 20; ++round) {
                WireRequest* receive =
                    start_receive(*receivers[i], Lane::kData, buffer.data(), buffer.size());
                const Finished over = finish(*receivers[i], receive);
                EXPECT_TRUE(over.in_time && over.status.ok()) << over.status.message();
                EXPECT_EQ(buffer[9999], static_cast<uint8_t>(i * 20 + round));
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

TEST_P(WireContract, RegisteredMemoryCarriesMessages) {
    std::vector<uint8_t> out = random_bytes(200'000, test_seed());
    std::vector<uint8_t> in(out.size());
    WireMemory *out_memory = nullptr, *in_memory = nullptr;
    ASSERT_TRUE(pair_.sender->register_memory(out.data(), out.size(), &out_memory).ok());
    ASSERT_TRUE(pair_.receiver->register_memory(in.data(), in.size(), &in_memory).ok());
    WireRequest* receive =
        start_receive(*pair_.receiver, Lane::kData, in.data() + 10, in.size() - 10, in_memory);
    WireRequest* send =
        start_send(*pair_.sender, Lane::kData, out.data() + 10, out.size() - 10, out_memory);
    ASSERT_TRUE(send != nullptr && receive != nullptr);
    finish_both(pair_, send, receive);
    EXPECT_TRUE(std::equal(out.begin() + 10, out.end(), in.begin() + 10));
    if (out_memory != nullptr) {
        EXPECT_TRUE(pair_.sender->deregister_memory(out_memory).ok());
    }
    if (in_memory != nullptr) {
        EXPECT_TRUE(pair_.receiver->deregister_memory(in_memory).ok());
    }
}

INSTANTIATE_TEST_SUITE_P(Wires,
                         WireContract,
                         testing::ValuesIn(wire_makers()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace slimwire::net
