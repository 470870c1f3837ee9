// What the tests of the palette codec share: the element types, data of several kinds as each of
// them holds it, and the round trip against the reference.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "codecs/float16.h"
#include "tests/codecs/fixture.h"
#include "tests/codecs/palette/reference_palette.h"

namespace slimwire::testing {

inline constexpr DType kAllTypes[] = {DType::kBfloat16, DType::kFloat32,    DType::kFloat64,
                                      DType::kFloat16,  DType::kFloat8e4m3, DType::kFloat8e5m2,
                                      DType::kUint8,    DType::kInt8,       DType::kInt32,
                                      DType::kUint32,   DType::kInt64,      DType::kUint64};

inline int64_t bytes_of(DType dtype) {
    return static_cast<int64_t>(dtype_bytes(dtype));
}

// The bytes of an encoding, from its header.
inline int64_t length_of(const uint8_t* encoding) {
    int64_t total = 0;
    std::memcpy(&total, encoding + 8, 8);
    return total;
}

class Palette : public ::testing::Test {
  protected:
    template <class Body>
    void for_all(Body body) {
        for (const Isa isa : all_isas()) {
            ASSERT_TRUE(force_isa(isa).ok());
            for (const DType dtype : kAllTypes) {
                SCOPED_TRACE(std::string(isa_name(isa)) + " " + dtype_name(dtype) + " seed " +
                             std::to_string(seed_));
                body(dtype);
                if (HasFatalFailure()) {
                    return;
                }
            }
        }
    }

    // Values as an element type holds them: a bell curve of some width, with a part of zeros in
    // runs, or random bits. Integers get what a float64 of that value rounds to.
    enum class Data { kBell, kManyZeros, kScatteredZeros, kAllZero, kWide, kRandom };
    static constexpr Data kAllData[] = {Data::kBell,    Data::kManyZeros, Data::kScatteredZeros,
                                        Data::kAllZero, Data::kWide,      Data::kRandom};

    void fill(uint8_t* to, DType dtype, int64_t count, Data data) {
        std::normal_distribution<double> bell(0, 1);
        const int64_t width = bytes_of(dtype);
        bool zero = false;
        for (int64_t i = 0; i < count; ++i) {
            if (i % 320 == 0) {
                zero = random_() % 10 != 0;
            }
            double value = bell(random_);
            if (data == Data::kAllZero || (data == Data::kManyZeros && zero) ||
                (data == Data::kScatteredZeros && random_() % 2 == 0)) {
                value = 0;
            } else if (data == Data::kWide) {
                value = std::ldexp(value, static_cast<int>(random_() % 40) - 30);
            }
            uint64_t bits = static_cast<uint64_t>(static_cast<int64_t>(value * 20));
            if (data == Data::kRandom) {
                bits = uint64_t{random_()} << 32 | random_();
            } else if (dtype == DType::kFloat64) {
                bits = std::bit_cast<uint64_t>(value);
            } else if (dtype == DType::kFloat32) {
                bits = std::bit_cast<uint32_t>(static_cast<float>(value));
            } else if (dtype == DType::kBfloat16) {
                bits = float_to_bfloat16(static_cast<float>(value));
            } else if (dtype == DType::kFloat16) {
                bits = float_to_float16(static_cast<float>(value));
            } else if (dtype == DType::kFloat8e4m3 || dtype == DType::kFloat8e5m2) {
                const int less = dtype == DType::kFloat8e4m3 ? 7 : 8;  // fraction bits cut off
                bits = float_to_float16(static_cast<float>(value)) >> less & 0xFF;
            }
            std::memcpy(to + i * width, &bits, static_cast<size_t>(width));
        }
    }

    Guarded filled(DType dtype, int64_t count, Data data) {
        Guarded input(count * bytes_of(dtype));
        fill(input.data(), dtype, count, data);
        return input;
    }

    void expect_exact(DType dtype, const Guarded& input, int64_t count) {
        const Encoded encoded = encode(spec_, dtype, input, count);
        const uint8_t* const bytes = encoded.bytes.data();
        if (count == 0) {
            EXPECT_EQ(encoded.size, 0);
            return;
        }
        const int64_t total = length_of(bytes);
        ASSERT_EQ(encoded.bytes.copy(total), reference::encode_palette(dtype, input.data(), count))
            << "count " << count;
        EXPECT_TRUE(encoded.bytes.untouched_from(total));
        Guarded output(input.size());
        decode(spec_, dtype, bytes, count, output);
        ASSERT_EQ(output.copy(output.size()), input.copy(input.size())) << "count " << count;
        const auto checked = check_encoding(spec_, dtype, count, bytes, total);
        ASSERT_TRUE(checked.ok()) << checked.status().message();
        EXPECT_EQ(checked.value(), total);
    }

    double ratio_of(DType dtype, const Guarded& input, int64_t count) {
        const Encoded encoded = encode(spec_, dtype, input, count);
        return static_cast<double>(input.size()) /
               static_cast<double>(length_of(encoded.bytes.data()));
    }

    uint32_t seed_ = test_seed();
    std::mt19937 random_{seed_};
    CodecSpec spec_ = spec_of("palette");
};

}  // namespace slimwire::testing
