// A connection over the wire that is tested. The tests are one suite in several files.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tests/plugin/net/wire_contract.h"
#include "tests/plugin/net/wire_pair.h"

namespace slimwire::net {

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

inline std::vector<uint8_t> random_bytes(size_t count, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<uint8_t> bytes(count);
    for (uint8_t& byte : bytes) {
        byte = static_cast<uint8_t>(random());
    }
    return bytes;
}

}  // namespace slimwire::net
