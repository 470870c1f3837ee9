// The palette codec's kernels, compiled by the host compiler and run by the execution model of
// tests/support/cuda_on_host.h, equal the host bodies to the byte: encodings, statuses and decoded
// elements of every type, also of malformed bytes; and they leave their workspace as a replayed
// graph needs it.
#include "tests/support/cuda_on_host.h"

#include <algorithm>
#include <cstring>

#include "tests/codecs/fixture.h"

#include "codecs/palette.cu"

namespace slimwire::testing {
namespace {

constexpr DType kTypes[] = {DType::kBfloat16,   DType::kFloat32,    DType::kFloat16,
                            DType::kFloat8e4m3, DType::kFloat8e5m2, DType::kFloat64,
                            DType::kUint8,      DType::kInt32,      DType::kUint64};

class PaletteKernels : public ::testing::Test {
  protected:
    void SetUp() override { cuda_on_host::Machine::get().seed(seed_); }

    int64_t width(DType dtype) { return static_cast<int64_t>(dtype_bytes(dtype)); }

    // 0: bell curves of 16-bit floats as the upper halves of elements; 1: with many zeros, 2:
    // nearly all zero, 3: random bits, 4: zero.
    Guarded input_of(DType dtype, int64_t count, int data, int64_t shift = 0) {
        Guarded input(count * width(dtype), shift);
        std::normal_distribution<float> bell(0, 1);
        for (int64_t i = 0; i < count; ++i) {
            uint64_t bits = uint64_t{random_()} << 32 | random_();
            if (data != 3) {
                const float value = bell(random_);
                uint32_t word = 0;
                std::memcpy(&word, &value, 4);
                const int64_t bytes = width(dtype);
                bits >>= 16;  // below the sign and exponent
                bits = bytes == 8 ? bits | static_cast<uint64_t>(word >> 16) << 48
                                  : word >> (32 - 8 * bytes);
                const bool zero = data == 4 || (data == 1 && i / 100 % 3 != 0) ||
                                  (data == 2 && random_() % 50 != 0);
                bits = zero ? 0 : bits;
            }
            std::memcpy(input.data() + i * width(dtype), &bits, static_cast<size_t>(width(dtype)));
        }
        return input;
    }

    // Encodes by both; they must agree on every byte and on the status.
    Guarded expect_same_encoding(const CodecSpec& spec,
                                 DType dtype,
                                 const Guarded& input,
                                 int64_t count,
                                 int64_t chunk,
                                 Guarded& workspace) {
        const int64_t slot = slot_for(spec.encoded_bytes(dtype, std::min(chunk, count)));
        const int64_t chunks = (count + chunk - 1) / chunk;
        Guarded expected(chunks * slot);
        Guarded encoded(chunks * slot);
        uint32_t expected_status = 0;
        uint32_t status = 0;
        EncodeArgs args{.input = input.data(),
                        .output = expected.data(),
                        .residual = nullptr,
                        .scale_ptr = nullptr,
                        .scale = 1,
                        .count = count,
                        .chunk_elems = chunk,
                        .slot_bytes = slot,
                        .params = spec.params,
                        .dtype = dtype,
                        .status = &expected_status};
        spec.codec->host.encode(args);
        args.output = encoded.data();
        args.status = &status;
        args.workspace = workspace.data();
        args.max_blocks = static_cast<int32_t>(random_() % 4);
        EXPECT_EQ(PaletteCuda::encode(args, nullptr), cudaSuccess);
        EXPECT_EQ(encoded.copy(encoded.size()), expected.copy(expected.size()))
            << "count " << count << " chunk " << chunk;
        EXPECT_EQ(status, expected_status);
        EXPECT_TRUE(encoded.margins_intact() && workspace.margins_intact());
        return expected;
    }

    void expect_same_decoding(const CodecSpec& spec,
                              DType dtype,
                              const Guarded& encoded,
                              const Guarded& before,
                              int64_t count,
                              int64_t chunk) {
        const int64_t slot = slot_for(spec.encoded_bytes(dtype, std::min(chunk, count)));
        for (const bool accumulate : {false, true}) {
            const int64_t shift = width(dtype) * static_cast<int64_t>(random_() % 3);
            Guarded expected(before.size());
            Guarded output(before.size(), shift);
            std::memcpy(expected.data(), before.data(), static_cast<size_t>(before.size()));
            std::memcpy(output.data(), before.data(), static_cast<size_t>(before.size()));
            uint32_t expected_status = 0;
            uint32_t status = 0;
            DecodeArgs args{.input = encoded.data(),
                            .output = expected.data(),
                            .count = count,
                            .chunk_elems = chunk,
                            .slot_bytes = slot,
                            .params = spec.params,
                            .dtype = dtype,
                            .accumulate = accumulate,
                            .status = &expected_status};
            spec.codec->host.decode(args);
            args.output = output.data();
            args.status = &status;
            ASSERT_EQ(PaletteCuda::decode(args, nullptr), cudaSuccess);
            ASSERT_EQ(output.copy(output.size()), expected.copy(expected.size()))
                << "count " << count << " accumulate " << accumulate;
            ASSERT_EQ(status, expected_status);
            ASSERT_TRUE(output.margins_intact());
        }
    }

    Guarded random_workspace(const CodecSpec& spec, DType dtype, int64_t count, int64_t chunk) {
        Guarded workspace(spec.workspace_bytes(dtype, count, chunk));
        for (int64_t i = 0; i < workspace.size(); ++i) {
            workspace.data()[i] = static_cast<uint8_t>(random_());
        }
        return workspace;
    }

