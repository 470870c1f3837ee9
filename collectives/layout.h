// How a message is cut: into segments (runs of elements with one codec), slices (codec and wire
// overlap slice by slice) and chunks (one a rank). A pure function of rank-equal facts; the formula
// is specified in collectives/FORMAT.md and must not change without a new wire version.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "codecs/codec.h"

namespace slimwire {

// A run of elements of one buffer that travels with one codec.
struct Segment {
    uint64_t offset_elems = 0;
    uint64_t count = 0;
    CodecSpec codec;
};

// The part of one segment that falls into one slice. Rank r's chunk holds the elements
// [offset + r * chunk_elems, offset + min((r + 1) * chunk_elems, count)), possibly none.
struct Piece {
    uint64_t offset_elems = 0;  // in the buffer
    int64_t count = 0;          // elements, > 0
    int64_t chunk_elems = 0;    // a multiple of the codec's granule
    int64_t slot_offset = 0;    // bytes from the start of a slot, multiple of 16
    CodecSpec codec;
    int64_t order = 0;  // among the pieces of all slices, by offset_elems

    [[nodiscard]] int64_t chunk_begin(int rank) const noexcept {
        return rank * chunk_elems < count ? rank * chunk_elems : count;
    }
    [[nodiscard]] int64_t chunk_count(int rank) const noexcept {
        return chunk_begin(rank + 1) - chunk_begin(rank);
    }
};

// What crosses the wire in one exchange: every rank's slot has `slot_bytes` bytes.
struct Slice {
    std::vector<Piece> pieces;
    int64_t slot_bytes = 0;  // multiple of 16
};

struct Layout {
    std::vector<Slice> slices;
    int64_t max_slot_bytes = 0;
    int64_t total_slot_bytes = 0;  // sum over slices
    int64_t workspace_bytes = 0;   // that the kernels of the neediest operation ask for
    // Of the level inside nodes, where the algorithm has one; elements travel there as they are
    // when empty.
    std::optional<CodecSpec> intra;

    [[nodiscard]] uint64_t pieces() const noexcept;
    [[nodiscard]] int64_t largest_piece() const noexcept;  // elements
};

// `slice_bytes` is the wanted size of a slice in bytes of `dtype`; 0 means one slice.
Layout make_layout(const std::vector<Segment>& segments,
                   DType dtype,
                   int ranks,
                   uint64_t slice_bytes);

}  // namespace slimwire
