// Bytes: determinism, instruction sets, threads; truncated, corrupt and arbitrary input.
#include <atomic>
#include <functional>
#include <random>
#include <thread>

#include "tests/codecs/contract.h"

namespace slimwire::testing {
namespace {

TEST_F(Contract, InstructionSetsAgreeOnRandomBits) {
    for (const CodecSpec& spec : all_specs()) {
        for (const DType dtype : kFloatTypes) {
            if (!sampled(random_)) {
                continue;
            }
            SCOPED_TRACE(spec.to_string() + " " + dtype_name(dtype) + " seed " +
                         std::to_string(seed_));
            constexpr int64_t kCount = 20011;
            Guarded input(kCount * static_cast<int64_t>(dtype_bytes(dtype)));
            for (int64_t i = 0; i < input.size(); ++i) {
                input.data()[i] = static_cast<uint8_t>(random_());
            }
            std::vector<std::vector<uint8_t>> encodings;
            std::vector<std::vector<float>> residuals;
            for (const Isa isa : all_isas()) {
                ASSERT_TRUE(force_isa(isa).ok());
                std::vector<float> residual(kCount, 0.1f);
                const Encoded encoded = encode(spec, dtype, input, kCount, &residual, 1.7f);
                encodings.push_back(encoded.bytes.copy(encoded.size));
                residuals.push_back(residual);
            }
            for (size_t i = 1; i < encodings.size(); ++i) {
                EXPECT_EQ(encodings[i], encodings[0]);
                EXPECT_EQ(residuals[i], residuals[0]);
            }
        }
    }
}

TEST_F(Contract, AnyBytesDecodeWithinTheOutput) {
    for_all([&](const CodecSpec& spec, DType dtype) {
        for (int round = 0; round < 10; ++round) {
            if (!sampled(random_)) {
                continue;
            }
            const int64_t count = static_cast<int64_t>(random_() % 3000);
            const int64_t size = spec.encoded_bytes(dtype, count);
            Guarded bytes(slot_for(size));
            for (int64_t i = 0; i < size; ++i) {
                bytes.data()[i] =
                    static_cast<uint8_t>(random_() % (round < 5 ? 256 : 2) * (round < 5 ? 1 : 255));
            }
            const std::vector<float> before(static_cast<size_t>(count), 1.5f);
            expect_decodes_to(spec, dtype, bytes.data(), count, before, false);
            expect_decodes_to(spec, dtype, bytes.data(), count, before, true);
            // A rotation's decoder divides the scale, which may round, instead of the sum.
            if (spec.sums() && spec.params.rotate == 0) {
                Guarded decoded(count * static_cast<int64_t>(dtype_bytes(dtype)));
                Guarded summed(decoded.size());
                decode(spec, dtype, bytes.data(), count, decoded);
                (void)decode_reduce(spec, dtype, bytes.data(), 1, count, 1.0f, summed);
                ASSERT_EQ(summed.copy(summed.size()), decoded.copy(decoded.size()));
            }
        }
    });
}

// An encoding in exactly its bytes, so that a sanitizer sees a read beyond them.
std::vector<uint8_t> exact(const Encoded& encoded) {
    return encoded.bytes.copy(encoded.size);
}

TEST_F(Contract, TruncatedEncodingsAreRefusedAtEveryLength) {
    for_every([&](const CodecSpec& spec, DType dtype) {
        for (const int64_t count : {int64_t{1}, int64_t{77}, spec.granule(dtype) + 1}) {
            const Encoded encoded =
                encode(spec, dtype, random_input(dtype, count, 1.0, random_), count);
            const std::vector<uint8_t> whole = exact(encoded);
            const auto used = check_encoding(spec, dtype, count, whole.data(), encoded.size);
            ASSERT_TRUE(used.ok()) << used.status().message();
            ASSERT_EQ(used.value(), encoded.size);
            const int64_t step = std::max<int64_t>(1, encoded.size / 500);
            for (int64_t size = 0; size < encoded.size; size += step) {
                const std::vector<uint8_t> part(whole.begin(), whole.begin() + size);
                const auto result = check_encoding(spec, dtype, count, part.data(), size);
                ASSERT_FALSE(result.ok()) << size << " of " << encoded.size << " bytes pass";
                ASSERT_EQ(result.status().code(), Code::kInvalidArgument);
                const std::string message = result.status().message();
                for (const std::string& named : {spec.to_string(), std::string("truncated"),
                                                 std::to_string(size), std::to_string(count)}) {
                    ASSERT_NE(message.find(named), std::string::npos) << message;
                }
            }
            std::vector<uint8_t> longer = whole;
            longer.resize(whole.size() + 40, 0xA5);
            const auto more = check_encoding(spec, dtype, count, longer.data(), encoded.size + 40);
            ASSERT_TRUE(more.ok()) << more.status().message();
            ASSERT_EQ(more.value(), encoded.size);
        }
    });
}

TEST_F(Contract, WhatIsNoEncodingAtAllIsRefused) {
    for_every([&](const CodecSpec& spec, DType dtype) {
        const uint8_t byte = 0;
        EXPECT_FALSE(check_encoding(spec, dtype, -1, &byte, 1).ok());
        EXPECT_FALSE(check_encoding(spec, dtype, 1, &byte, -1).ok());
        EXPECT_FALSE(check_encoding(spec, dtype, 1, nullptr, 100).ok());
        const auto none = check_encoding(spec, dtype, 0, nullptr, 0);
        ASSERT_TRUE(none.ok());
        EXPECT_EQ(none.value(), 0);
    });
}

// What passes the check decodes without a complaint; what does not stays within its buffers and
// says so. Only codecs that have a check complain.
TEST_F(Contract, CorruptEncodingsAreFoundAndDecodeWithinTheirBuffers) {
    for_every([&](const CodecSpec& spec, DType dtype) {
        const int64_t count = 2 * std::min<int64_t>(spec.granule(dtype), 300) + 33;
        const Encoded encoded =
            encode(spec, dtype, random_input(dtype, count, 1.0, random_), count);
        const int64_t slot = (encoded.size + 15) / 16 * 16;
        for (int round = 0; round < 60; ++round) {
            std::vector<uint8_t> bytes(static_cast<size_t>(slot));
            std::memcpy(bytes.data(), encoded.bytes.data(), static_cast<size_t>(encoded.size));
            for (int change = 0; change <= round % 5; ++change) {
                // Half of the changes among the first bytes, where headers are.
                const auto range = static_cast<size_t>(
                    random_() % 2 == 0 ? std::min<int64_t>(encoded.size, 64) : encoded.size);
                bytes[random_() % range] ^= static_cast<uint8_t>(1 + random_() % 255);
            }
            const bool passes = check_encoding(spec, dtype, count, bytes.data(), encoded.size).ok();
            for (const bool accumulate : {false, !lossless(spec)}) {
                Guarded output(count * static_cast<int64_t>(dtype_bytes(dtype)));
                std::memset(output.data(), 0, static_cast<size_t>(output.size()));
                uint32_t status = 0;
                DecodeArgs to_decode = decode_args(spec, dtype, count, bytes.data(), output.data());
                to_decode.slot_bytes = slot;
                to_decode.accumulate = accumulate;
                to_decode.status = &status;
                spec.codec->host.decode(to_decode);
                ASSERT_TRUE(output.margins_intact());
                ASSERT_TRUE(status == 0 || (status == kStatusCorrupt && !passes))
                    << "status " << status << ", check " << passes;
                ASSERT_TRUE(status == 0 || spec.codec->check != nullptr);
            }
        }
    });
}

TEST_F(Contract, ChecksOfCorruptBytesStayWithinThem) {
    for_every([&](const CodecSpec& spec, DType dtype) {
        for (int round = 0; round < 50; ++round) {
            const int64_t count = 1 + static_cast<int64_t>(random_() % 600);
            const int64_t full = spec.encoded_bytes(dtype, count);
            const int64_t size =
                round % 2 == 0 ? full : static_cast<int64_t>(random_()) % (full + 1);
            std::vector<uint8_t> bytes(static_cast<size_t>(size));
            for (uint8_t& byte : bytes) {
                byte = static_cast<uint8_t>(round % 3 == 0 ? random_() % 4 : random_());
            }
            const auto result = check_encoding(spec, dtype, count, bytes.data(), size);
            if (result.ok()) {
                ASSERT_LE(result.value(), size);
                ASSERT_GT(result.value(), 0);
            }
        }
    });
}

// Each thread has its own input, so that state they shared would show.
TEST_F(Contract, TheSameInputGivesTheSameBytesAlsoFromSeveralThreads) {
    constexpr int kThreads = 3;
    constexpr int kRounds = 12;
    for_every([&](const CodecSpec& spec, DType dtype) {
        if (!sampled(random_)) {
            return;
        }
        const int64_t count = 2 * std::min<int64_t>(spec.granule(dtype), 1024) + 1013;
        const int64_t slot = slot_for(spec.encoded_bytes(dtype, count));
        const auto encode_into = [&](const Guarded& input, std::vector<uint8_t>& bytes,
                                     std::vector<float>& residual) {
            residual.assign(static_cast<size_t>(count), 0.03125f);
            EncodeArgs to_encode = encode_args(spec, dtype, count, input.data(), bytes.data());
            to_encode.residual = residual.data();
            to_encode.scale = 0.5f;
            spec.codec->host.encode(to_encode);
        };
        std::atomic<int> waiting{kThreads};
        std::atomic<int> different{0};
        const auto run = [&](const Guarded& input, const std::vector<uint8_t>& expected,
                             const std::vector<float>& expected_residual) {
            std::vector<uint8_t> bytes(static_cast<size_t>(slot));
            std::vector<float> residual;
            --waiting;
            while (waiting > 0) {
                std::this_thread::yield();
            }
            for (int round = 0; round < kRounds; ++round) {
                // What stood there before does not matter.
                std::fill(bytes.begin(), bytes.end(), static_cast<uint8_t>(17 * round));
                encode_into(input, bytes, residual);
                if (!std::equal(expected.begin(), expected.end(), bytes.begin()) ||
                    residual != expected_residual) {
                    ++different;
                }
            }
        };
        std::vector<Guarded> inputs;
        std::vector<std::vector<uint8_t>> expected(kThreads);
        std::vector<std::vector<float>> residuals(kThreads);
        for (size_t k = 0; k < kThreads; ++k) {
            inputs.push_back(
                random_input(dtype, count, std::ldexp(1.0, static_cast<int>(k)), random_));
            expected[k].assign(static_cast<size_t>(slot), 0xA5);
            encode_into(inputs[k], expected[k], residuals[k]);
            const auto used = check_encoding(spec, dtype, count, expected[k].data(), slot);
            ASSERT_TRUE(used.ok()) << used.status().message();
            expected[k].resize(static_cast<size_t>(used.value()));
        }
        std::vector<std::thread> threads;
        for (size_t k = 0; k < kThreads; ++k) {
            threads.emplace_back(run, std::cref(inputs[k]), std::cref(expected[k]),
                                 std::cref(residuals[k]));
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        ASSERT_EQ(different, 0);
    });
}

}  // namespace
}  // namespace slimwire::testing
