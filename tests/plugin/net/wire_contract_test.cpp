// Every wire keeps the contract of plugin/net/wire.h.
#include "tests/plugin/net/wire_contract.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "tests/plugin/net/wire_pair.h"
#include "tests/support/seed.h"

namespace slimwire::net {
namespace {

class WireContract : public testing::TestWithParam<WireMaker> {
  protected:
    void SetUp() override {
        auto sending = GetParam().make();
        auto receiving = GetParam().make();
        if (GetParam().may_be_absent && sending.status().code() == Code::kNotFound) {
            GTEST_SKIP() << sending.status().message();
        }
        ASSERT_TRUE(sending.ok()) << sending.status().message();
        ASSERT_TRUE(receiving.ok()) << receiving.status().message();
        sending_ = std::move(sending).value();
        receiving_ = std::move(receiving).value();
        ASSERT_GE(sending_->devices(), 1);
        const Status status = pair_.open(*sending_, *receiving_);
        ASSERT_TRUE(status.ok()) << status.message();
    }

    // Sends one message and receives it; what arrived.
    std::vector<uint8_t> pass(Lane lane, const std::vector<uint8_t>& message, size_t capacity) {
        std::vector<uint8_t> buffer(capacity + 1, 0xee);
        WireRequest* receive = start_receive(*pair_.receiver, lane, buffer.data(), capacity);
        WireRequest* send = start_send(*pair_.sender, lane, message.data(), message.size());
        if (receive == nullptr || send == nullptr) {
            return {};
        }
        bool sent = false, received = false;
        size_t bytes = 0;
        EXPECT_TRUE(poll_until([&] {
            Status status;
            if (!sent) {
                status = pair_.sender->test(send, &sent, nullptr);
            }
            if (status.ok() && !received) {
                status = pair_.receiver->test(receive, &received, &bytes);
            }
            EXPECT_TRUE(status.ok()) << status.message();
            return !status.ok() || (sent && received);
        }));
        EXPECT_TRUE(std::all_of(buffer.begin() + static_cast<long>(message.size()), buffer.end(),
                                [](uint8_t b) { return b == 0xee; }))
            << "wrote behind the message";
        buffer.resize(std::min(bytes, capacity));
        return buffer;
    }

