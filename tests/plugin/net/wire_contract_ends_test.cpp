// Every wire keeps the contract of plugin/net/wire.h where a side closes, gives up or does not fit.
#include "tests/plugin/net/wire_contract_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "tests/support/seed.h"

namespace slimwire::net {
namespace {

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
    ASSERT_TRUE(pair_.receiver->register_memory(buffer.data(), buffer.size(), &memory).ok());
    for (int i = 0; i < 4; ++i) {
        ASSERT_NE(start_receive(*pair_.receiver, Lane::kData, buffer.data(), buffer.size(), memory),
                  nullptr);
        ASSERT_NE(start_send(*pair_.sender, Lane::kData, message.data(), message.size()), nullptr);
    }
    const auto begin = std::chrono::steady_clock::now();
    pair_.receiver->drop();
    std::fill(buffer.begin(), buffer.end(), 0xcc);
    if (memory != nullptr) {
        EXPECT_TRUE(pair_.receiver->deregister_memory(memory).ok());
    }
    pair_.receiver.reset();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
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

}  // namespace
}  // namespace slimwire::net
