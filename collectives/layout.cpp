#include "collectives/layout.h"

#include <algorithm>

namespace slimwire {
namespace {

constexpr uint64_t kMaxSlices = 64;
constexpr int64_t kSlotAlignment = 16;

int64_t round_up(int64_t value, int64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

Layout make_layout(const std::vector<Segment>& segments,
                   DType dtype,
                   int ranks,
                   uint64_t slice_bytes) {
    uint64_t total = 0;
    for (const Segment& segment : segments) {
        total += segment.count;
    }
    Layout layout;
    if (total == 0) {
        return layout;
    }
    const uint64_t bytes = total * dtype_bytes(dtype);
    const uint64_t slices =
        slice_bytes == 0
            ? 1
            : std::clamp<uint64_t>((bytes + slice_bytes / 2) / slice_bytes, 1, kMaxSlices);
    // Every segment is cut into the same number of parts, so each slice holds a share of each
    // codec.
    for (uint64_t index = 0; index < slices; ++index) {
        Slice slice;
        for (const Segment& segment : segments) {
            const int64_t granule = segment.codec.granule(dtype);
            const int64_t step = round_up(
                static_cast<int64_t>((segment.count + slices - 1) / slices), granule * ranks);
            const int64_t begin =
                std::min(static_cast<int64_t>(index) * step, static_cast<int64_t>(segment.count));
            const int64_t end = std::min(begin + step, static_cast<int64_t>(segment.count));
            if (begin == end) {
                continue;
            }
            Piece piece;
            piece.offset_elems = segment.offset_elems + static_cast<uint64_t>(begin);
            piece.count = end - begin;
            piece.chunk_elems = round_up((piece.count + ranks - 1) / ranks, granule);
            piece.slot_offset = slice.slot_bytes;
            piece.codec = segment.codec;
            slice.slot_bytes +=
                round_up(segment.codec.encoded_bytes(dtype, piece.chunk_elems), kSlotAlignment);
            for (const int64_t count : {piece.count, piece.chunk_elems}) {
                layout.workspace_bytes =
                    std::max(layout.workspace_bytes,
                             piece.codec.workspace_bytes(dtype, count, piece.chunk_elems));
            }
            slice.pieces.push_back(piece);
        }
        if (!slice.pieces.empty()) {
            layout.max_slot_bytes = std::max(layout.max_slot_bytes, slice.slot_bytes);
            layout.total_slot_bytes += slice.slot_bytes;
            layout.slices.push_back(std::move(slice));
        }
    }
    for (Slice& slice : layout.slices) {
        for (Piece& piece : slice.pieces) {
            for (const Slice& other : layout.slices) {
                piece.order += std::count_if(
                    other.pieces.begin(), other.pieces.end(),
                    [&](const Piece& before) { return before.offset_elems < piece.offset_elems; });
            }
        }
    }
    return layout;
}

uint64_t Layout::pieces() const noexcept {
    uint64_t pieces = 0;
    for (const Slice& slice : slices) {
        pieces += slice.pieces.size();
    }
    return pieces;
}

int64_t Layout::largest_piece() const noexcept {
    int64_t largest = 0;
    for (const Slice& slice : slices) {
        for (const Piece& piece : slice.pieces) {
            largest = std::max(largest, piece.count);
        }
    }
    return largest;
}

}  // namespace slimwire
