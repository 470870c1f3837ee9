// What only codec bounded promises: the bound of every element that was sent, literal bytes, what
// finds no room and whose turn it is, conservation, sizes, what its checks refuse.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "codecs/bounded/bounded_format.h"
#include "codecs/numeric.h"
#include "tests/codecs/worked_example.h"

namespace slimwire::testing {
namespace {

CodecSpec bounded(double error, const char* capacity) {
    char text[100];
    std::snprintf(text, sizeof(text), "bounded:error=%.9g,capacity=%s", error, capacity);
    return spec_of(text);
}

std::vector<float> decoded_as(const CodecSpec& spec, DType dtype, const Guarded& bytes, int64_t n) {
    Guarded output(n * static_cast<int64_t>(dtype_bytes(dtype)));
    EXPECT_EQ(decode(spec, dtype, bytes.data(), n, output), 0u);
    return values_of(output, dtype, n);
}

uint32_t word_at(const uint8_t* bytes, int64_t at) {
    uint32_t word = 0;
    std::memcpy(&word, bytes + at, 4);
    return word;
}

// Magnitudes over the whole range of the type, in blocks that are alike and in blocks that are not.
Guarded wide_input(DType dtype, int64_t count, std::mt19937& random) {
    Guarded input = random_input(dtype, count, 1.0, random);
    for (int64_t i = 0; i < count; ++i) {
        const int mixed = static_cast<int>(random() % 60) - 40;
        const int power = i / 500 % 2 == 0 ? static_cast<int>(i / 32 % 60) - 45 : mixed;
        const float value = reference::element(input.data(), dtype, i);
        const float scaled = std::ldexp(value, dtype == DType::kFloat16 ? power / 4 : power);
        reference::set_element(input.data(), dtype, i, scaled);
    }
    return input;
}

TEST(Bounded, GoldenBytesOfTheWorkedExample) {
    // Steps of 1/2 (error 0.25): 0 1 -1 2 -2 3 -3 6 -6 7 7 -7 0 0 0 0 -4; 4 bits, element 32 alone.
    on_all_isas([] {
        std::vector<float> values = kExample;
        values.resize(33);
        values[32] = 0.75f;  // a tie of 1 and 2 steps
        Bytes expected = {0x07, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
                          0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x03};
        expected.resize(16 + 32 + 4 + 12);  // the other widths, where the group starts, padding
        const Bytes payload = {0x66, 0x0E, 0x00, 0x00, 0xBC, 0x07, 0x00, 0x00, 0xD4, 0x06,
                               0x01, 0x00, 0x54, 0x09, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00,
                               0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00};
        expected.insert(expected.end(), payload.begin(), payload.end());
        const CodecSpec spec = bounded(0.25, "0.5");
        expected.resize(expected.size() + 4 * (32 - 7));  // room for a block at least
        EXPECT_EQ(encoding_of(spec, values), expected);
    });
}

TEST(Bounded, NothingSentIsOffByMoreThanTheBound) {
    std::mt19937 random(test_seed());
    on_all_isas([&] {
        for (const double error : {1e-7, 1e-3, 0.0009765625, 0.037, 3.0, 1e-30, 1e30}) {
            for (const DType dtype : kFloatTypes) {
                SCOPED_TRACE(std::to_string(error) + " " + dtype_name(dtype));
                constexpr int64_t kCount = 7019;
                const CodecSpec spec = bounded(error, "2");  // room for all
                const double bound = double{spec.params.threshold};
                const Guarded input = wide_input(dtype, kCount, random);
                const std::vector<float> p = values_of(input, dtype, kCount);
                const Encoded encoded = encode(spec, dtype, input, kCount);
                // As the call's own type, and before that is rounded to.
                const auto own = decoded_as(spec, dtype, encoded.bytes, kCount);
                const auto wide = reference::decode(spec, encoded.bytes.data(), kCount, dtype);
                for (size_t i = 0; i < p.size(); ++i) {
                    ASSERT_LE(std::abs(double{p[i]} - double{own[i]}), bound) << i << " " << p[i];
                    ASSERT_LE(std::abs(double{p[i]} - double{wide[i]}), bound) << i << " " << p[i];
                }
            }
        }
    });
}

// Ties and neighbours of ties, where a rounding too many would break the bound by a last place.
TEST(Bounded, HoldsHalfwayBetweenTwoSteps) {
    on_all_isas([] {
        const CodecSpec spec = bounded(0.001, "2");
        const float step = 0x1p-9f;
        std::vector<float> values;
        for (int power = 0; power <= 20; ++power) {
            for (const int64_t q : {(int64_t{1} << power) - 1, int64_t{1} << power}) {
                const float tie = (static_cast<float>(q) + 0.5f) * step;
                for (const float value :
                     {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e30f), -tie}) {
                    values.insert(values.end(), 32, value);
                }
            }
        }
        const std::vector<float> back =
            decoding_of(spec, encoding_of(spec, values), static_cast<int64_t>(values.size()));
        for (size_t i = 0; i < values.size(); ++i) {
            ASSERT_LE(std::abs(double{values[i]} - double{back[i]}), double{step} / 2) << values[i];
        }
    });
}

TEST(Bounded, WhatFindsNoRoomIsLeftWholeAndNothingIsLost) {
    std::mt19937 random(test_seed());
    on_all_isas([&] {
        for (const DType dtype : kFloatTypes) {
            constexpr int64_t kCount = 20 * 1024 + 77;
            const CodecSpec spec = bounded(0.001, dtype == DType::kFloat32 ? "0.2" : "0.4");
            const BoundedPlan plan = bounded_plan(spec.params, dtype, kCount);
            std::vector<float> residual(kCount);
            std::vector<double> given(kCount);
            std::vector<double> sent(kCount);
            for (uint32_t step = 0; step < 5; ++step) {
                const Guarded input = random_input(dtype, kCount, 1.0, random);
                const std::vector<float> x = values_of(input, dtype, kCount);
                const std::vector<float> p = expected_p(x, 1.0f, &residual);
                const Encoded encoded =
                    encode(spec, dtype, input, kCount, &residual, 1.0f, nullptr, {.step = step});
                const auto d = reference::decode(spec, encoded.bytes.data(), kCount, dtype);
                ASSERT_GT(word_at(encoded.bytes.data(), 0), plan.capacity) << "all found room";
                int64_t dropped = 0;
                for (int64_t block = 0; block < plan.blocks; ++block) {
                    const uint8_t width = encoded.bytes.data()[plan.widths + block];
                    const int64_t end = std::min<int64_t>(kCount, 32 * block + 32);
                    for (int64_t i = 32 * block; i < end; ++i) {
                        const auto at = static_cast<size_t>(i);
                        // Exact: no rounding stands between what was there, sent and left.
                        ASSERT_EQ(double{d[at]} + double{residual[at]}, double{p[at]});
                        ASSERT_TRUE(width == 0 || std::abs(residual[at]) <= 0.001f);
                    }
                    dropped += width == 0 ? 1 : 0;
                }
                ASSERT_GT(dropped, plan.blocks / 20);
                ASSERT_LT(dropped, plan.blocks * 19 / 20);
                // The payload is full but for less than a block.
                int64_t used = 0;
                for (int64_t block = 0; block < plan.blocks; ++block) {
                    used += bounded_words(encoded.bytes.data()[plan.widths + block]);
                }
                ASSERT_GT(used, plan.capacity - 32);
                ASSERT_LE(used, plan.capacity);
            }
        }
    });
}

// No block waits for long, also where a group alone is too large, and all wait alike.
TEST(Bounded, EveryBlockHasItsTurn) {
    std::mt19937 random(test_seed());
    for (const int64_t count : {int64_t{1024}, int64_t{3 * 1024 + 500}, int64_t{40 * 1024}}) {
        const CodecSpec spec = bounded(0.001, "0.1");  // of some 13 bits
        const BoundedPlan plan = bounded_plan(spec.params, DType::kFloat32, count);
        const Guarded input = random_input(DType::kFloat32, count, 1.0, random);
        std::vector<int> sent(static_cast<size_t>(plan.blocks));
        constexpr uint32_t kSteps = 64;
        for (uint32_t step = 0; step < kSteps; ++step) {
            const Encoded encoded = encode(spec, DType::kFloat32, input, count, nullptr, 1.0f,
                                           nullptr, {.step = 1000 + step});
            for (int64_t block = 0; block < plan.blocks; ++block) {
                const bool there = encoded.bytes.data()[plan.widths + block] != 0;
                sent[static_cast<size_t>(block)] += there ? 1 : 0;
            }
        }
        // A quarter of the blocks a step.
        EXPECT_GE(*std::min_element(sent.begin(), sent.end()), 6) << count;
        EXPECT_LE(*std::max_element(sent.begin(), sent.end()), 30) << count;
    }
}

// 1 + log2(range / error) bits, to the whole bit above and the power of two below, and a width.
TEST(Bounded, BitsFollowFromRangeAndBound) {
    std::mt19937 random(test_seed());
    constexpr int64_t kCount = 64 * 1024;
    for (const double sigma : {0.003, 0.02, 1.0, 30.0}) {
        const CodecSpec spec = bounded(0.0009765625, "2");
        const Guarded input = random_input(DType::kFloat32, kCount, sigma, random);
        const std::vector<float> p = values_of(input, DType::kFloat32, kCount);
        const Encoded encoded = encode(spec, DType::kFloat32, input, kCount);
        double bits = 0;
        for (size_t block = 0; block < kCount; block += 32) {
            double range = 0;
            for (size_t i = block; i < block + 32; ++i) {
                range = std::max(range, std::abs(double{p[i]}));
            }
            bits += 1 + std::log2(range / 0.0009765625);
        }
        const double mean = 32.0 * word_at(encoded.bytes.data(), 0) / kCount;
        EXPECT_NEAR(mean, bits / (kCount / 32.0), 0.6) << sigma;
    }
}

TEST(Bounded, WhatIsNotFiniteTakesNoRoomAndAlwaysFindsSome) {
    on_all_isas([] {
        const CodecSpec spec = spec_of("bounded:error=0.001,capacity=0.01");
        std::vector<float> values(4096, 1000.0f);
        for (size_t i = 5; i < values.size(); i += 32) {
            values[i] = i % 64 == 5 ? INFINITY : NAN;
        }
        std::vector<float> residual(values.size(), 0.5f);
        const Encoded encoded = encode(spec, DType::kFloat32, floats(values), 4096, &residual);
        for (const float value : decoded_as(spec, DType::kFloat32, encoded.bytes, 4096)) {
            ASSERT_EQ(std::bit_cast<uint32_t>(value), kNanFloat32);
        }
        EXPECT_EQ(residual, std::vector<float>(values.size(), 0.5f));
    });
}

TEST(Bounded, ChecksNameWhatNoEncoderWrites) {
    std::mt19937 random(test_seed());
    constexpr int64_t kCount = 3000;
    const CodecSpec spec = spec_of("bounded");
    const BoundedPlan plan = bounded_plan(spec.params, DType::kFloat32, kCount);
    const Guarded input = random_input(DType::kFloat32, kCount, 1.0, random);
    const Encoded encoded = encode(spec, DType::kFloat32, input, kCount);
    const Bytes good = encoded.bytes.copy(encoded.size);
    const auto refused = [&](int64_t at, uint8_t value, const char* why) {
        Bytes bytes = good;
        bytes[static_cast<size_t>(at)] = value;
        const auto checked =
            check_encoding(spec, DType::kFloat32, kCount, bytes.data(), encoded.size);
        ASSERT_FALSE(checked.ok()) << why;
        EXPECT_NE(checked.status().message().find(why), std::string::npos)
            << checked.status().message();
        on_all_isas([&] {
            Guarded output(4 * kCount);
            EXPECT_EQ(decode(spec, DType::kFloat32, bytes.data(), kCount, output), kStatusCorrupt)
                << why;
        });
    };
    EXPECT_TRUE(check_encoding(spec, DType::kFloat32, kCount, good.data(), encoded.size).ok());
    EXPECT_FALSE(check_encoding(spec, DType::kFloat32, kCount, good.data(), encoded.size - 1).ok());
    refused(4, 32, "begins with block 32 of 32");
    refused(plan.widths + 40, 1, "block 40 has a width of 1 bits");
    refused(plan.widths + 41, 23, "block 41 has a width of 23 bits");
    refused(plan.starts + 4 * 1 + 3, 0x7F, "group 1 ends outside");
}

}  // namespace
}  // namespace slimwire::testing
