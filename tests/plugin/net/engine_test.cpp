// The engine over a network inside this process: every message arrives whole and in order whatever
// the network, the data and the settings, and what goes wrong is an error on both sides.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <random>
#include <thread>

#include "plugin/net/abi/profiler.h"
#include "plugin/net/engine/frame.h"
#include "plugin/net/hints/hint.h"
#include "tests/plugin/net/engine_pair.h"
#include "tests/plugin/net/messages.h"
#include "tests/support/seed.h"

namespace slimwire::net {
namespace {

struct Situation {
    const char* name;
    std::function<void(EngineSettings&, MemoryWireOptions&)> change;
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
    {"eager_network", [](EngineSettings&, MemoryWireOptions& o) { o.eager_bytes = 1 << 16; }},
    {"slow_network", [](EngineSettings&, MemoryWireOptions& o) { o.delay_ns = 100'000; }},
    {"network_without_room",
     [](EngineSettings&, MemoryWireOptions& o) {
         o.refuse_send_every = 3;
         o.refuse_receive_every = 2;
     }},
    {"data_in_parts", [](EngineSettings&, MemoryWireOptions& o) { o.bytes_per_call = 10'000; }},
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
    const Status status = exchange(pair_, messages, kNetMaxRequests);
    ASSERT_TRUE(status.ok()) << status.message();
    for (size_t i = 0; i < messages.size(); ++i) {
        messages[i].check("message " + std::to_string(i) + ", seed " + std::to_string(test_seed()));
    }
    pair_.close();
}

TEST_P(NetEngine, grouped_receives_take_messages_by_tag_in_any_order) {
    constexpr int kTags = 4;
    constexpr int kRounds = 6;
    std::vector<Message> messages;  // by round and tag
    for (int i = 0; i < kTags * kRounds; ++i) {
        messages.emplace_back(
            gaussian_bytes(DType::kBfloat16,
                           i % 3 == 0 ? 500 : 70'000 + 100 * static_cast<size_t>(i), random_),
            static_cast<size_t>(i));
    }
    // All sends of one tag, then of the next: the first groups wait for messages far behind.
    std::vector<size_t> order;
    for (int tag = kTags - 1; tag >= 0; --tag) {
        for (int round = 0; round < kRounds; ++round) {
            order.push_back(static_cast<size_t>(round * kTags + tag));
        }
    }
    std::vector<Request*> groups(kRounds);
    std::vector<bool> group_done(kRounds);
    size_t sends = 0, sends_done = 0;
    int posted = 0, done_groups = 0;
    Status failure;
    ASSERT_TRUE(poll_until([&] {
        if (sends < order.size()) {
            Message& m = messages[order[sends]];
            failure = pair_.sender->send(m.data.data(), m.data.size(),
                                         static_cast<int>(order[sends]) % kTags, nullptr, nullptr,
                                         &m.send);
            sends += m.send != nullptr ? 1 : 0;
        }
        if (failure.ok() && posted < kRounds) {
            void* targets[kTags];
            size_t capacities[kTags];
            int tags[kTags];
            Memory* memories[kTags] = {};
            for (int tag = 0; tag < kTags; ++tag) {
                Message& m = messages[static_cast<size_t>(posted * kTags + tag)];
                targets[tag] = m.target();
                capacities[tag] = m.capacity;
                tags[tag] = tag;
            }
            failure = pair_.receiver->receive(kTags, targets, capacities, tags, memories, false,
                                              &groups[static_cast<size_t>(posted)]);
            posted += groups[static_cast<size_t>(posted)] != nullptr ? 1 : 0;
        }
        for (Message& m : messages) {
            if (failure.ok() && m.send != nullptr && !m.sent) {
                failure = pair_.sender->test(m.send, &m.sent, nullptr);
                sends_done += m.sent ? 1 : 0;
            }
        }
        for (int g = 0; failure.ok() && g < posted; ++g) {
            const auto at = static_cast<size_t>(g);
            bool done = group_done[at];
            if (!done) {
                size_t sizes[kTags];
                failure = pair_.receiver->test(groups[at], &done, sizes);
                for (int tag = 0; done && tag < kTags; ++tag) {
                    messages[at * kTags + static_cast<size_t>(tag)].size = sizes[tag];
                }
                group_done[at] = done;
                done_groups += done ? 1 : 0;
            }
        }
        return !failure.ok() || (sends_done == messages.size() && done_groups == kRounds);
    })) << sends_done
        << " sends, " << done_groups << " groups";
    ASSERT_TRUE(failure.ok()) << failure.message();
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
        void* target = receiving->target();
        Memory* memory = nullptr;
        return poll_until([&] {
            if (receiving->receive == nullptr) {
                EXPECT_TRUE(pair_.receiver
                                ->receive(1, &target, &receiving->capacity, &tag, &memory, false,
                                          &receiving->receive)
                                .ok());
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
                pair_.sender->send(m->data.data(), m->data.size(), t, nullptr, nullptr, &m->send)
                    .ok());
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

TEST_P(NetEngine, closing_with_requests_in_flight_touches_no_buffer_afterwards) {
    for (int trial = 0; trial < 8; ++trial) {
        std::vector<Message> messages;
        for (int i = 0; i < 8; ++i) {
            messages.emplace_back(gaussian_bytes(DType::kBfloat16, 400'000, random_), 0);
        }
        for (Message& m : messages) {
            ASSERT_TRUE(
                pair_.sender->send(m.data.data(), m.data.size(), 5, nullptr, nullptr, &m.send)
                    .ok());
            void* target = m.target();
            const int tag = 5;
            Memory* memory = nullptr;
            ASSERT_TRUE(
                pair_.receiver->receive(1, &target, &m.capacity, &tag, &memory, false, &m.receive)
                    .ok());
        }
        bool sent = false, received = false;
        for (int i = 0; i < 3 * trial && !sent && !received; ++i) {
            ASSERT_TRUE(pair_.sender->test(messages[7].send, &sent, nullptr).ok());
            ASSERT_TRUE(pair_.receiver->test(messages[7].receive, &received, nullptr).ok());
        }
        if (trial % 2 == 0) {
            pair_.sender.reset();
            pair_.receiver.reset();
        } else {
            pair_.receiver.reset();
            pair_.sender.reset();
        }
        for (Message& m : messages) {
            std::fill(m.memory.begin(), m.memory.end(), uint8_t{0x77});
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        for (Message& m : messages) {
            ASSERT_TRUE(std::all_of(m.memory.begin(), m.memory.end(),
                                    [](uint8_t byte) { return byte == 0x77; }));
        }
        ASSERT_TRUE(pair_.connect(&pair_.sender, &pair_.receiver).ok());
    }
    pair_.close();
}

INSTANTIATE_TEST_SUITE_P(Situations,
                         NetEngine,
                         testing::ValuesIn(kSituations),
                         [](const auto& info) { return std::string(info.param.name); });

// --- Hints

Hint g_hint;
ncclResult_t answer_hint(void** event, int type, void*, int64_t id, void* data) {
    if (type == kNetEventStart && id == kHintPluginId) {
        static_cast<HintQuestion*>(data)->answer = g_hint;
        *event = data;
    }
    return ncclSuccess;
}

// Bytes on the data lane of one message of floats, sent with `hint`.
uint64_t data_bytes_with(const Hint& hint, DType type) {
    g_hint = hint;
    EnginePair pair;
    pair.profiler = answer_hint;
    EXPECT_TRUE(pair.open({}, {}).ok());
    std::mt19937 random(test_seed());
    std::vector<Message> messages;
    messages.emplace_back(gaussian_bytes(type, 1 << 20, random), 0);
    int phandle = 0;
    pair.phandle = &phandle;
    const Status status = exchange(pair, messages, 1);
    EXPECT_TRUE(status.ok()) << status.message();
    messages[0].check("message");
    const uint64_t bytes = pair.network->counts().bytes[static_cast<int>(Lane::kData)];
    pair.close();
    return bytes;
}

TEST(NetEngineHints, protocols_with_flags_go_raw_and_a_named_type_is_taken) {
    EXPECT_LT(data_bytes_with({}, DType::kBfloat16), 750'000u);
    EXPECT_EQ(data_bytes_with({std::nullopt, Protocol::kLl}, DType::kBfloat16), 1u << 20);
    EXPECT_EQ(data_bytes_with({std::nullopt, Protocol::kLl128}, DType::kBfloat16), 1u << 20);
    EXPECT_LT(data_bytes_with({DType::kBfloat16, Protocol::kSimple}, DType::kBfloat16), 750'000u);
    // Only the named type is tried: bf16 data taken for fp32 shrinks less.
    EXPECT_GT(data_bytes_with({DType::kFloat32, Protocol::kSimple}, DType::kBfloat16), 750'000u);
    // A type that the palette has no symbols of: the bytes are looked at.
    EXPECT_LT(data_bytes_with({DType::kInt32, Protocol::kSimple}, DType::kBfloat16), 750'000u);
}

// --- What goes wrong

// The messages are the caller's: after an error the other end may still work on them until it is
// closed.
Status exchange_floats(EnginePair& pair, std::vector<Message>& messages, int count, size_t bytes) {
    std::mt19937 random(test_seed());
    for (int i = 0; i < count; ++i) {
        messages.emplace_back(gaussian_bytes(DType::kBfloat16, bytes, random), 0);
    }
    return exchange(pair, messages, 8);
}

// NCCL deregisters and frees its buffers before it closes, also when it aborts with requests in
// flight.
TEST_P(NetEngine, deregistering_memory_in_use_ends_the_connection_and_touches_it_no_more) {
    for (int trial = 0; trial < 8; ++trial) {
        constexpr size_t kBytes = 400'000;
        std::vector<uint8_t> out = gaussian_bytes(DType::kBfloat16, 8 * kBytes, random_);
        std::vector<uint8_t> in(out.size()), other(100);
        Memory *out_memory = nullptr, *in_memory = nullptr, *other_memory = nullptr;
        ASSERT_TRUE(
            pair_.sender->register_memory(out.data(), out.size(), MemoryKind::kHost, &out_memory)
                .ok());
        ASSERT_TRUE(
            pair_.sender->register_memory(other.data(), 100, MemoryKind::kHost, &other_memory)
                .ok());
        ASSERT_TRUE(
            pair_.receiver->register_memory(in.data(), in.size(), MemoryKind::kHost, &in_memory)
                .ok());
        Request *send = nullptr, *receive = nullptr;
        for (size_t i = 0; i < 8; ++i) {
            ASSERT_TRUE(
                pair_.sender->send(out.data() + i * kBytes, kBytes, 5, out_memory, nullptr, &send)
                    .ok());
            void* target = in.data() + i * kBytes;
            const size_t capacity = kBytes;
            const int tag = 5;
            ASSERT_TRUE(
                pair_.receiver->receive(1, &target, &capacity, &tag, &in_memory, false, &receive)
                    .ok());
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
        EXPECT_EQ(
            pair_.receiver->register_memory(in.data(), in.size(), MemoryKind::kHost, &in_memory)
                .code(),
            Code::kRemoteError);
        pair_.sender.reset();
        pair_.receiver.reset();
        ASSERT_TRUE(pair_.connect(&pair_.sender, &pair_.receiver).ok());
    }
    pair_.close();
}

TEST(NetEngineErrors, a_message_larger_than_its_receive_says_both_sizes) {
    for (const size_t bytes : {size_t{1000}, size_t{100'000}}) {
        EnginePair pair;
        ASSERT_TRUE(pair.open({}, {}).ok());
        std::mt19937 random(test_seed());
        std::vector<Message> messages;
        messages.emplace_back(gaussian_bytes(DType::kBfloat16, bytes, random), 0);
        messages[0].capacity -= 1;
        const Status status = exchange(pair, messages, 1);
        EXPECT_EQ(status.code(), Code::kInvalidArgument);
        EXPECT_NE(status.message().find(std::to_string(bytes) + " bytes"), std::string::npos)
            << status.message();
        EXPECT_NE(status.message().find(std::to_string(bytes - 1)), std::string::npos);
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
        // Both ends say so from now on, to whatever is asked.
        Request* request = nullptr;
        char byte = 0;
        EXPECT_TRUE(poll_until(
            [&] { return !pair.sender->send(&byte, 1, 5, nullptr, nullptr, &request).ok(); }));
        void* target = &byte;
        const size_t capacity = 1;
        const int tag = 5;
        Memory* memory = nullptr;
        EXPECT_TRUE(poll_until([&] {
            return !pair.receiver->receive(1, &target, &capacity, &tag, &memory, false, &request)
                        .ok();
        }));
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

// Whatever a peer sends instead of frames: an error, no message and no memory to speak of.
TEST(NetEngineErrors, random_frames_end_the_connection_in_order) {
    std::mt19937 random(test_seed());
    int errors = 0;
    for (int trial = 0; trial < 100; ++trial) {
        MemoryWireOptions options;
        options.tamper = [&](Lane lane, uint64_t number, uint8_t* data, size_t* bytes) {
            if (lane == Lane::kControl && number == 2 && *bytes >= sizeof(Frame)) {
                // Every second one has a good check: what it says is then looked at.
                Frame frame;
                std::memcpy(&frame, data, sizeof frame);
                const auto fields = reinterpret_cast<uint8_t*>(&frame);
                for (int i = 0; i <= trial % 4; ++i) {
                    fields[random() % sizeof frame] = static_cast<uint8_t>(random());
                }
                if (trial % 2 == 0) {
                    write_frame(frame, data);
                } else {
                    std::memcpy(data, &frame, sizeof frame);
                }
                *bytes = trial % 7 == 0 ? random() % (*bytes + 1) : *bytes;
            }
        };
        EnginePair pair;
        ASSERT_TRUE(pair.open({}, options).ok());
        std::vector<Message> messages;
        for (int i = 0; i < 5; ++i) {
            messages.emplace_back(gaussian_bytes(DType::kBfloat16, 50'000, random), 100);
        }
        Status failure;
        // Ends by an error, by all messages, or because the damage announces what never comes.
        const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
        size_t next = 0;
        bool over = false;
        for (Message& m : messages) {
            ASSERT_TRUE(
                pair.sender->send(m.data.data(), m.data.size(), 5, nullptr, nullptr, &m.send).ok());
            void* target = m.target();
            const int tag = 5;
            Memory* memory = nullptr;
            failure =
                pair.receiver->receive(1, &target, &m.capacity, &tag, &memory, false, &m.receive);
            if (!failure.ok()) {
                break;
            }
        }
        while (failure.ok() && !over && std::chrono::steady_clock::now() < end) {
            for (Message& m : messages) {
                if (failure.ok() && !m.sent) {
                    failure = pair.sender->test(m.send, &m.sent, nullptr);
                }
            }
            Message& m = messages[next];
            failure = failure.ok() ? pair.receiver->test(m.receive, &m.received, &m.size) : failure;
            if (failure.ok() && m.received && ++next == messages.size()) {
                over = true;
            }
        }
        errors += failure.ok() ? 0 : 1;
        pair.close();
    }
    EXPECT_GT(errors, 70);
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
            pair.sender->send(m->data.data(), m->data.size(), tag++, nullptr, nullptr, &m->send)
                .ok());
    }
    const long before = resident_kib();
    void* target = asked.target();
    tag = 2;
    Memory* memory = nullptr;
    Status status =
        pair.receiver->receive(1, &target, &asked.capacity, &tag, &memory, false, &asked.receive);
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
        ASSERT_TRUE(pair.sender->send(byte.data(), 1, 5, nullptr, nullptr, &request).ok());
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