    std::unique_ptr<Wire> sending_, receiving_;
    WirePair pair_;
};

// 16 MiB, what sockets may hold back for a silent receiver.
constexpr int kMostAhead = 4096;

std::vector<uint8_t> random_bytes(size_t count, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<uint8_t> bytes(count);
    for (uint8_t& byte : bytes) {
        byte = static_cast<uint8_t>(random());
    }
    return bytes;
}

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
        bool told = false, heard = false;
        ASSERT_TRUE(poll_until([&] {
            if (!told) {
                EXPECT_TRUE(pair_.sender->test(announce, &told, nullptr).ok());
            }
            if (!heard) {
                EXPECT_TRUE(pair_.receiver->test(announced, &heard, nullptr).ok());
            }
            return told && heard;
        }));
        WireRequest* receive =
            start_receive(*pair_.receiver, Lane::kData, data.data(), data.size());
        ASSERT_NE(receive, nullptr);
        bool sent = false, received = false;
        size_t size = 0;
        ASSERT_TRUE(poll_until([&] {
            if (!sent) {
                EXPECT_TRUE(pair_.sender->test(send, &sent, nullptr).ok());
            }
            if (!received) {
                EXPECT_TRUE(pair_.receiver->test(receive, &received, &size).ok());
            }
            return sent && received;
        }));
        EXPECT_EQ(size, bytes);
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

TEST_P(WireContract, TheLastMessagesSurviveTheSendersClose) {
    std::vector<uint8_t> buffer(1 << 20, 0);
    std::vector<uint8_t> later(100);
    const auto message = random_bytes(buffer.size(), test_seed());
    WireRequest* receive =
        start_receive(*pair_.receiver, Lane::kData, buffer.data(), buffer.size());
    WireRequest* send = start_send(*pair_.sender, Lane::kData, message.data(), message.size());
    bool sent = false, received = false;
    size_t bytes = 0;
    ASSERT_TRUE(poll_until([&] {  // the receiver works only as long as the sender is not done
        EXPECT_TRUE(pair_.sender->test(send, &sent, nullptr).ok());
        if (!sent && !received) {
            EXPECT_TRUE(pair_.receiver->test(receive, &received, &bytes).ok());
        }
        return sent || HasFailure();
    }));
    pair_.sender.reset();
    if (!received) {
        const Finished over = finish(*pair_.receiver, receive);
        ASSERT_TRUE(over.in_time && over.status.ok()) << over.status.message();
        bytes = over.bytes;
    }
    EXPECT_EQ(bytes, message.size());
    EXPECT_EQ(buffer, message);
    // What comes no more is an error, not a wait for ever.
    WireRequest* request = nullptr;
    Status status;
    ASSERT_TRUE(poll_until([&] {
        bool done = false;
        status = request == nullptr ? pair_.receiver->receive(Lane::kData, later.data(),
                                                              later.size(), nullptr, &request)
                                    : pair_.receiver->test(request, &done, nullptr);
        return !status.ok();
    }));
    EXPECT_EQ(status.code(), Code::kRemoteError) << status.message();
    EXPECT_FALSE(status.message().empty());
}

TEST_P(WireContract, ALaneThatHasEndedLeavesTheOtherItsMessages) {
    std::vector<uint8_t> control(64), data(20'000);
    const auto message = random_bytes(data.size(), test_seed());
    WireRequest* waiting =
        start_receive(*pair_.receiver, Lane::kControl, control.data(), control.size());
    WireRequest* send = start_send(*pair_.sender, Lane::kData, message.data(), message.size());
    ASSERT_NE(send, nullptr);
    bool sent = false;
    const auto look = [&] {
        EXPECT_TRUE(pair_.sender->test(send, &sent, nullptr).ok());
        return sent;
    };
    if (!GetParam().sends_ahead) {  // then a close leaves nothing behind that could be received
        const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
        while (std::chrono::steady_clock::now() < end) {
            ASSERT_FALSE(look());
        }
        return;
    }
    ASSERT_TRUE(poll_until(look));
    pair_.sender.reset();
    Status status;
    ASSERT_TRUE(poll_until([&] {
        bool done = false;
        status = pair_.receiver->test(waiting, &done, nullptr);
        return !status.ok() || done;
    }));
    EXPECT_EQ(status.code(), Code::kRemoteError);
    WireRequest* receive = start_receive(*pair_.receiver, Lane::kData, data.data(), data.size());
    ASSERT_NE(receive, nullptr);
    const Finished over = finish(*pair_.receiver, receive);
    EXPECT_TRUE(over.in_time && over.status.ok()) << over.status.message();
    EXPECT_EQ(data, message);
}

TEST_P(WireContract, ASenderLearnsThatItsReceiverHasClosed) {
    pair_.receiver.reset();
    const std::vector<uint8_t> message(1 << 20, 1);
    WireRequest* request = nullptr;
    Status status;
    ASSERT_TRUE(poll_until([&] {
        bool done = false;
        status = request == nullptr ? pair_.sender->send(Lane::kData, message.data(),
                                                         message.size(), nullptr, &request)
                                    : pair_.sender->test(request, &done, nullptr);
        request = done ? nullptr : request;
        return !status.ok();
    }));
    EXPECT_EQ(status.code(), Code::kRemoteError) << status.message();
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
    if (GetParam().name.rfind("chain", 0) != 0) {
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

TEST_P(WireContract, AReceiverMayCloseBeforeTheSenderKnowsOfTheConnection) {
    for (int round = 0; round < 5; ++round) {
        std::unique_ptr<WireConnecting> attempt;
        std::unique_ptr<SendWire> sender;
        std::unique_ptr<ReceiveWire> receiver;
        Status status;
        ASSERT_TRUE(poll_until([&] {
            status = pair_.sender_context->connect(0, pair_.handle, &attempt, &sender);
            if (!status.ok() || sender != nullptr) {
                return true;
            }
            const Status accepted = pair_.listener->accept(&receiver);
            EXPECT_TRUE(accepted.ok()) << accepted.message();
            return receiver != nullptr;
        }));
        receiver.reset();
        // A connection that then fails, or none.
        ASSERT_TRUE(poll_until([&] {
            if (status.ok() && sender == nullptr) {
                status = pair_.sender_context->connect(0, pair_.handle, &attempt, &sender);
            }
            return !status.ok() || sender != nullptr;
        }));
        if (!status.ok()) {
            EXPECT_EQ(status.code(), Code::kRemoteError) << status.message();
        }
    }
}

TEST_P(WireContract, AMessageLargerThanItsReceiveIsAnError) {
    std::vector<uint8_t> buffer(1000, 0xee);
    const std::vector<uint8_t> message(100'000, 1);
    WireRequest* receive = start_receive(*pair_.receiver, Lane::kData, buffer.data(), 900);
    WireRequest* send = start_send(*pair_.sender, Lane::kData, message.data(), message.size());
    Status status;
    bool sent = false;
    ASSERT_TRUE(poll_until([&] {
        bool received = false;
        if (!sent) {
            sent = !pair_.sender->test(send, &sent, nullptr).ok() || sent;
        }
        status = pair_.receiver->test(receive, &received, nullptr);
        EXPECT_FALSE(received);
        return !status.ok() || received;
    }));
    if (GetParam().names_truncation || status.code() != Code::kRemoteError) {
        EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.message();
    }
    EXPECT_TRUE(
        std::all_of(buffer.begin() + 900, buffer.end(), [](uint8_t b) { return b == 0xee; }));
}

TEST_P(WireContract, DropWithOperationsInFlightLeavesTheBuffersAlone) {
    std::vector<uint8_t> message(4 << 20, 7);
    std::vector<uint8_t> buffer(message.size(), 0);
    WireMemory* memory = nullptr;
    ASSERT_TRUE(
        pair_.receiver->register_memory(buffer.data(), buffer.size(), MemoryKind::kHost, &memory)
            .ok());
    for (int i = 0; i < 4; ++i) {
        WireRequest* request = nullptr;
        ASSERT_TRUE(poll_until([&] {
            EXPECT_TRUE(
                pair_.receiver->receive(Lane::kData, buffer.data(), buffer.size(), memory, &request)
                    .ok());
            return request != nullptr || HasFailure();
        }));
        ASSERT_NE(start_send(*pair_.sender, Lane::kData, message.data(), message.size()), nullptr);
    }
    const auto begin = std::chrono::steady_clock::now();
    pair_.receiver->drop();
    std::fill(buffer.begin(), buffer.end(), 0xcc);
    if (memory != nullptr) {
        EXPECT_TRUE(pair_.receiver->deregister_memory(memory).ok());
    }
    pair_.receiver.reset();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
    WirePair other;
    ASSERT_TRUE(other.open(*sending_, *receiving_).ok());
    char byte = 0;
    WireRequest* idle = start_receive(*other.receiver, Lane::kData, &byte, 1);
    for (int i = 0; i < 1000; ++i) {
        bool done = false;
        ASSERT_TRUE(other.receiver->test(idle, &done, nullptr).ok());
    }
    EXPECT_TRUE(std::all_of(buffer.begin(), buffer.end(), [](uint8_t b) { return b == 0xcc; }));
    pair_.sender->drop();
    std::fill(message.begin(), message.end(), 0);
    pair_.sender.reset();
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
    ASSERT_TRUE(
        pair_.sender->register_memory(out.data(), out.size(), MemoryKind::kHost, &out_memory).ok());
    ASSERT_TRUE(
        pair_.receiver->register_memory(in.data(), in.size(), MemoryKind::kHost, &in_memory).ok());
    WireRequest *send = nullptr, *receive = nullptr;
    ASSERT_TRUE(poll_until([&] {
        return pair_.receiver
                   ->receive(Lane::kData, in.data() + 10, in.size() - 10, in_memory, &receive)
                   .ok() &&
               receive != nullptr;
    }));
    ASSERT_TRUE(poll_until([&] {
        return pair_.sender->send(Lane::kData, out.data() + 10, out.size() - 10, out_memory, &send)
                   .ok() &&
               send != nullptr;
    }));
    bool sent = false, received = false;
    ASSERT_TRUE(poll_until([&] {
        EXPECT_TRUE(sent || pair_.sender->test(send, &sent, nullptr).ok());
        EXPECT_TRUE(received || pair_.receiver->test(receive, &received, nullptr).ok());
        return (sent && received) || HasFailure();
    }));
    EXPECT_TRUE(std::equal(out.begin() + 10, out.end(), in.begin() + 10));
    if (out_memory != nullptr) {
        EXPECT_TRUE(pair_.sender->deregister_memory(out_memory).ok());
    }
    if (in_memory != nullptr) {
        EXPECT_TRUE(pair_.receiver->deregister_memory(in_memory).ok());
    }
}

TEST_P(WireContract, AnAttemptCanBeGivenUp) {
    for (int i = 0; i < 5; ++i) {
        std::unique_ptr<WireConnecting> attempt;
        std::unique_ptr<SendWire> wire;
        EXPECT_TRUE(pair_.sender_context->connect(0, pair_.handle, &attempt, &wire).ok());
        std::unique_ptr<ReceiveWire> taken;
        EXPECT_TRUE(pair_.listener->accept(&taken).ok());
    }
    // The connection that exists goes on.
    const std::vector<uint8_t> message(1000, 0x42);
    EXPECT_EQ(pass(Lane::kData, message, 1000), message);
}

INSTANTIATE_TEST_SUITE_P(Wires,
                         WireContract,
                         testing::ValuesIn(wire_makers()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace slimwire::net
