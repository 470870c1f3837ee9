// The engine when something goes wrong: an error on both sides, no message that is not right, and
// bounded memory.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "plugin/net/engine/frame.h"
#include "tests/plugin/net/exchange.h"
#include "tests/plugin/net/messages.h"
#include "tests/support/has.h"
#include "tests/support/seed.h"

namespace slimwire::net {
namespace {

// The messages are the caller's: after an error the other end may still work on them until it is
// closed.
Status exchange_floats(EnginePair& pair, std::vector<Message>& messages, int count, size_t bytes) {
    std::mt19937 random(test_seed());
    for (int i = 0; i < count; ++i) {
        messages.emplace_back(gaussian_bytes(DType::kBfloat16, bytes, random), 0);
        messages.back().write_once = i % 3 == 0;
    }
    return exchange(pair, messages, 8);
}

TEST(NetEngineErrors, a_message_larger_than_its_receive_says_both_sizes) {
    for (const size_t bytes : {size_t{1000}, size_t{100'000}}) {
        EnginePair pair;
        ASSERT_TRUE(pair.open({}, {}).ok());
        std::mt19937 random(test_seed());
        std::vector<Message> messages;
        messages.emplace_back(gaussian_bytes(DType::kBfloat16, bytes, random), 0);
        messages[0].capacity -= 1;
        // The sender may be the first to hear that the connection ends.
        EXPECT_FALSE(exchange(pair, messages, 1).ok());
        bool done = false;
        const Status status = pair.receiver->test(messages[0].receive, &done, nullptr);
        EXPECT_EQ(status.code(), Code::kInvalidArgument);
        EXPECT_HAS(status.message(), std::to_string(bytes) + " bytes");
        EXPECT_HAS(status.message(), std::to_string(bytes - 1));
        pair.close();
    }
}

TEST(NetEngineErrors, a_peer_that_dies_at_any_message_is_an_error_on_both_sides) {
    for (int64_t at = 0; at < 24; ++at) {
        std::vector<Message> messages;
        EnginePair pair;
        MemoryWireOptions options;
        options.kill_at_message = at;
        ASSERT_TRUE(pair.open({}, options).ok());
        const Status status = exchange_floats(pair, messages, 20, 300'000);
        EXPECT_EQ(status.code(), Code::kRemoteError) << at << ": " << status.message();
        // Both ends say so from now on, to each request, of which they hand out as many as asked.
        char byte = 0;
        Memory* memory = nullptr;
        bool done = false;
        for (int asked = 0; asked < 3 * kNetMaxRequests; ++asked) {
            Request* request = nullptr;
            ASSERT_TRUE(pair.sender->register_memory(&byte, 1, &memory).ok());
            ASSERT_TRUE(pair.sender->deregister_memory(memory).ok());
            EXPECT_TRUE(poll_until([&] {
                return pair.sender->send(&byte, 1, 5, nullptr, &request).ok() &&
                       request != nullptr && !pair.sender->test(request, &done, nullptr).ok();
            }));
            EXPECT_TRUE(poll_until([&] {
                request = receive_one(pair, &byte, 1, 5);
                return request != nullptr && !pair.receiver->test(request, &done, nullptr).ok();
            }));
        }
        pair.close();
    }
}

TEST(NetEngineErrors, damaged_bytes_are_noticed_with_checksums_wherever_they_are) {
    int noticed = 0;
    for (int victim = 0; victim < 24; ++victim) {
        std::mt19937 random(test_seed() + static_cast<uint32_t>(victim));
        bool changed = false;
        MemoryWireOptions options;
        options.tamper = [&](Lane, uint64_t number, uint8_t* data, size_t* bytes) {
            if (number == static_cast<uint64_t>(victim / 2) && !changed && *bytes > 0) {
                changed = true;
                data[random() % *bytes] ^= static_cast<uint8_t>(1u << random() % 8);
            }
        };
        EngineSettings settings;
        settings.checksum = true;
        EnginePair pair;
        ASSERT_TRUE(pair.open(settings, options).ok());
        std::vector<Message> messages;
        for (int i = 0; i < 12; ++i) {
            messages.emplace_back(
                gaussian_bytes(DType::kBfloat16, i % 2 == 0 ? 1000 : 200'000, random), 0);
        }
        const Status status = exchange(pair, messages, 1);
        ASSERT_TRUE(changed);
        // Bits that no decoder looks at may change unseen: then everything is right all the same.
        if (status.ok()) {
            for (const Message& m : messages) {
                m.check("victim " + std::to_string(victim));
            }
        } else {
            ++noticed;
        }
        pair.close();
    }
    EXPECT_GE(noticed, 20);
}

// A frame that announces 256 MiB nobody asked for, in front of a message somebody did: the size
// alone costs no memory.
TEST(NetEngineErrors, a_frame_that_lies_about_its_size_costs_no_memory) {
    constexpr uint64_t kLie = uint64_t{256} << 20;
    MemoryWireOptions options;
    options.tamper = [](Lane lane, uint64_t number, uint8_t* data, size_t*) {
        if (lane == Lane::kControl && number == 0) {
            Frame frame;
            std::memcpy(&frame, data, sizeof frame);
            frame.bytes = kLie;
            write_frame(frame, data);
        }
    };
    const auto resident_kib = [] {
        std::ifstream status("/proc/self/status");
        std::string word;
        long kib = 0;
        while (status >> word && word != "VmRSS:") {
        }
        status >> kib;
        return kib;
    };
    EnginePair pair;
    EngineSettings settings;
    settings.codec = false;
    ASSERT_TRUE(pair.open(settings, options).ok());
    std::mt19937 random(test_seed());
    Message unasked(random_bytes(50'000, random), 0), asked(random_bytes(50'000, random), 0);
    int tag = 1;
    for (Message* m : {&unasked, &asked}) {
        ASSERT_TRUE(
            pair.sender->send(m->data.data(), m->data.size(), tag++, nullptr, &m->send).ok());
    }
    mallopt(M_PERTURB, 0);  // Meson's choice may write into all that malloc gives
    const long before = resident_kib();
    asked.receive = receive_one(pair, asked.target(), asked.capacity, 2);
    Status status;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (status.ok() && std::chrono::steady_clock::now() < end) {
        bool done = false;
        static_cast<void>(pair.sender->test(asked.send, &done, nullptr));
        status = pair.receiver->test(asked.receive, &done, nullptr);
    }
    // Too short a message came where much more was announced.
    EXPECT_FALSE(status.ok());
    // A sanitizer's shadow of what is reserved, not touched, is an eighth of it.
    EXPECT_LT(resident_kib() - before, static_cast<long>(kLie >> 10) / 2);
    pair.close();
}

// A sender that never stops and a receiver that asks for nothing: the sender is kept waiting.
TEST(NetEngineErrors, a_silent_receiver_bounds_its_sender) {
    EnginePair pair;
    ASSERT_TRUE(pair.open({}, {}).ok());
    std::vector<uint8_t> byte(1);
    std::vector<Request*> open;
    size_t sent = 0;
    for (int i = 0; i < 20'000; ++i) {
        Request* request = nullptr;
        ASSERT_TRUE(pair.sender->send(byte.data(), 1, 5, nullptr, &request).ok());
        if (request != nullptr) {
            open.push_back(request);
            ++sent;
        }
        std::erase_if(open, [&](Request* each) {
            bool done = false;
            EXPECT_TRUE(pair.sender->test(each, &done, nullptr).ok());
            return done;
        });
    }
    EXPECT_LE(sent, 2u * kNetMaxRequests + kControlSlots);
    pair.close();
}

}  // namespace
}  // namespace slimwire::net
