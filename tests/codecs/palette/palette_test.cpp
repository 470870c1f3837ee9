// What the palette codec promises: every bit comes back, for every element type, size and
// instruction set, in the bytes that FORMAT.md gives; slots are kept. Foreign bytes:
// palette_corruption_test.cpp; what an encoder chooses: palette_choice_test.cpp; the ratios:
// palette_ratio_test.cpp.
#include <algorithm>

#include "codecs/palette/palette_format.h"
#include "tests/codecs/palette/palette_fixture.h"

namespace slimwire::testing {
namespace {

TEST_F(Palette, EveryBitOfEveryTypeAndSizeComesBackInTheBytesOfTheReference) {
    for_all([&](DType dtype) {
        for (const Data data : kAllData) {
            for (const int64_t count :
                 {0,  1,   2,   3,   7,   8,    15,   16,   17,   63,         64,
                  65, 127, 255, 256, 257, 1009, 4095, 4096, 4097, 4096 + 255, 2 * 4096 + 1000}) {
                expect_exact(dtype, filled(dtype, count, data), count);
            }
        }
    });
}

TEST_F(Palette, All65536PatternsInAnyOrder) {
    std::vector<uint16_t> patterns(65536);
    for (size_t i = 0; i < patterns.size(); ++i) {
        patterns[i] = static_cast<uint16_t>(i);
    }
    for (int order = 0; order < 3; ++order) {
        for (const Isa isa : all_isas()) {
            ASSERT_TRUE(force_isa(isa).ok());
            for (const DType dtype : {DType::kBfloat16, DType::kFloat16, DType::kUint8}) {
                Guarded input(2 * 65536);
                std::memcpy(input.data(), patterns.data(), 2 * 65536);
                expect_exact(dtype, input, input.size() / bytes_of(dtype));
            }
        }
        if (order == 0) {  // by low bits: nearly every exponent in every block
            std::sort(patterns.begin(), patterns.end(), [](uint16_t a, uint16_t b) {
                return std::pair(a & 127, a) < std::pair(b & 127, b);
            });
        } else {
            std::shuffle(patterns.begin(), patterns.end(), random_);
        }
    }
}

TEST_F(Palette, SpecialValuesAtEveryPositionOfACodedBlock) {
    for_all([&](DType dtype) {
        if (bytes_of(dtype) != 2 && dtype != DType::kFloat32) {
            return;
        }
        const int64_t count = 300;
        const uint32_t specials[] = {0x7FC1, 0xFF81, 0x7F80, 0xFF80, 0x8000, 1, 0x7C01, 0x7F800001};
        for (int64_t at = 0; at < count; at += 7) {
            Guarded input = filled(dtype, count, Data::kBell);
            const uint32_t special = specials[random_() % 8];
            std::memcpy(input.data() + at * bytes_of(dtype), &special,
                        static_cast<size_t>(bytes_of(dtype)));
            expect_exact(dtype, input, count);
        }
    });
}

// From 8 MiB on an output may go past the caches, line by line, where it is aligned to lines.
TEST_F(Palette, LargeOutputsAtEveryAlignment) {
    constexpr int64_t kBytes = (int64_t{8} << 20) + 9000;
    for (const DType dtype : {DType::kBfloat16, DType::kFloat16, DType::kFloat32, DType::kFloat64,
                              DType::kFloat8e5m2, DType::kUint8}) {
        const int64_t width = bytes_of(dtype);
        const int64_t count = kBytes / width;
        Guarded input(count * width);
        for (int64_t done = 0, part = 0; done < count; ++part) {
            const int64_t some = std::min<int64_t>(count - done, 2 * 4096 + 1000);
            if (part < std::ssize(kAllData)) {
                fill(input.data() + done * width, dtype, some, kAllData[part]);
            } else {
                std::memcpy(input.data() + done * width, input.data() + done * width / 2,
                            static_cast<size_t>(some * width));
            }
            done += some;
        }
        const Encoded encoded = encode(spec_, dtype, input, count);
        for (const int64_t shift : {int64_t{0}, width}) {
            SCOPED_TRACE(std::string(dtype_name(dtype)) + " shift " + std::to_string(shift) +
                         " seed " + std::to_string(seed_));
            Guarded output(input.size(), shift);
            decode(spec_, dtype, encoded.bytes.data(), count, output);
            ASSERT_EQ(output.copy(output.size()), input.copy(input.size()));
        }
    }
}

TEST_F(Palette, SlotsHoldOrSayTheyOverflow) {
    for_all([&](DType dtype) {
        const int64_t count = 3 * 4096 + 500;
        for (const Data data : {Data::kBell, Data::kManyZeros, Data::kRandom}) {
            const Guarded input = filled(dtype, count, data);
            const auto expected = reference::encode_palette(dtype, input.data(), count);
            for (const char* fraction : {"0.01", "0.12", "0.5", "0.75", "0.9", "1", "1.01"}) {
                const CodecSpec slot = spec_of(std::string("palette:slot=") + fraction);
                const int64_t size = slot.encoded_bytes(dtype, count);
                EXPECT_LE(size, spec_.encoded_bytes(dtype, count));
                Guarded output(slot_for(size));
                uint32_t status = 0;
                EncodeArgs to_encode = encode_args(slot, dtype, count, input.data(), output.data());
                to_encode.slot_bytes = slot_for(size);
                to_encode.status = &status;
                slot.codec->host.encode(to_encode);
                EXPECT_TRUE(output.margins_intact() && output.untouched_from(size));
                const bool fits = static_cast<int64_t>(expected.size()) <= size;
                ASSERT_EQ(status, fits ? 0u : uint32_t{kStatusOverflow}) << fraction;
                const auto checked = check_encoding(slot, dtype, count, output.data(), size);
                ASSERT_TRUE(checked.ok()) << checked.status().message();
                EXPECT_EQ(checked.value(), size);
                Guarded decoded(input.size());
                uint32_t decode_status = 0;
                DecodeArgs to_decode =
                    decode_args(slot, dtype, count, output.data(), decoded.data());
                to_decode.slot_bytes = slot_for(size);
                to_decode.status = &decode_status;
                slot.codec->host.decode(to_decode);
                ASSERT_EQ(decode_status, status);
                const auto copy = decoded.copy(decoded.size());
                ASSERT_TRUE(fits ? copy == input.copy(input.size())
                                 : copy == std::vector<uint8_t>(copy.size()));
                EXPECT_TRUE(std::all_of(output.data() + length_of(output.data()),
                                        output.data() + size,
                                        [](uint8_t byte) { return byte == 0; }));
                if (fits) {
                    EXPECT_EQ(output.copy(length_of(output.data())), expected);
                } else {
                    EXPECT_EQ(output.data()[4], kPaletteOverflow);
                    EXPECT_EQ(length_of(output.data()), kPaletteChunkHeader);
                }
            }
        }
    });
}

TEST_F(Palette, GoldenBytesOfTheWorkedExample) {
    // 16 times 1.0, then -2.5, 0, 3.0, a NaN: symbols 127 and 128, 0, 128, 255.
    std::vector<uint16_t> values(16, 0x3F80);
    values.insert(values.end(), {0xC020, 0x0000, 0x4040, 0x7FC1});
    Guarded input(40);
    std::memcpy(input.data(), values.data(), 40);
    // 20 elements would be 40 bytes raw, and are more than that coded: the payload is raw.
    const Encoded raw = encode(spec_, DType::kBfloat16, input, 20);
    EXPECT_EQ(length_of(raw.bytes.data()), 16 + 8 + 40);
    EXPECT_EQ(std::memcmp(raw.bytes.data() + 24, values.data(), 40), 0);

    values.insert(values.begin(), 44, 0x3F80);
    Guarded longer(128);
    std::memcpy(longer.data(), values.data(), 128);
    const Encoded coded = encode(spec_, DType::kBfloat16, longer, 64);
    std::vector<uint8_t> expected = {0x53, 0x4C, 0x70, 0x31, 0, 0, 0, 0, 0x88, 0, 0, 0, 0, 0, 0, 0};
    const auto add = [&](std::initializer_list<int> bytes) {
        for (const int byte : bytes) {
            expected.push_back(static_cast<uint8_t>(byte));
        }
    };
    add({0x11, 0, 0, 0, 0, 0, 0, 0});  // one payload, ends at 17 * 8; the table's padding
    // n - 1 = 63, n1 = n2 = n3 = 1: 63 + 2^12 + 2^25 + 2^38.
    add({0x3F, 0x10, 0x00, 0x02, 0x40, 0, 0, 0});
    // Sum (60 * 127 + 2 * 128 + 255) / 63 = 129, base 121: 127, 128, 0, then 135 downwards but
    // these.
    add({127, 128, 0, 135, 134, 133, 132, 131, 130, 129, 126, 125, 124, 0, 0, 0});
    for (int i = 0; i < 60; ++i) {
        add({0});
    }
    add({0x41, 0x00, 0x80, 0x82});     // fraction and sign: -1.25 * 2, 0, 1.5 * 2, NaN
    add({0, 0, 0, 0, 0, 0, 0, 0xD0});  // tier 1, bit 0: codes 1, 2, 1, 3 of elements 60..63
    add({0, 0, 0, 0, 0, 0, 0, 0xA0});  // bit 1
    add({1, 1, 1, 1, 1, 255});         // an escape in tiers 2 and 3, symbol 255
    while (expected.size() % 8 != 0) {
        add({0});
    }
    EXPECT_EQ(coded.bytes.copy(length_of(coded.bytes.data())), expected);
}

TEST_F(Palette, SpecificationAndTraits) {
    EXPECT_EQ(spec_.to_string(), "palette");
    EXPECT_EQ(spec_of("palette:slot=0.75").to_string(), "palette:slot=0.75");
    EXPECT_TRUE(spec_.traits(DType::kInt64).lossless);
    EXPECT_TRUE(spec_.traits(DType::kInt64).variable_size);
    EXPECT_FALSE(spec_of("palette:slot=0.75").traits(DType::kFloat32).variable_size);
    EXPECT_FALSE(spec_.reduces());
    for (const DType dtype : kAllTypes) {
        EXPECT_TRUE(spec_.accepts(dtype));
    }
}

}  // namespace
}  // namespace slimwire::testing
