// Elements between ranges of a buffer and chunks of a message: the host body on every instruction
// set against plain copies, the kernel on the execution model of tests/support/cuda_on_host.h
// against both, and what is left alone.
#include "tests/support/cuda_on_host.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "codecs/ops/move_ranges.h"
#include "tests/codecs/fixture.h"
#include "tests/codecs/recorded_launch.h"

#include "codecs/ops/move_ranges.cu"

namespace slimwire::testing {
namespace {

struct Situation {
    DType dtype;
    std::vector<MovedRange> ranges;
    int64_t end;
    int64_t buffer_elems;
    int64_t chunk_elems;
    int64_t chunk_bytes;
    int64_t misalignment;  // of the buffer, in elements
    float scale;
    float by_pointer;  // 0: no scale_ptr
    bool to_chunks;
    int32_t max_blocks;

    [[nodiscard]] std::string to_string() const {
        return std::string(dtype_name(dtype)) + " " + std::to_string(ranges.size()) +
               " ranges from " + std::to_string(ranges[0].begin) + " to " + std::to_string(end) +
               " chunks of " + std::to_string(chunk_elems) + " scale " + std::to_string(scale) +
               " times " + std::to_string(by_pointer) + (to_chunks ? " in" : " out");
    }
};

class MoveRanges : public ::testing::Test {
  protected:
    void SetUp() override { cuda_on_host::Machine::get().seed(seed_); }

    Situation random_situation() {
        constexpr float kScales[] = {1.0f, 1.0f, 1.0f, 0.25f, -3.0f, 1e30f};
        Situation s{};
        s.dtype = kFloatTypes[random_() % 3];
        const auto bytes = static_cast<int64_t>(dtype_bytes(s.dtype));
        s.chunk_elems = kMovedTogether * static_cast<int64_t>(1 + random_() % 40);
        s.chunk_bytes = (s.chunk_elems * bytes + 15) / 16 * 16 + 16 * (random_() % 3);
        int64_t at = static_cast<int64_t>(random_() % 9);
        // Another batch of the message may stand before.
        int64_t begin = random_() % 2 == 0 ? 0 : static_cast<int64_t>(random_() % 500);
        const size_t ranges = random_() % 8 == 0 ? kMostMovedRanges : 1 + random_() % 12;
        for (size_t r = 0; r < ranges; ++r) {
            s.ranges.push_back({at, begin});
            const auto count = static_cast<int64_t>(1 + random_() % (random_() % 4 == 0 ? 200 : 9));
            begin += count;
            at += count + static_cast<int64_t>(random_() % 3 * (random_() % 20));
        }
        s.end = begin;
        s.buffer_elems = at;
        s.misalignment = random_() % 2 == 0 ? 0 : static_cast<int64_t>(random_() % 9);
        s.scale = kScales[random_() % std::size(kScales)];
        s.by_pointer = random_() % 4 == 0 ? 1.5f : 0.0f;
        s.to_chunks = random_() % 2 == 0;
        s.max_blocks = static_cast<int32_t>(random_() % 3);
        return s;
    }

    // Any bits, also of values that are no numbers.
    Guarded random_bytes(int64_t bytes, int64_t misalignment) {
        Guarded buffer(bytes, misalignment);
        for (int64_t i = 0; i < bytes; ++i) {
            buffer.data()[i] = static_cast<uint8_t>(random_());
        }
        return buffer;
    }

    MoveRangesArgs args_of(const Situation& s, Guarded& buffer, Guarded& chunks) {
        MoveRangesArgs args{};
        args.buffer = buffer.data();
        args.chunks = chunks.data();
        args.chunk_elems = s.chunk_elems;
        args.chunk_bytes = s.chunk_bytes;
        args.end = s.end;
        args.scale_ptr = s.by_pointer == 0 ? nullptr : scalar_;
        args.scale = s.scale;
        args.dtype = s.dtype;
        args.to_chunks = s.to_chunks;
        args.ranges = static_cast<int32_t>(s.ranges.size());
        args.max_blocks = s.max_blocks;
        std::copy(s.ranges.begin(), s.ranges.end(), args.list);
        return args;
    }

