// What the kernels of the palette codec are told beside an operation's arguments: worked out on the
// host (palette.cpp) for the launchers (palette.cu).
#pragma once

#include <cstdint>

#include "codecs/args.h"

namespace slimwire {

// Counts are of the coded elements: bytes for integers.
struct PaletteWork {
    int64_t count;
    int64_t chunk_elems;  // at most count
    int64_t chunks;
    int64_t blocks;         // of a full chunk
    int64_t capacity;       // bytes of the encoding of a full chunk
    int64_t last_capacity;  // of the last chunk
    uint64_t nonce;         // of this launch; lower 24 bits 0, the others not
    int element_bytes;      // of the user's type
    int coded_bytes;        // of a coded element
    int raw_bits;
    bool rotates;
    bool fills;  // the encoder itself zeroes the rest of fixed slots
};

// For an operation with elements. Every call draws another nonce.
PaletteWork palette_work(const EncodeArgs& args);
PaletteWork palette_work(const DecodeArgs& args);

// One block's word to the blocks behind it, for look-back: `tag` is nonce + 1 once `aggregate`, the
// payload's size in units of 8 bytes, is valid, and nonce + 2 once `prefix`, with all before it,
// is.
struct PaletteState {
    unsigned long long tag;
    unsigned long long aggregate;
    unsigned long long prefix;
};

// The encoder's workspace holds these counters and a PaletteState for every block of every chunk.
// Any content will do: what is there from before has another nonce.
inline constexpr int kPaletteCounters = 2;

}  // namespace slimwire
