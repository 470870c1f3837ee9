// The engine over a network inside this process: every message arrives whole and in order whatever
// the network, the data and the settings.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "plugin/net/engine/frame.h"
#include "tests/plugin/net/exchange.h"
#include "tests/plugin/net/messages.h"
#include "tests/support/seed.h"

namespace slimwire::net {
namespace {

// The settings and networks in which what must hold in all of them is tested.
struct Situation {
    const char* name;
    void (*change)(EngineSettings&, MemoryWireOptions&);
};

const Situation kSituations[] = {
    {"plain", [](EngineSettings&, MemoryWireOptions&) {}},
    {"codec_off", [](EngineSettings& s, MemoryWireOptions&) { s.codec = false; }},
    {"checksums", [](EngineSettings& s, MemoryWireOptions&) { s.checksum = true; }},
    {"no_codec_threads",
     [](EngineSettings& s, MemoryWireOptions&) {
         s.threads = 0;
         s.checksum = true;
     }},
    {"small_pieces",
     [](EngineSettings& s, MemoryWireOptions&) {
         s.piece_bytes = kLeastPieceBytes;
         s.min_bytes = 5000;
     }},
    {"slow_network", [](EngineSettings&, MemoryWireOptions& o) { o.delay_ns = 100'000; }},
    {"network_without_room",
     [](EngineSettings&, MemoryWireOptions& o) {
         o.refuse_send_every = 3;
         o.refuse_receive_every = 2;
     }},
    {"throttled",
     [](EngineSettings& s, MemoryWireOptions&) {
         s.rate_bytes_per_s = 2e9;
         s.latency_ns = 50'000;
     }},
    {"data_in_parts", [](EngineSettings&, MemoryWireOptions& o) { o.bytes_per_call = 10'000; }},
    {"eager_network", [](EngineSettings&, MemoryWireOptions& o) { o.eager_bytes = 1 << 16; }},
};

class NetEngine : public testing::TestWithParam<Situation> {
  protected:
    void SetUp() override {
        EngineSettings settings;
        MemoryWireOptions options;
        GetParam().change(settings, options);
        const Status opened = pair_.open(settings, options);
        ASSERT_TRUE(opened.ok()) << opened.message();
    }
    EnginePair pair_;
    std::mt19937 random_{test_seed()};
};

TEST_P(NetEngine, messages_of_all_sizes_and_kinds_arrive_as_they_were_sent) {
    std::vector<Message> messages;
    const size_t sizes[] = {0,     1,     100,    kInlineBytes, kInlineBytes + 1, 32768,
                            32769, 65536, 131072, 200'003,      1 << 20,          (1 << 20) + 2};
    for (int round = 0; round < 3; ++round) {
        for (const size_t size : sizes) {
            const size_t more = random_() % 3 == 0 ? random_() % 5000 : 0;
            switch (random_() % 5) {
                case 0:
                    messages.emplace_back(random_bytes(size, random_), more);
                    break;
                case 1:
                    messages.emplace_back(ll_message(size, 3, random_), more);
                    break;
                case 2:
                    messages.emplace_back(gaussian_bytes(DType::kFloat32, size, random_), more);
                    break;
                default:
                    messages.emplace_back(gaussian_bytes(DType::kBfloat16, size, random_), more);
            }
        }
    }
    for (size_t i = 0; i < messages.size(); i += 3) {
        messages[i].write_once = true;
    }
    const Status status = exchange(pair_, messages, kNetMaxRequests);
    ASSERT_TRUE(status.ok()) << status.message();
    for (size_t i = 0; i < messages.size(); ++i) {
        messages[i].check("message " + std::to_string(i) + ", seed " + std::to_string(test_seed()));
    }
    pair_.close();
}

TEST_P(NetEngine, grouped_receives_take_messages_by_tag_in_any_order) {
    std::vector<Message> messages;
    for (size_t i = 0; i < kGroup * 6; ++i) {
        messages.emplace_back(
            gaussian_bytes(DType::kBfloat16, i % 3 == 0 ? 500 : 70'000 + 100 * i, random_), i);
    }
    const Status status = exchange_groups(pair_, messages);
    ASSERT_TRUE(status.ok()) << status.message();
    for (size_t i = 0; i < messages.size(); ++i) {
        messages[i].check("message " + std::to_string(i));
    }
    pair_.close();
}

// A receive of one tag alone, while large messages of another stand before its message.
TEST_P(NetEngine, a_message_nobody_asks_for_does_not_hold_up_those_behind_it) {
    Message early(gaussian_bytes(DType::kBfloat16, 300'000, random_), 0);
    Message wanted(gaussian_bytes(DType::kBfloat16, 100'000, random_), 0);
    const auto run = [&](Message* receiving, int tag) {
        return poll_until([&] {
            if (receiving->receive == nullptr) {
                receiving->receive =
                    receive_one(pair_, receiving->target(), receiving->capacity, tag);
                return false;
            }
            for (Message* m : {&early, &wanted}) {
                if (!m->sent) {
                    EXPECT_TRUE(pair_.sender->test(m->send, &m->sent, nullptr).ok());
                }
            }
            EXPECT_TRUE(
                pair_.receiver->test(receiving->receive, &receiving->received, &receiving->size)
                    .ok());
            return receiving->received;
        });
    };
    for (auto [message, tag] : {std::pair(&early, 1), std::pair(&wanted, 2)}) {
        ASSERT_TRUE(poll_until([&, m = message, t = tag] {
            EXPECT_TRUE(
                pair_.sender->send(m->data.data(), m->data.size(), t, nullptr, &m->send).ok());
            return m->send != nullptr;
        }));
    }
    ASSERT_TRUE(run(&wanted, 2));
    wanted.check("wanted");
    ASSERT_TRUE(run(&early, 1));
    early.check("early");
    ASSERT_TRUE(poll_until([&] {
        for (Message* m : {&early, &wanted}) {
            if (!m->sent) {
                EXPECT_TRUE(pair_.sender->test(m->send, &m->sent, nullptr).ok());
            }
        }
        return early.sent && wanted.sent;
    }));
    pair_.close();
}

INSTANTIATE_TEST_SUITE_P(Situations,
                         NetEngine,
                         testing::ValuesIn(kSituations),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(NetEngineProbe, the_type_is_found_from_the_data) {
    EnginePair pair;
    EXPECT_TRUE(pair.open({}, {}).ok());
    std::mt19937 random(test_seed());
    std::vector<Message> messages;
    messages.emplace_back(gaussian_bytes(DType::kBfloat16, 1 << 20, random), 0);
    const Status status = exchange(pair, messages, 1);
    EXPECT_TRUE(status.ok()) << status.message();
    messages[0].check("message");
    EXPECT_LT(pair.network->counts.bytes[static_cast<int>(Lane::kData)], 750'000u);
    pair.close();
}

// NCCL deregisters and frees its buffers before it closes, also when it aborts with requests in
// flight.
TEST_P(NetEngine, deregistering_memory_in_use_ends_the_connection_and_touches_it_no_more) {
    for (int trial = 0; trial < 8; ++trial) {
        constexpr size_t kBytes = 400'000;
        std::vector<uint8_t> out = gaussian_bytes(DType::kBfloat16, 8 * kBytes, random_);
        std::vector<uint8_t> in(out.size()), other(100);
        Memory *out_memory = nullptr, *in_memory = nullptr, *other_memory = nullptr;
        ASSERT_TRUE(pair_.sender->register_memory(out.data(), out.size(), &out_memory).ok());
        ASSERT_TRUE(pair_.sender->register_memory(other.data(), 100, &other_memory).ok());
        ASSERT_TRUE(pair_.receiver->register_memory(in.data(), in.size(), &in_memory).ok());
        Request *send = nullptr, *receive = nullptr;
        for (size_t i = 0; i < 8; ++i) {
            ASSERT_TRUE(
                pair_.sender->send(out.data() + i * kBytes, kBytes, 5, out_memory, &send).ok());
            receive = receive_one(pair_, in.data() + i * kBytes, kBytes, 5, in_memory);
        }
        ASSERT_TRUE(send != nullptr && receive != nullptr);
        bool done = false;
        for (int i = 0; i < 3 * trial && !done; ++i) {
            ASSERT_TRUE(pair_.sender->test(send, &done, nullptr).ok());
        }
        // Memory that nothing uses may go at any time.
        ASSERT_TRUE(pair_.sender->deregister_memory(other_memory).ok());
        ASSERT_TRUE(done || pair_.sender->test(send, &done, nullptr).ok());
        ASSERT_TRUE(pair_.sender->deregister_memory(out_memory).ok());
        ASSERT_TRUE(pair_.receiver->deregister_memory(in_memory).ok());
        std::fill(out.begin(), out.end(), uint8_t{0x77});
        std::fill(in.begin(), in.end(), uint8_t{0x77});
        std::vector<uint8_t>().swap(out);  // a sanitizer sees who still reads it
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        ASSERT_TRUE(std::all_of(in.begin(), in.end(), [](uint8_t byte) { return byte == 0x77; }));
        EXPECT_EQ(pair_.receiver->test(receive, &done, nullptr).code(), Code::kRemoteError);
        ASSERT_TRUE(pair_.receiver->register_memory(in.data(), in.size(), &in_memory).ok());
        receive = receive_one(pair_, in.data(), in.size(), 5, in_memory);
        pair_.sender.reset();
        EXPECT_TRUE(poll_until([&] {
            return pair_.receiver->test(receive, &done, nullptr).code() == Code::kRemoteError;
        }));
        ASSERT_TRUE(pair_.receiver->deregister_memory(in_memory).ok());
        pair_.receiver.reset();
        ASSERT_TRUE(pair_.connect(&pair_.sender, &pair_.receiver).ok());
    }
    pair_.close();
}

// The messages for them still come, so that later receives get their own.
TEST_P(NetEngine, deregistering_memory_ends_the_receives_into_it_and_no_other) {
    constexpr size_t kBytes = 400'000;
    for (const size_t bytes : {size_t{100}, kBytes}) {
        std::vector<uint8_t> gone(bytes, uint8_t{0x77}), kept(kBytes);
        Memory *gone_memory = nullptr, *kept_memory = nullptr, *second_of_kept = nullptr;
        ASSERT_TRUE(pair_.receiver->register_memory(gone.data(), bytes, &gone_memory).ok());
        ASSERT_TRUE(pair_.receiver->register_memory(kept.data(), kBytes, &second_of_kept).ok());
        ASSERT_TRUE(pair_.receiver->register_memory(kept.data(), kBytes, &kept_memory).ok());
        Request* const ended = receive_one(pair_, gone.data(), bytes, 5, gone_memory);
        Request* const lasting = receive_one(pair_, kept.data(), kBytes, 5, kept_memory);
        ASSERT_TRUE(ended != nullptr && lasting != nullptr);
        ASSERT_TRUE(pair_.receiver->deregister_memory(gone_memory).ok());
        // NCCL registers whole pages, which buffers may share.
        ASSERT_TRUE(pair_.receiver->deregister_memory(second_of_kept).ok());
        bool done = false;
        EXPECT_EQ(pair_.receiver->test(ended, &done, nullptr).code(), Code::kRemoteError);
        const std::vector<uint8_t> sent[] = {gaussian_bytes(DType::kBfloat16, bytes, random_),
                                             gaussian_bytes(DType::kBfloat16, kBytes, random_)};
        Request* sends[2] = {};
        bool over[2] = {};
        EXPECT_TRUE(poll_until([&] {
            bool ok = done || pair_.receiver->test(lasting, &done, nullptr).ok();
            for (size_t i = 0; i < 2 && ok; ++i) {
                if (sends[i] == nullptr && (i == 0 || sends[0] != nullptr)) {
                    ok = pair_.sender->send(sent[i].data(), sent[i].size(), 5, nullptr, &sends[i])
                             .ok();
                }
                if (sends[i] != nullptr && !over[i]) {
                    ok = ok && pair_.sender->test(sends[i], &over[i], nullptr).ok();
                }
            }
            EXPECT_TRUE(ok);
            return !ok || (done && over[0] && over[1]);
        }));
        EXPECT_EQ(kept, sent[1]);
        EXPECT_EQ(gone, std::vector<uint8_t>(bytes, uint8_t{0x77}));
        ASSERT_TRUE(pair_.receiver->deregister_memory(kept_memory).ok());
    }
    pair_.close();
}

}  // namespace
}  // namespace slimwire::net
