// What the kernels of the palette codec are told beside an operation's arguments: worked out on the
// host (palette.cpp) for the launchers (palette.cu).
#pragma once

#include <cstdint>

#include "codecs/args.h"
#include "codecs/look_back.h"

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
    bool slotted;  // `slot` > 0: of a fixed size, and may say that it overflowed
    bool fills;    // the encoder itself zeroes the rest of fixed slots
};

// For an operation with elements. Every call draws another nonce.
PaletteWork palette_work(const EncodeArgs& args);
PaletteWork palette_work(const DecodeArgs& args);

// The encoder's workspace: kLookBackCounters words, then a LookBackState for every block of every
// chunk (codecs/look_back.h), whose values are payload sizes in units of 8 bytes.

}  // namespace slimwire
