// Moves elements between several ranges of a buffer and the chunks of a message, where they lie one
// after another: the parts of a message that travel as they are, all of a slice in one launch. Not
// a codec: they are summed by sum_rows.h.
//
// Called by the algorithms in collectives/. A host body and a kernel, equal to the bit.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/args.h"

namespace slimwire {

// Elements that lie in several ranges of a buffer and one after another in chunks: what of a
// message travels as it is. The elements of range r are those from `begin` of it to `begin` of the
// next, or to `end`; element i of all lies in chunk i / chunk_elems.
struct MovedRange {
    int64_t element;  // of the buffer, where the range begins
    int64_t begin;    // among the elements of all ranges of the message; ascending
};
inline constexpr int kMostMovedRanges = 240;  // of one launch
// to = s * from with s = scale * (scale_ptr ? *scale_ptr : 1), rounded twice, NaN canonical; with a
// scale of 1 and no scale_ptr the bits as they are. Types: fp32, fp16, bf16. Writes no byte beside
// these elements.
struct MoveRangesArgs {
    void* buffer;                     // aligned to the element size; only read where to_chunks
    void* chunks;                     // chunk c at chunks + c * chunk_bytes; 16-byte aligned
    int64_t chunk_elems;              // a multiple of kMovedTogether
    int64_t chunk_bytes;              // a multiple of 16
    int64_t end;                      // of the last range, as its begin
    const void* scale_ptr = nullptr;  // or one element of `dtype`, read when it runs
    float scale = 1.0f;
    DType dtype;
    bool to_chunks;      // else from them
    int32_t ranges;      // > 0
    int32_t max_blocks;  // thread blocks that the kernel may occupy; 0: as many as run at once
    MovedRange list[kMostMovedRanges];
};
inline constexpr int64_t kMovedTogether = 8;
static_assert(sizeof(MoveRangesArgs) <= 4096 - 64);

SLIMWIRE_OPERATION(move_ranges, MoveRangesArgs)

}  // namespace slimwire
