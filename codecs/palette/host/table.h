// The host bodies of codec palette; see simd/table.h.
#pragma once

#include "codecs/palette/palette_format.h"
#include "codecs/simd/table.h"

namespace slimwire {

struct PaletteTable {
    // Counts are of the kind's elements: of bytes for PaletteKind::kBytes.
    // Writes at most `capacity` bytes; sets kStatusOverflow, and says so in the header, when that
    // is too little.
    void (*encode)(const EncodeChunk&, PaletteKind, int64_t capacity);
    // Reads at most `size` bytes; sets kStatusCorrupt for bytes that no encoder writes, and
    // kStatusOverflow where the encoder did, which only a `slotted` one can.
    void (*decode)(const DecodeChunk&, PaletteKind, int64_t size, bool slotted);
};

SLIMWIRE_HOST_FAMILY(PaletteTable, host_palette, avx512)

}  // namespace slimwire