    uint32_t seed_ = test_seed();
    std::mt19937 random_{seed_};
};

TEST_F(PaletteKernels, EncodeAndDecodeEqualTheHostBodies) {
    for (const char* text : {"palette", "palette:slot=0.7"}) {
        const CodecSpec spec = spec_of(text);
        for (const DType dtype : kTypes) {
            for (int data = 0; data < 5; ++data) {
                for (const int64_t count : {1, 15, 16, 17, 255, 300, 4096, 4097, 3 * 4096 + 1000}) {
                    if (!sampled(random_)) {
                        continue;
                    }
                    SCOPED_TRACE(std::string(text) + " " + dtype_name(dtype) + " data " +
                                 std::to_string(data) + " seed " + std::to_string(seed_));
                    const int64_t shift = width(dtype) * static_cast<int64_t>(random_() % 3);
                    const Guarded input = input_of(dtype, count, data, shift);
                    const int64_t chunk = count > 4096 && random_() % 2 == 0 ? 4096 : count;
                    Guarded workspace = random_workspace(spec, dtype, count, chunk);
                    const Guarded encoded =
                        expect_same_encoding(spec, dtype, input, count, chunk, workspace);
                    const Guarded before = input_of(dtype, count, data);
                    expect_same_decoding(spec, dtype, encoded, before, count, chunk);
                    if (HasFailure()) {
                        return;
                    }
                }
            }
        }
    }
}

TEST_F(PaletteKernels, ManyBlocksLookBackThroughOneWorkspaceAgainAndAgain) {
    const CodecSpec spec = spec_of("palette");
    const int64_t count = 70 * 4096 + 5;
    Guarded workspace = random_workspace(spec, DType::kUint8, count, count);
    for (int round = 0; round < 4; ++round) {
        SCOPED_TRACE("seed " + std::to_string(seed_));
        const Guarded input = input_of(DType::kUint8, count, round);
        expect_same_encoding(spec, DType::kUint8, input, count, count, workspace);
        ASSERT_FALSE(HasFailure());
    }
}

// A graph replays a launch with the numbers it was captured with.
TEST_F(PaletteKernels, TheSameLaunchMayRunAgain) {
    const CodecSpec spec = spec_of("palette");
    const int64_t count = 9 * 4096;
    Guarded workspace = random_workspace(spec, DType::kBfloat16, count, count);
    Guarded input = input_of(DType::kBfloat16, count, 0);
    Guarded output(slot_for(spec.encoded_bytes(DType::kBfloat16, count)));
    EncodeArgs args{.input = input.data(),
                    .output = output.data(),
                    .residual = nullptr,
                    .scale_ptr = nullptr,
                    .scale = 1,
                    .count = count,
                    .chunk_elems = count,
                    .slot_bytes = output.size(),
                    .params = spec.params,
                    .dtype = DType::kBfloat16,
                    .workspace = workspace.data()};
    const PaletteWork work = palette_work(args);
    for (int data = 0; data < 3; ++data) {
        const Guarded other = input_of(DType::kBfloat16, count, data);
        std::memcpy(input.data(), other.data(), static_cast<size_t>(input.size()));
        ASSERT_EQ(launch_encode<2>(args, work, nullptr), cudaSuccess);
        const Encoded expected = encode(spec, DType::kBfloat16, input, count);
        int64_t total = 0;
        std::memcpy(&total, output.data() + 8, 8);
        ASSERT_EQ(output.copy(total), expected.bytes.copy(total)) << "run " << data;
    }
}

TEST_F(PaletteKernels, MalformedBytesDecodeAsOnTheHost) {
    const CodecSpec spec = spec_of("palette");
    for (const DType dtype : {DType::kBfloat16, DType::kFloat16, DType::kFloat32, DType::kInt32}) {
        for (int round = 0; round < 40; ++round) {
            SCOPED_TRACE(std::string(dtype_name(dtype)) + " round " + std::to_string(round) +
                         " seed " + std::to_string(seed_));
            const int64_t count = 1 + static_cast<int64_t>(random_() % 5000);
            const Guarded input = input_of(dtype, count, round % 4);
            Encoded encoded = encode(spec, dtype, input, count);
            int64_t total = 0;
            std::memcpy(&total, encoded.bytes.data() + 8, 8);
            const auto reach =
                static_cast<uint32_t>(round % 2 == 0 ? total : std::min<int64_t>(total, 60));
            for (int hit = 0; hit <= round % 3; ++hit) {
                encoded.bytes.data()[random_() % reach] ^=
                    static_cast<uint8_t>(1u << random_() % 8);
            }
            expect_same_decoding(spec, dtype, encoded.bytes, input, count, count);
            ASSERT_FALSE(HasFailure());
        }
        // A header that only a fixed slot can have.
        const uint32_t overflow[4] = {kPaletteMagic, kPaletteOverflow, kPaletteChunkHeader, 0};
        for (const CodecSpec& either : {spec, spec_of("palette:slot=0.5")}) {
            const int64_t count = 1535;
            const Guarded input = input_of(dtype, count, 3);
            Encoded encoded = encode(either, dtype, input, count);
            std::memcpy(encoded.bytes.data(), overflow, sizeof overflow);
            expect_same_decoding(either, dtype, encoded.bytes, input, count, count);
        }
    }
}

}  // namespace
}  // namespace slimwire::testing
