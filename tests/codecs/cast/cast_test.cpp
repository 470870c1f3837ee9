// What only the casts promise, the 16-bit float conversions of codecs/float16.h, and independence
// of the calling thread's floating-point settings.
#include "codecs/float16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "tests/codecs/fixture.h"
#include "tests/codecs/float_control.h"

namespace slimwire::testing {
namespace {

TEST(Float16, EveryPatternReadsAsItsValue) {
    for (uint32_t i = 0; i < 65536; ++i) {
        const auto bits = static_cast<uint16_t>(i);
        const auto half = static_cast<float>(reference::from_bits(reference::kFloat16, bits));
        const auto brain = static_cast<float>(reference::from_bits(reference::kBfloat16, bits));
        ASSERT_TRUE(same_bits(float16_to_float(bits), half) ||
                    (std::isnan(half) && std::isnan(float16_to_float(bits))));
        ASSERT_TRUE(same_bits(bfloat16_to_float(bits), brain) ||
                    (std::isnan(brain) && std::isnan(bfloat16_to_float(bits))));
    }
}

// Every representable value, every midpoint of two neighbours, and both sides of the midpoint.
template <class Convert>
void expect_rounds_like(const reference::Format& format, Convert convert) {
    for (uint32_t i = 0; i < 65536; ++i) {
        const auto bits = static_cast<uint16_t>(i);
        const double value = reference::from_bits(format, bits);
        const double next = reference::from_bits(format, static_cast<uint16_t>(bits + 1));
        const auto middle = static_cast<float>((value + next) / 2);
        for (const float x : {static_cast<float>(value), middle, std::nextafter(middle, 1e30f),
                              std::nextafter(middle, -1e30f)}) {
            ASSERT_EQ(convert(x), reference::to_bits(format, reference::round_to(format, x)))
                << std::hexfloat << x;
        }
    }
    for (const float x : {0x1.fffffep127f, 65519.9f, 65520.0f, 1e38f, 1e-45f, 0x1p-25f}) {
        ASSERT_EQ(convert(x), reference::to_bits(format, reference::round_to(format, x)));
        ASSERT_EQ(convert(-x), reference::to_bits(format, reference::round_to(format, -x)));
    }
}

TEST(Float16, RoundingIsNearestEvenAtEveryMidpoint) {
    expect_rounds_like(reference::kFloat16, float_to_float16);
    expect_rounds_like(reference::kBfloat16, float_to_bfloat16);
}

// The lanes' conversions, by decoding to 16-bit elements: all midpoints, on every instruction set.
TEST(Cast, LanesRoundAtEveryMidpointLikeTheReference) {
    for (const DType target : {DType::kFloat16, DType::kBfloat16}) {
        const reference::Format& format =
            target == DType::kFloat16 ? reference::kFloat16 : reference::kBfloat16;
        std::vector<float> values;
        for (uint32_t i = 0; i < 65536; ++i) {
            const double value = reference::from_bits(format, static_cast<uint16_t>(i));
            const double next = reference::from_bits(format, static_cast<uint16_t>(i + 1));
            const auto middle = static_cast<float>((value + next) / 2);
            values.insert(values.end(), {middle, std::nextafter(middle, INFINITY),
                                         std::nextafter(middle, -INFINITY)});
        }
        const auto count = static_cast<int64_t>(values.size());
        Guarded input(4 * count);
        std::memcpy(input.data(), values.data(), 4 * values.size());
        const CodecSpec spec = spec_of(target == DType::kFloat16 ? "fp16" : "bf16");
        for (const Isa isa : all_isas()) {
            ASSERT_TRUE(force_isa(isa).ok());
            const Encoded encoded = encode(spec, DType::kFloat32, input, count);
            EXPECT_EQ(encoded.bytes.copy(encoded.size), *reference::encode(spec, values))
                << isa_name(isa) << " " << spec.to_string();
        }
    }
}

// Over all 256 bytes: only the two neighbours come out, and their mean is within 1/512 of a step.
TEST(Cast, EveryByteOfAStochasticRoundingGivesANeighbourAndTheirMeanIsTheValue) {
    std::mt19937 random(test_seed());
    for (const reference::Format& format : {reference::kFloat16, reference::kBfloat16}) {
        for (int round = 0; round < 2000; ++round) {
            const double largest = format.max_finite;
            const float x = std::bit_cast<float>(static_cast<uint32_t>(random()));
            if (!(std::abs(x) <= largest)) {
                continue;
            }
            const int exponent = std::max(x == 0 ? -200 : std::ilogb(x), format.min_exponent);
            const double step = std::ldexp(1.0, exponent - (format.precision - 1));
            double sum = 0;
            for (int byte = 0; byte < 256; ++byte) {
                const double y = reference::round_up_or_down(format, x, byte);
                ASSERT_LT(std::abs(y - x), step);
                ASSERT_LE(std::abs(y), largest);
                ASSERT_EQ(y, reference::round_to(format, y));
                sum += y;
            }
            ASSERT_LE(std::abs(sum / 256 - x), step / 512) << std::hexfloat << x;
        }
    }
}

TEST(Cast, StochasticRoundingEqualsTheReferenceOnRandomBits) {
    std::mt19937 random(test_seed());
    constexpr int64_t kCount = 70001;
    Guarded input(4 * kCount);
    for (int64_t i = 0; i < kCount; ++i) {
        // A third random bits, a third in the subnormal range of fp16, a third near its largest.
        uint32_t bits = static_cast<uint32_t>(random());
        bits = i % 3 == 1 ? (bits & 0x83FFFFFFu) + 0x34800000u : bits;
        bits = i % 3 == 2 ? (bits & 0x8000FFFFu) + 0x477F0000u : bits;
        std::memcpy(input.data() + 4 * i, &bits, 4);
    }
    const std::vector<float> p = values_of(input, DType::kFloat32, kCount);
    for (const char* name : {"fp16:rounding=stochastic", "fp16:rounding=stochastic,saturate=true",
                             "bf16:rounding=stochastic"}) {
        const CodecSpec spec = spec_of(name);
        for (const Isa isa : all_isas()) {
            ASSERT_TRUE(force_isa(isa).ok());
            const Encoded encoded = encode(spec, DType::kFloat32, input, kCount);
            ASSERT_EQ(encoded.bytes.copy(encoded.size), *reference::encode(spec, p))
                << isa_name(isa) << " " << name;
        }
    }
}

TEST(Cast, GoldenBytes) {
    const float values[] = {1.0f, -2.5f, 65520.0f, INFINITY, -NAN, 1e-8f, 3.4028235e38f};
    Guarded input(sizeof(values));
    std::memcpy(input.data(), values, sizeof(values));
    const Encoded half = encode(spec_of("fp16"), DType::kFloat32, input, 7);
    EXPECT_EQ(half.bytes.copy(half.size),
              (std::vector<uint8_t>{0x00, 0x3C, 0x00, 0xC1, 0x00, 0x7C, 0x00, 0x7C, 0x00, 0x7E,
                                    0x00, 0x00, 0x00, 0x7C}));
    const Encoded cut = encode(spec_of("fp16:saturate=true"), DType::kFloat32, input, 7);
    EXPECT_EQ(cut.bytes.copy(cut.size),
              (std::vector<uint8_t>{0x00, 0x3C, 0x00, 0xC1, 0xFF, 0x7B, 0x00, 0x7C, 0x00, 0x7E,
                                    0x00, 0x00, 0xFF, 0x7B}));
    const Encoded brain = encode(spec_of("bf16"), DType::kFloat32, input, 7);
    EXPECT_EQ(brain.bytes.copy(brain.size),
              (std::vector<uint8_t>{0x80, 0x3F, 0x20, 0xC0, 0x80, 0x47, 0x80, 0x7F, 0xC0, 0x7F,
                                    0x2C, 0x32, 0x7F, 0x7F}));
}

TEST(Cast, SixteenBitBuffersAreLeftToOthers) {
    for (const char* name : {"bf16", "fp16"}) {
        EXPECT_TRUE(spec_of(name).accepts(DType::kFloat32));
        EXPECT_FALSE(spec_of(name).accepts(DType::kBfloat16));
        EXPECT_FALSE(spec_of(name).accepts(DType::kFloat16));
        EXPECT_FALSE(spec_of(name).accepts(DType::kFloat64));
    }
    for (const char* name : {"int8", "int4", "int2"}) {
        EXPECT_TRUE(spec_of(name).accepts(DType::kBfloat16));
        EXPECT_FALSE(spec_of(name).accepts(DType::kInt32));
        EXPECT_FALSE(spec_of(name).accepts(DType::kFloat8e4m3));
    }
}

#ifdef SLIMWIRE_HAVE_FLOAT_CONTROL
TEST(FloatEnvironment, FlushingAndRoundingOfTheCallerChangeNothing) {
    std::mt19937 random(test_seed());
    constexpr int64_t kCount = 1000;
    Guarded input = random_input(DType::kFloat32, kCount, 1e-38, random);
    reference::set_element(input.data(), DType::kFloat32, 900, NAN);
    for (const CodecSpec& spec : all_specs()) {
        for (const Isa isa : all_isas()) {
            ASSERT_TRUE(force_isa(isa).ok());
            std::vector<float> residual(kCount, 1e-40f);
            std::vector<float> other = residual;
            const Encoded expected = encode(spec, DType::kFloat32, input, kCount, &residual);
            const uint64_t saved = float_control();
            set_float_control(kFlushing | kTowardsZero | kTraps);
            const uint64_t hostile = float_control();  // a processor need not have all of it
            EncodeArgs to_encode = encode_args(spec, DType::kFloat32, 0, input.data(),
                                               const_cast<uint8_t*>(expected.bytes.data()));
            to_encode.chunk_elems = 1;
            to_encode.slot_bytes = 16;
            spec.codec->host.encode(to_encode);
            const uint64_t after = float_control();
            set_float_control(saved | kFlushing | kTowardsZero);
            const Encoded encoded = encode(spec, DType::kFloat32, input, kCount, &other);
            set_float_control(saved);
            EXPECT_EQ(after, hostile) << "the caller's settings must come back";
            EXPECT_EQ(encoded.bytes.copy(encoded.size), expected.bytes.copy(expected.size));
            EXPECT_EQ(residual, other) << spec.to_string() << " " << isa_name(isa);
        }
    }
}
#endif

}  // namespace
}  // namespace slimwire::testing