    // One element after another.
    void expect(const Situation& s, std::vector<uint8_t>* buffer, std::vector<uint8_t>* chunks) {
        const auto bytes = static_cast<int64_t>(dtype_bytes(s.dtype));
        volatile float factor = s.scale;
        if (s.by_pointer != 0) {
            factor = factor * reference::element(scalar_, s.dtype, 0);
        }
        const bool as_it_is = s.scale == 1.0f && s.by_pointer == 0;
        for (size_t r = 0; r < s.ranges.size(); ++r) {
            const int64_t end = r + 1 < s.ranges.size() ? s.ranges[r + 1].begin : s.end;
            for (int64_t i = s.ranges[r].begin; i < end; ++i) {
                uint8_t* outside =
                    buffer->data() + (s.ranges[r].element + i - s.ranges[r].begin) * bytes;
                uint8_t* inside =
                    chunks->data() + i / s.chunk_elems * s.chunk_bytes + i % s.chunk_elems * bytes;
                const uint8_t* from = s.to_chunks ? outside : inside;
                uint8_t* to = s.to_chunks ? inside : outside;
                if (as_it_is) {
                    std::memcpy(to, from, static_cast<size_t>(bytes));
                } else {
                    volatile float x = reference::element(from, s.dtype, 0);
                    reference::set_element(to, s.dtype, 0, factor * x);
                }
            }
        }
    }

    uint32_t seed_ = test_seed();
    std::mt19937 random_{seed_};
    alignas(4) uint8_t scalar_[4] = {};
};

TEST_F(MoveRanges, HostBodyAndKernelEqualPlainCopiesAndLeaveTheRestAlone) {
    for (int trial = 0; trial < 900; ++trial) {
        const Situation s = random_situation();
        SCOPED_TRACE(s.to_string() + " seed " + std::to_string(seed_));
        const auto bytes = static_cast<int64_t>(dtype_bytes(s.dtype));
        reference::set_element(scalar_, s.dtype, 0, s.by_pointer);
        const int64_t chunks = (s.end + s.chunk_elems - 1) / s.chunk_elems;
        const Guarded buffer = random_bytes(s.buffer_elems * bytes, s.misalignment * bytes);
        const Guarded message = random_bytes(chunks * s.chunk_bytes, 0);
        std::vector<uint8_t> expected_buffer = buffer.copy(buffer.size());
        std::vector<uint8_t> expected_message = message.copy(message.size());
        expect(s, &expected_buffer, &expected_message);
        const auto expect_moved = [&](const auto& move) {
            Guarded outside = buffer, inside = message;
            move(args_of(s, outside, inside));
            ASSERT_EQ(inside.copy(inside.size()), expected_message);
            ASSERT_EQ(outside.copy(outside.size()), expected_buffer);
            ASSERT_TRUE(inside.margins_intact() && outside.margins_intact());
        };
        on_all_isas([&] { expect_moved(move_ranges_on_host); });
        if (sampled(random_)) {
            SCOPED_TRACE("kernel");
            expect_moved([](const MoveRangesArgs& args) {
                ASSERT_EQ(move_ranges_on_cuda(args, nullptr), cudaSuccess);
            });
        }
        ASSERT_FALSE(HasFailure());
    }
}

// The arguments fit what the emulator and a launch of CUDA copy.
using MoveRangesLaunch = RecordedLaunch;

TEST_F(MoveRangesLaunch, ReachesADeviceWithAllItsRanges) {
    float buffer[2 * kMostMovedRanges];
    alignas(16) float chunk[kMostMovedRanges] = {};
    MoveRangesArgs args{};
    args.buffer = buffer;
    args.chunks = chunk;
    args.chunk_elems = kMostMovedRanges;
    args.chunk_bytes = sizeof chunk;
    args.end = kMostMovedRanges;
    args.scale = 1.0f;
    args.dtype = DType::kFloat32;
    args.to_chunks = true;
    args.ranges = kMostMovedRanges;
    for (int i = 0; i < kMostMovedRanges; ++i) {
        buffer[2 * i] = static_cast<float>(i);
        buffer[2 * i + 1] = -1;
        args.list[i] = {2 * i, i};
    }
    ASSERT_TRUE(enqueue(api_, args, nullptr).ok());
    EXPECT_EQ(chunk[1], 0.0f) << "ran before its turn";
    launched.body(launched.args.data());
    for (int i = 0; i < kMostMovedRanges; ++i) {
        ASSERT_EQ(chunk[i], static_cast<float>(i));
    }
}

}  // namespace
}  // namespace slimwire::testing
