// What the kernels of codec bounded are told beside an operation's arguments: worked out on the
// host (bounded.cpp) for the launchers (bounded.cu).
#pragma once

#include <cstdint>

#include "codecs/bounded/bounded_format.h"
#include "codecs/launchers.h"
#include "codecs/look_back.h"

namespace slimwire {

struct BoundedWork {
    BoundedPlan full;  // of every chunk but a short last one
    BoundedPlan last;
    int64_t chunk_elems;  // at most the operation's elements
    int64_t chunks;
    int64_t tiles;   // of a full chunk, a thread block's each
    uint64_t nonce;  // of this launch; lower 24 bits 0, the others not
};
constexpr int64_t kBoundedTileGroups = 8;  // a warp's each
[[nodiscard]] BoundedWork bounded_work(const CodecParams& params,
                                       DType dtype,
                                       int64_t count,
                                       int64_t chunk_elems);
// The workspace of encoders: kLookBackCounters words, then a LookBackState for every tile of every
// chunk, whose values are words of payload.

struct BoundedKernels;

}  // namespace slimwire
