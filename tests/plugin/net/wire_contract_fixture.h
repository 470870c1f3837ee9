// The contract of plugin/net/wire.h as tests that walk all wires, one suite in several files: a
// wire gets its maker into the list of wire_makers.cpp and is covered.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "plugin/net/throttle.h"
#include "tests/plugin/net/wire_pair.h"

namespace slimwire::net {

struct WireMaker {
    std::string name;  // letters and digits: becomes part of the tests' names
    // A wire that can talk to others of the same maker.
    std::function<Result<std::unique_ptr<Wire>>()> make;
    // Whether a message of a few pages leaves its sender before it is received.
    bool sends_ahead = true;
    // Whether it can tell a message that is too long from a peer that is gone.
    bool names_truncation = true;
    std::shared_ptr<Throttle> throttle{};  // in front of the connection that is tested
};

const std::vector<WireMaker>& wire_makers();

inline void PrintTo(const WireMaker& maker, std::ostream* out) {
    *out << maker.name;
}

// A connection over the wire that is tested.
class WireContract : public testing::TestWithParam<WireMaker> {
  protected:
    void SetUp() override {
        auto sending = GetParam().make();
        auto receiving = GetParam().make();
        ASSERT_TRUE(sending.ok()) << sending.status().message();
        ASSERT_TRUE(receiving.ok()) << receiving.status().message();
        sending_ = std::move(sending).value();
        receiving_ = std::move(receiving).value();
        ASSERT_GE(sending_->devices(), 1);
        const Status status = pair_.open(*sending_, *receiving_);
        ASSERT_TRUE(status.ok()) << status.message();
        pair_.sender = throttled(std::move(pair_.sender), GetParam().throttle);
        pair_.receiver = throttled(std::move(pair_.receiver), GetParam().throttle);
    }

    // Sends one message and receives it; what arrived.
    std::vector<uint8_t> pass(Lane lane, const std::vector<uint8_t>& message, size_t capacity) {
        std::vector<uint8_t> buffer(capacity + 1, 0xee);
        WireRequest* receive = start_receive(*pair_.receiver, lane, buffer.data(), capacity);
        WireRequest* send = start_send(*pair_.sender, lane, message.data(), message.size());
        if (receive == nullptr || send == nullptr) {
            return {};
        }
        const size_t bytes = finish_both(pair_, send, receive).bytes;
        EXPECT_TRUE(std::all_of(buffer.begin() + static_cast<long>(message.size()), buffer.end(),
                                [](uint8_t b) { return b == 0xee; }))
            << "wrote behind the message";
        buffer.resize(std::min(bytes, capacity));
        return buffer;
    }

    std::unique_ptr<Wire> sending_, receiving_;
    WirePair pair_;
};

inline std::vector<uint8_t> random_bytes(size_t count, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<uint8_t> bytes(count);
    for (uint8_t& byte : bytes) {
        byte = static_cast<uint8_t>(random());
    }
    return bytes;
}

}  // namespace slimwire::net
