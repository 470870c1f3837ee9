// What an encoding of codec bounded looks like, as host bodies and kernels need it: sizes and
// places worked out once for a chunk. Bytes: FORMAT.md, "Error bounded".
#pragma once

#include <cstdint>

#include "codecs/args.h"

namespace slimwire {

constexpr int kBoundedBlock = 32;         // elements that share a width: one word for each bit
constexpr int kBoundedGroupBlocks = 32;   // blocks that share a table entry
constexpr int64_t kBoundedGroup = 1024;   // elements of them
constexpr int64_t kBoundedHeader = 16;    // bytes
constexpr uint32_t kBoundedRaw = 32;      // width of a block of fp32
constexpr uint32_t kBoundedPoison = 255;  // width of a block with something not finite: no payload
constexpr int kBoundedLargestPower = 20;  // codes are at most 2^20
constexpr uint32_t kBoundedMostBits = 22;

#ifdef __CUDACC__
#define SLIMWIRE_BOUNDED_BOTH __host__ __device__
#else
#define SLIMWIRE_BOUNDED_BOTH
#endif

// Words of 4 bytes that a block of this width takes.
SLIMWIRE_BOUNDED_BOTH constexpr uint32_t bounded_words(uint32_t width) {
    return width == kBoundedPoison ? 0 : width;
}
// Whether an encoder writes this width.
SLIMWIRE_BOUNDED_BOTH constexpr bool bounded_valid(uint32_t width) {
    return width == 0 || (width >= 2 && width <= kBoundedMostBits) || width == kBoundedRaw ||
           width == kBoundedPoison;
}

// One chunk of `count` elements.
struct BoundedPlan {
    int64_t count;
    int64_t blocks;  // ceil(count / kBoundedBlock)
    int64_t groups;
    int64_t widths;    // where they begin, bytes from the start of the encoding: 32 for each group
    int64_t starts;    // one word for each group
    int64_t payload;   // words of blocks
    int64_t capacity;  // of these, words
    int64_t bytes;
    float step;          // a power of two, at most twice the bound
    float inverse;       // 1 / step
    uint32_t raw_from;   // magnitude bits from which on a block is stored raw
    uint32_t step_bits;  // of fp32
};
[[nodiscard]] BoundedPlan bounded_plan(const CodecParams& params, DType dtype, int64_t count);

// Where an encoding begins: the block whose turn it is at a step. Steps follow one another by the
// golden ratio, so every block's turns come evenly whatever the number of blocks.
struct BoundedTurn {
    int64_t group;
    uint32_t block;  // of every group
};
SLIMWIRE_BOUNDED_BOTH inline BoundedTurn bounded_turn(uint32_t step, int64_t blocks) {
    const uint32_t turn = step * 0x9E3779B9u;
    const auto first =
        static_cast<int64_t>(static_cast<uint64_t>(turn) * static_cast<uint64_t>(blocks) >> 32);
    return {first / kBoundedGroupBlocks, static_cast<uint32_t>(first % kBoundedGroupBlocks)};
}

}  // namespace slimwire
