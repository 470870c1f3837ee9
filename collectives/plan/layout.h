// How a message is cut: into segments (runs of elements with one codec), slices (codec and wire
// overlap slice by slice) and chunks (one a rank). A pure function of rank-equal facts; the formula
// is specified in collectives/FORMAT.md and must not change without a new wire version.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "codecs/codec.h"
#include "codecs/low_rank/low_rank.h"

namespace slimwire {

// What lies one behind the other in device memory begins at multiples of this, like allocations.
inline constexpr uint64_t kDeviceAlignment = 256;

[[nodiscard]] constexpr uint64_t aligned(uint64_t bytes,
                                         uint64_t alignment = kDeviceAlignment) noexcept {
    return (bytes + alignment - 1) / alignment * alignment;
}
[[nodiscard]] constexpr uint64_t floats(int64_t elems) noexcept {
    return static_cast<uint64_t>(elems) * sizeof(float);
}

// A run of elements of one buffer that travels with one codec, or as it is.
struct Segment {
    uint64_t offset_elems = 0;
    uint64_t count = 0;
    CodecSpec codec = {};      // without a codec: raw
    bool has_residual = true;  // it has residuals where the message has error feedback

    [[nodiscard]] bool raw() const noexcept { return codec.codec == nullptr; }
};

// Elements in chunks, one a rank. Rank r's chunk holds the elements
// [r * chunk_elems, min((r + 1) * chunk_elems, count)), possibly none.
struct Chunks {
    int64_t count = 0;        // elements
    int64_t chunk_elems = 0;  // a multiple of the granule
    int64_t slot_offset = 0;  // bytes from the start of a slot, multiple of 16

    [[nodiscard]] int64_t chunk_begin(int rank) const noexcept {
        return rank * chunk_elems < count ? rank * chunk_elems : count;
    }
    [[nodiscard]] int64_t chunk_count(int rank) const noexcept {
        return chunk_begin(rank + 1) - chunk_begin(rank);
    }
};

// The part of one segment with a codec that falls into one slice; not empty.
struct Piece : Chunks {
    uint64_t offset_elems = 0;  // in the buffer
    CodecSpec codec;
    DType dtype = DType::kFloat32;  // of the elements that the codec encodes and decodes
    bool has_residual = true;       // it has residuals where the message has error feedback
    // Among the pieces of all slices that have residuals, by offset_elems: which one it is, and how
    // many elements are in those before it.
    int64_t order = 0;
    int64_t residual_offset = 0;
};

// The part of all raw segments, as if they were one, that falls into one slice: its elements lie in
// a slot as they are.
struct RawPart : Chunks {
    struct Range {
        uint64_t offset_elems = 0;  // in the buffer
        int64_t begin = 0;          // in the part; it ends where the next begins
    };
    std::vector<Range> ranges;  // ascending
};
// Elements that a chunk of raw elements is a multiple of, whatever their type.
inline constexpr int64_t kRawGranule = 8;

// What crosses the wire in one exchange: every rank's slot has `slot_bytes` bytes.
struct Slice {
    std::vector<Piece> pieces;
    RawPart raw;             // behind the pieces in a slot; of no elements where nothing is raw
    int64_t slot_bytes = 0;  // multiple of 16
};

// A message whose matrices travel as their factors, which ranks sum (low_rank.cpp).
struct FactoredMessage {
    CodecSpec codec;
    int state_rank = 0;  // columns that a tensor's state has room for
    LowRankLayout factors;
    LowRankLayout transposed;  // of an autoencoder, whose right factors are made orthonormal
    RawPart raw;               // the elements of no matrix, one after another in one chunk
};

struct Layout {
    std::shared_ptr<const FactoredMessage> factored;  // then there are no slices; null elsewhere
    std::vector<Slice> slices;
    int64_t max_slot_bytes = 0;
    int64_t total_slot_bytes = 0;  // sum over slices
    int64_t workspace_bytes = 0;   // that the kernels of the neediest operation ask for
    // Where a codec adapts its threshold (codecs/sparse/threshold_control.h): the state of a run,
    // and where in the workspace lies one for an encoding whose tensor keeps none; 0 elsewhere.
    int64_t threshold_bytes = 0;
    int64_t spare_threshold_offset = 0;
    // Of the level inside nodes, where the algorithm has one; elements travel there as they are
    // when empty.
    std::optional<CodecSpec> intra;

    // Of those that have residuals where the message has error feedback: number and elements.
    [[nodiscard]] uint64_t fed_pieces() const noexcept;
    [[nodiscard]] uint64_t fed_elems() const noexcept;
    [[nodiscard]] int64_t largest_piece() const noexcept;     // elements
    [[nodiscard]] int64_t largest_raw_part() const noexcept;  // elements
};

// Completes the workspace: of messages of `blocks` blocks, of which one operation may take all as
// its chunks, and for thresholds of runs of at most `chunks` chunks, where a codec has them.
void reserve_workspace(int64_t blocks, int64_t chunks, Layout* layout);

// `matrices`: ascending, apart from each other.
Layout factored_layout(const CodecSpec& codec,
                       int state_rank,
                       const std::vector<MatrixShape>& matrices,
                       uint64_t count);

// `slice_bytes` is the wanted size of a slice in bytes of what is encoded; 0 means one slice.
// `fed_dtype`: what is encoded of segments that feed; elements of `dtype` when empty.
Layout make_layout(const std::vector<Segment>& segments,
                   DType dtype,
                   int ranks,
                   uint64_t slice_bytes,
                   std::optional<DType> fed_dtype = {});

}  // namespace slimwire
