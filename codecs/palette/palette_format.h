// Numbers of the palette format (FORMAT.md, "Palette"), shared by host bodies and tests.
// Only constants and plain types: objects compiled for any instruction set read this header.
#pragma once

#include <cstdint>

#include "codecs/base/dtype.h"

namespace slimwire {

// What an element looks like to the codec. kBytes: not a float, taken byte by byte.
enum class PaletteKind : uint8_t {
    kBytes = 0,
    kFloat8e4m3 = 1,
    kFloat8e5m2 = 2,
    kFloat16 = 3,
    kBfloat16 = 4,
    kFloat32 = 5,
    kFloat64 = 6,
};

inline constexpr int kPaletteBlock = 4096;      // elements
inline constexpr int kPaletteChunkHeader = 16;  // bytes before the table of block ends
inline constexpr int kPaletteHeader = 24;       // bytes of a coded block's header
inline constexpr int kPaletteEntries = 13;      // 3 + 3 + 7 symbols of the three tiers

inline constexpr uint32_t kPaletteMagic = 0x31704C53;  // "SLp1"
inline constexpr uint32_t kPaletteOverflow = 1;        // flag: the slot was too small

// The palette is chosen from this many elements: runs at equal distances, or all of a short block.
inline constexpr int kPaletteSamples = 256;
// Zero mode is taken above one zero in so many elements: its marks cost a bit an element, and a
// zero that is coded 10 to 11.
inline constexpr int kPaletteZeroPart = 8;
inline constexpr int kPaletteRuns = 16;
inline constexpr int kPaletteRun = kPaletteSamples / kPaletteRuns;
// Elements from the begin of one run to the next, of `n` elements. The last run ends where the
// block does; in a block of 4096 they start 272 apart, so that rows of a power of two are not met
// at the same columns only.
constexpr int palette_run_distance(int n) {
    return (n - kPaletteRun) / (kPaletteRuns - 1);
}

// 0 and the 15 symbols from `base` on compete for the palette; base = mean - 10 within these.
inline constexpr int kPaletteBelowMean = 8;
inline constexpr int kPaletteLeastBase = 1;
inline constexpr int kPaletteMostBase = 241;

}  // namespace slimwire
