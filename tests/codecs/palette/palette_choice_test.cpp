// What the palette encoder chooses, at the edges of its choices: the bytes must be those of the
// reference for every instruction set, whatever a set does to decide sooner.
#include <algorithm>

#include "codecs/palette/palette_format.h"
#include "tests/codecs/palette/palette_fixture.h"

namespace slimwire::testing {
namespace {

class PaletteChoice : public Palette {
  protected:
    // bf16 elements with these exponents, and random signs and fractions.
    template <class Draw>
    Guarded with_exponents(int64_t count, Draw draw) {
        Guarded input(2 * count);
        for (int64_t i = 0; i < count; ++i) {
            const auto bits =
                static_cast<uint16_t>(draw(i) << 7 | (random_() & 0x7F) | (random_() & 1) << 15);
            std::memcpy(input.data() + 2 * i, &bits, 2);
        }
        return input;
    }

    void expect_exact_on_all(const Guarded& input, int64_t count) {
        for (const Isa isa : all_isas()) {
            ASSERT_TRUE(force_isa(isa).ok());
            SCOPED_TRACE(isa_name(isa));
            expect_exact(DType::kBfloat16, input, count);
        }
    }

    bool is_raw(const Guarded& input, int64_t count) {
        const Encoded encoded = encode(spec_, DType::kBfloat16, input, count);
        return length_of(encoded.bytes.data()) >= kPaletteChunkHeader + 8 + input.size();
    }
};

// A payload is as long as the raw block where about 46 % of its symbols are in no palette.
TEST_F(PaletteChoice, BlocksAroundTheRawSize) {
    int raw = 0;
    int coded = 0;
    for (const int64_t count : {kPaletteBlock, kPaletteBlock - 63, 1000}) {
        for (int percent = 36; percent <= 60; ++percent) {
            const Guarded input = with_exponents(count, [&](int64_t) {
                const bool far = static_cast<int>(random_() % 100) < percent;
                return far ? 1 + random_() % 254 : 120 + random_() % 3;
            });
            SCOPED_TRACE(std::to_string(percent) + " % of " + std::to_string(count) + " seed " +
                         std::to_string(seed_));
            expect_exact_on_all(input, count);
            ++(is_raw(input, count) ? raw : coded);
        }
    }
    EXPECT_GT(raw, 5);
    EXPECT_GT(coded, 5);
}

// Most of the sample lies outside the palette, little of the block does.
TEST_F(PaletteChoice, SamplesThatMislead) {
    constexpr int kDistance = palette_run_distance(kPaletteBlock);
    const Guarded input = with_exponents(kPaletteBlock, [&](int64_t i) {
        const int64_t sampled = i % kDistance;
        return sampled < 9 ? (sampled % 2 == 0 ? 40u : 210u) : 120 + random_() % 3;
    });
    expect_exact_on_all(input, kPaletteBlock);
    EXPECT_FALSE(is_raw(input, kPaletteBlock));
}

// Symbols 0 and 64, 128 or 192 that are both in the last tier have the same low bits.
TEST_F(PaletteChoice, SymbolsOfTheLastTierWithEqualLowBits) {
    for (const int other : {64, 128, 192}) {
        const Guarded input = with_exponents(4 * kPaletteBlock, [&](int64_t) {
            const auto draw = static_cast<int>(random_() % 100);
            return static_cast<unsigned>(draw < 4 ? 0 : draw < 8 ? other : other - 1 - draw % 8);
        });
        SCOPED_TRACE(std::to_string(other) + " seed " + std::to_string(seed_));
        expect_exact_on_all(input, 4 * kPaletteBlock);
        const Encoded encoded = encode(spec_, DType::kBfloat16, input, 4 * kPaletteBlock);
        const uint8_t* const palette =
            encoded.bytes.data() + kPaletteChunkHeader + 4 * sizeof(uint32_t) + 8;
        const uint8_t* const last_tier = palette + 6;
        const uint8_t* const end = palette + kPaletteEntries;
        EXPECT_NE(std::find(last_tier, end, 0), end);
        EXPECT_NE(std::find(last_tier, end, other), end);
    }
}

}  // namespace
}  // namespace slimwire::testing
