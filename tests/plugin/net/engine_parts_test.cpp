// The parts of the engine that need no wire: frames, pieces, the look at a message, the choice
// between raw and coded, codec threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "plugin/net/engine/benefit.h"
#include "plugin/net/engine/codec_pool.h"
#include "plugin/net/engine/element_probe.h"
#include "plugin/net/engine/frame.h"
#include "tests/plugin/net/messages.h"
#include "tests/support/has.h"
#include "tests/support/seed.h"

namespace slimwire::net {
namespace {

Frame good_frame(FrameKind kind) {
    return {.magic = kFrameMagic,
            .version = kFrameVersion,
            .kind = kind,
            .flags = 0,
            .element = DType::kBfloat16,
            .sequence = 7,
            .bytes = 100,
            .tag = 3,
            .piece_bytes = kind == FrameKind::kCoded ? 8192u : 0u,
            .checksum = 0,
            .check = 0};
}

std::string refusal(const Frame& frame, size_t size) {
    std::vector<uint8_t> message(std::max(size, sizeof frame));
    write_frame(frame, message.data());
    const Result<Frame> read = read_frame(message.data(), size);
    return read.ok() ? "" : read.status().message();
}

TEST(NetFrame, what_a_sender_writes_is_read) {
    EXPECT_EQ(refusal(good_frame(FrameKind::kRaw), sizeof(Frame)), "");
    EXPECT_EQ(refusal(good_frame(FrameKind::kCoded), sizeof(Frame)), "");
    EXPECT_EQ(refusal(good_frame(FrameKind::kEnd), sizeof(Frame)), "");
    EXPECT_EQ(refusal(good_frame(FrameKind::kInline), sizeof(Frame) + 100), "");
}

TEST(NetFrame, every_field_that_cannot_be_is_named) {
    const auto damaged = [](auto change, size_t size = sizeof(Frame)) {
        Frame frame = good_frame(FrameKind::kCoded);
        change(frame);
        return refusal(frame, size);
    };
    EXPECT_NE(damaged([](Frame&) {}, 47).find("47 bytes"), std::string::npos);
    EXPECT_HAS(damaged([](Frame& f) { f.magic ^= 1; }), "magic");
    EXPECT_HAS(damaged([](Frame& f) { f.version = 9; }), "version 9");
    EXPECT_HAS(damaged([](Frame& f) { f.kind = FrameKind{0}; }), "kind 0");
    EXPECT_HAS(damaged([](Frame& f) { f.kind = FrameKind{5}; }), "kind 5");
    EXPECT_HAS(damaged([](Frame& f) { f.flags = 2; }), "bits");
    EXPECT_HAS(damaged([](Frame& f) { f.element = DType{77}; }), "77");
    EXPECT_HAS(damaged([](Frame& f) { f.piece_bytes = 0; }), "pieces of 0");
    EXPECT_HAS(damaged([](Frame& f) { f.piece_bytes = 8193; }), "8193");
    EXPECT_HAS(damaged([](Frame& f) { f.piece_bytes = 1u << 30; }), "pieces");
    EXPECT_HAS(damaged([](Frame& f) { f.kind = FrameKind::kRaw; }), "pieces of 8192");
    EXPECT_HAS(damaged([](Frame& f) { f.bytes = 0; }), "0 bytes");
    EXPECT_HAS(damaged([](Frame& f) { f.bytes = ~0ull; }), "bytes");
    EXPECT_NE(damaged([](Frame&) {}, sizeof(Frame) + 1).find("49 bytes"), std::string::npos);
    EXPECT_NE(damaged([](Frame& f) { f.kind = FrameKind::kInline; }, sizeof(Frame) + 99)
                  .find("100 bytes in 99"),
              std::string::npos);
}

TEST(NetFrame, no_changed_bit_is_believed) {
    std::vector<uint8_t> message(sizeof(Frame));
    write_frame(good_frame(FrameKind::kCoded), message.data());
    for (size_t bit = 0; bit < 8 * sizeof(Frame); ++bit) {
        message[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
        EXPECT_FALSE(read_frame(message.data(), message.size()).ok()) << "bit " << bit;
        message[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    }
    EXPECT_TRUE(read_frame(message.data(), message.size()).ok());
}

// --- Pieces

struct Aligned {
    explicit Aligned(size_t bytes) : memory(bytes + 64) {}
    uint8_t* data() {
        return memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
    }
    std::vector<uint8_t> memory;
};

TEST(NetPiece, comes_back_bit_for_bit_and_floats_shrink) {
    std::mt19937 random(test_seed());
    for (const DType type : {DType::kBfloat16, DType::kFloat16, DType::kFloat32, DType::kFloat64,
                             DType::kFloat8e4m3, DType::kUint8}) {
        for (const size_t bytes :
             {size_t{16}, size_t{4096}, size_t{8192 + 13}, size_t{131072}, size_t{131072 - 1}}) {
            for (const bool floats : {true, false}) {
                Aligned source(bytes), encoded(piece_capacity(bytes)), decoded(bytes + 1);
                const std::vector<uint8_t> data =
                    floats ? gaussian_bytes(type, bytes, random) : random_bytes(bytes, random);
                std::memcpy(source.data(), data.data(), bytes);
                const size_t size = encode_piece(type, source.data(), bytes, encoded.data());
                SCOPED_TRACE(std::string(dtype_name(type)) + " " + std::to_string(bytes) +
                             (floats ? " floats" : " random"));
                ASSERT_LE(size, bytes);
                if (!floats && type != DType::kFloat8e4m3) {
                    EXPECT_EQ(size, bytes);
                }
                if (floats && bytes >= 8192 && type == DType::kBfloat16) {
                    EXPECT_LT(size, bytes * 3 / 4);
                }
                const uint8_t* const sent = size == bytes ? source.data() : encoded.data();
                for (const size_t shift : {size_t{0}, size_t{1}}) {
                    for (const bool once : {false, true}) {
                        std::memset(decoded.data(), 0xA5, bytes + 1);
                        const Status status =
                            decode_piece(type, sent, size, decoded.data() + shift, bytes, once);
                        ASSERT_TRUE(status.ok()) << status.message();
                        ASSERT_EQ(std::memcmp(decoded.data() + shift, data.data(), bytes), 0);
                    }
                }
            }
        }
    }
}

// --- The look at a message

TEST(NetProbe, finds_the_element_type_that_shrinks_most) {
    std::mt19937 random(test_seed());
    for (const DType type : {DType::kBfloat16, DType::kFloat16, DType::kFloat32, DType::kFloat64}) {
        const std::vector<uint8_t> data = gaussian_bytes(type, 1 << 20, random);
        const auto guess = guess_element(data.data(), data.size());
        ASSERT_TRUE(guess.has_value()) << dtype_name(type);
        EXPECT_EQ(guess->element, type)
            << dtype_name(type) << " taken for " << dtype_name(guess->element);
        Aligned source(1 << 17), encoded(piece_capacity(1 << 17));
        std::memcpy(source.data(), data.data(), 1 << 17);
        const double ratio =
            static_cast<double>(encode_piece(type, source.data(), 1 << 17, encoded.data())) /
            (1 << 17);
        EXPECT_NEAR(guess->ratio, ratio, 0.03) << dtype_name(type);
    }
    const std::vector<uint8_t> noise = random_bytes(1 << 20, random);
    EXPECT_FALSE(guess_element(noise.data(), noise.size()).has_value());
    const std::vector<uint8_t> zeros(1 << 16);
    EXPECT_TRUE(guess_element(zeros.data(), zeros.size()).has_value());
}

TEST(NetProbe, flags_between_data_are_seen_and_data_is_not_taken_for_them) {
    std::mt19937 random(test_seed());
    for (const uint32_t flag : {1u, 77u, 0x80000000u}) {
        for (const size_t bytes : {size_t{512}, size_t{16384}, size_t{1} << 19}) {
            const std::vector<uint8_t> ll = ll_message(bytes, flag, random);
            EXPECT_TRUE(carries_flags(ll.data(), ll.size())) << flag << " " << bytes;
            const std::vector<uint8_t> ll128 = ll128_message(bytes, flag, random);
            EXPECT_TRUE(carries_flags(ll128.data(), ll128.size())) << flag << " " << bytes;
        }
    }
    for (const DType type : {DType::kBfloat16, DType::kFloat32, DType::kFloat64}) {
        const std::vector<uint8_t> data = gaussian_bytes(type, 1 << 18, random);
        EXPECT_FALSE(carries_flags(data.data(), data.size()));
    }
    const std::vector<uint8_t> zeros(1 << 16), ones(1 << 16, 1);
    EXPECT_FALSE(carries_flags(zeros.data(), zeros.size()));
    EXPECT_FALSE(carries_flags(ones.data(), ones.size()));
    EXPECT_FALSE(carries_flags(ones.data(), 8));
}

// --- Raw or coded

// Sends `count` messages of 1 MiB, each by send(way); how many were coded.
template <class Send>
int coded_of(Benefit& benefit, int count, Send&& send) {
    int coded = 0;
    for (int i = 0; i < count; ++i) {
        const Way way = benefit.choose();
        send(way);
        coded += way == Way::kCoded ? 1 : 0;
    }
    return coded;
}
constexpr size_t kMessage = 1 << 20;

TEST(NetPace, settles_on_what_is_faster_and_notices_changes) {
    Benefit benefit;
    uint64_t clock = 1;
    const auto coded = [&](int count, double wire_gbps) {
        return coded_of(benefit, count, [&](Way way) {
            const double wire_ns = kMessage / wire_gbps;
            const double ns = way == Way::kRaw ? wire_ns : std::max(0.7 * wire_ns, kMessage / 8.0);
            const uint64_t begin = clock;
            clock += static_cast<uint64_t>(ns);
            benefit.finished(way, kMessage, begin, clock);
        });
    };
    EXPECT_GT(coded(200, 0.125), 170);    // 1 Gbit/s: compress
    EXPECT_LT(coded(6000, 12.5), 3000);   // the network became fast: notices
    EXPECT_LT(coded(2000, 12.5), 100);    // and stays raw
    EXPECT_GT(coded(6000, 0.125), 3000);  // slow again
}

// A network that holds much for its receiver makes compressed messages look fast to their sender.
TEST(NetPace, a_codec_that_hardly_keeps_up_is_not_used_however_fast_it_looks) {
    for (const double codec_gbps : {1.5, 8.0}) {
        Benefit benefit;
        uint64_t clock = 1;
        const int coded = coded_of(benefit, 1000, [&](Way way) {
            const uint64_t begin = clock;
            clock += way == Way::kRaw ? 1'000'000 : 600'000;
            if (way == Way::kCoded) {
                benefit.encoded(kMessage, static_cast<uint64_t>(kMessage / codec_gbps), 1);
            }
            benefit.finished(way, kMessage, begin, clock);
        });
        EXPECT_TRUE(codec_gbps > 2.1 ? coded > 900 : coded < 100) << coded;
    }
}

// The network holds 4 MiB that the receiver has yet to decode: raw messages that come behind them
// wait for that, while compressed ones are done for their sender at once.
TEST(NetPace, what_the_network_holds_is_not_held_against_the_next_way) {
    Benefit benefit;
    constexpr uint64_t kHeld = 4'000'000, kRawNs = 300'000, kCodedNs = 550'000;
    uint64_t sender = 1, receiver = 1;
    const int coded = coded_of(benefit, 2000, [&](Way way) {
        const uint64_t begin = sender;
        receiver = std::max(receiver, begin) + (way == Way::kRaw ? kRawNs : kCodedNs);
        sender =
            std::max(begin + 1, way == Way::kRaw ? receiver : receiver - std::min(receiver, kHeld));
        benefit.finished(way, kMessage, begin, sender);
    });
    EXPECT_LT(coded, 200);
}

// A network that swallows everything at once: only the receiver knows how fast it is.
TEST(NetPace, the_receivers_word_counts_more_than_what_the_sender_sees) {
    for (const bool slow : {true, false}) {
        Benefit benefit;
        uint64_t clock = 1;
        int sent = 0;
        const int coded = coded_of(benefit, 1000, [&](Way way) {
            benefit.encoded(kMessage, 150'000, 1);
            // The sender sees raw messages end four times as fast.
            benefit.finished(way, kMessage, clock, clock + (way == Way::kRaw ? 50'000 : 200'000));
            clock += 200'000;
            if (++sent > 21) {
                benefit.heard(slow ? 1.2e8 : 4e9, slow ? 1.7e8 : 2e9);
            }
        });
        EXPECT_TRUE(slow ? coded > 900 : coded < 100) << coded;
    }
}

TEST(NetMeter, idle_time_and_the_first_messages_after_a_change_do_not_count) {
    Meter meter;
    uint64_t clock = 0;
    const auto message = [&](Way way, uint64_t idle, uint64_t ns) {
        clock += idle;
        meter.finished(way, 1000, clock, clock + ns);
        clock += ns;
    };
    for (int i = 0; i < 40; ++i) {
        message(Way::kCoded, 50'000, 1000);
    }
    EXPECT_NEAR(meter.goodput(Way::kCoded), 1e9, 1e6);
    EXPECT_EQ(meter.goodput(Way::kRaw), 0);
    for (int i = 0; i < 6; ++i) {
        message(Way::kRaw, 0, 90'000);
    }
    EXPECT_EQ(meter.goodput(Way::kRaw), 0);
    message(Way::kRaw, 0, 2000);
    EXPECT_NEAR(meter.goodput(Way::kRaw), 5e8, 1e6);
    // Queued behind each other: each counts from the end of the one before.
    meter.finished(Way::kRaw, 1000, clock - 1500, clock + 2000);
    EXPECT_NEAR(meter.goodput(Way::kRaw), 5e8, 1e6);
}

// --- The copy for a reader that polls

TEST(NetCopyInOrder, any_length_and_alignment) {
    std::mt19937 random(test_seed());
    for (int trial = 0; trial < 120; ++trial) {
        const size_t bytes = trial % 5 == 0 ? random() % 40 : random() % 9000;
        const size_t from = random() % 32;
        const size_t to = trial % 3 == 0 ? from : random() % 32;
        std::vector<uint8_t> input(from + bytes);
        for (uint8_t& byte : input) {
            byte = static_cast<uint8_t>(random());
        }
        std::vector<uint8_t> expected(to + bytes + 32, 0xC3);
        std::vector<uint8_t> output = expected;
        std::copy_n(input.data() + from, bytes, expected.data() + to);
        copy_in_order(output.data() + to, input.data() + from, bytes);
        ASSERT_EQ(output, expected) << bytes << " bytes from " << from << " to " << to;
    }
}

// As NCCL's kernels read LL128: the flag at a line's end is polled, then the line is taken.
TEST(NetCopyInOrder, whoever_sees_the_flag_sees_the_line) {
    constexpr int64_t kLine = 128;
    constexpr int64_t kWords = kLine / 8;
    constexpr int64_t kLines = 40;
    constexpr uint64_t kTurns = 60'000;  // a memcpy() is caught about 25 times
    const auto lines_of = [](uint64_t turn) { return static_cast<int64_t>(turn % kLines) + 1; };
    alignas(kLine) static uint64_t input[kLines * kWords];
    alignas(kLine) static uint64_t output[kLines * kWords];
    std::atomic<uint64_t> read{0};
    uint64_t torn = 0;
    std::thread reader([&] {
        for (uint64_t turn = 1; turn <= kTurns; ++turn) {
            for (int64_t line = 0; line < lines_of(turn); ++line) {
                const uint64_t* const words = output + line * kWords;
                for (int spins = 0;
                     __atomic_load_n(words + kWords - 1, __ATOMIC_ACQUIRE) != turn;) {
                    if (++spins % 1000 == 0) {
                        std::this_thread::yield();
                    }
                }
                for (int64_t i = 0; i < kWords; ++i) {
                    torn += __atomic_load_n(words + i, __ATOMIC_RELAXED) != turn ? 1 : 0;
                }
            }
            read.store(turn);
        }
    });
    for (uint64_t turn = 1; turn <= kTurns; ++turn) {
        std::fill(std::begin(input), std::end(input), turn);
        copy_in_order(output, input, static_cast<size_t>(lines_of(turn) * kLine));
        for (int spins = 0; read.load() != turn;) {
            if (++spins % 1000 == 0) {
                std::this_thread::yield();
            }
        }
    }
    reader.join();
    EXPECT_EQ(torn, 0u);
}

// --- Codec threads

TEST(NetCodecPool, runs_every_task_also_without_threads_and_at_its_end) {
    for (const int threads : {0, 1, 3}) {
        std::vector<uint8_t> data(1000);
        for (size_t i = 0; i < data.size(); ++i) {
            data[i] = static_cast<uint8_t>(i);
        }
        std::vector<ChecksumTask> tasks(500);
        {
            CodecPool pool(threads);
            for (size_t i = 0; i < tasks.size(); ++i) {
                EXPECT_FALSE(tasks[i].done());
                tasks[i].submit(pool, data.data(), i);
            }
        }
        for (size_t i = 0; i < tasks.size(); ++i) {
            EXPECT_TRUE(tasks[i].done());
            EXPECT_EQ(tasks[i].value(), checksum_of(data.data(), i));
        }
    }
}

}  // namespace
}  // namespace slimwire::net
