// Codes of codec bounded in kernels: four neighbouring threads hold the 32 elements of a block,
// eight each, and with them one byte of every word of bits. The bodies of
// codecs/bounded/host/bounded_planes.h.
#pragma once

#include "codecs/bounded/bounded_format.h"
#include "codecs/gpu/elements.cuh"
#include "codecs/gpu/work.cuh"

namespace slimwire {
namespace {

constexpr float kBoundedMagic = 0x1.8p23f;  // whose last bit is a whole step

// Bit i of byte k becomes bit k of byte i (Warren, Hacker's Delight, 7-3).
__device__ __forceinline__ uint64_t transposed_bits(uint64_t x) {
    uint64_t t = (x ^ x >> 7) & 0x00AA00AA00AA00AAu;
    x ^= t ^ t << 7;
    t = (x ^ x >> 14) & 0x0000CCCC0000CCCCu;
    x ^= t ^ t << 14;
    t = (x ^ x >> 28) & 0x00000000F0F0F0F0u;
    return x ^ t ^ t << 28;
}

// Writes eight codes, with rubbish above `width` bits; `to`: the payload of the block.
__device__ __forceinline__ void put_bounded_codes(const uint32_t (&code)[kPerThread],
                                                  uint32_t width,
                                                  uint8_t* to) {
    to += threadIdx.x % 4;
    for (uint32_t plane = 0; plane < width; plane += 8) {
        uint64_t x = 0;
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            x |= static_cast<uint64_t>(code[k] >> plane & 0xFF) << (8 * k);
        }
        x = transposed_bits(x);
#pragma unroll
        for (uint32_t j = 0; j < 8; ++j) {
            if (plane + j < width) {
                to[4 * (plane + j)] = static_cast<uint8_t>(x >> (8 * j));
            }
        }
    }
}

// The values of eight codes.
__device__ __forceinline__ void get_bounded_codes(const uint8_t* from,
                                                  uint32_t width,
                                                  float step,
                                                  Eight& x) {
    from += threadIdx.x % 4;
    uint32_t code[kPerThread] = {};
    for (uint32_t plane = 0; plane < width; plane += 8) {
        uint64_t bytes = 0;
#pragma unroll
        for (uint32_t j = 0; j < 8; ++j) {
            if (plane + j < width) {
                bytes |= static_cast<uint64_t>(from[4 * (plane + j)]) << (8 * j);
            }
        }
        bytes = transposed_bits(bytes);
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            code[k] |= static_cast<uint32_t>(bytes >> (8 * k) & 0xFF) << plane;
        }
    }
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
        const int32_t q = static_cast<int32_t>(code[k] << (32 - width)) >> (32 - width);
        x.v[k] = __fmul_rn(__int2float_rn(q), step);
    }
}

// A warp's view of a group: lane l has the width of block l and where it begins.
struct BoundedBlocks {
    uint32_t width;
    uint32_t begin;  // words of payload
    bool valid;      // else nothing is there

    // `words` of block l in lane l: those of all blocks that come before it, from block `turn` on.
    __device__ static __forceinline__ uint32_t before(uint32_t words,
                                                      uint32_t turn,
                                                      uint32_t* total) {
        constexpr unsigned kAll = 0xFFFFFFFFu;
        const unsigned lane = threadIdx.x % kWarpThreads;
        const uint32_t own =
            __shfl_sync(kAll, words, static_cast<int>((lane + turn) % kWarpThreads));
        uint32_t sum = own;
#pragma unroll
        for (unsigned by = 1; by < kWarpThreads; by *= 2) {
            const uint32_t other = __shfl_up_sync(kAll, sum, by);
            sum += lane >= by ? other : 0;
        }
        *total = __shfl_sync(kAll, sum, kWarpThreads - 1);
        return __shfl_sync(kAll, sum - own,
                           static_cast<int>((lane - turn) % unsigned{kWarpThreads}));
    }

    __device__ static __forceinline__ BoundedBlocks of(const uint8_t* encoding,
                                                       const BoundedPlan& plan,
                                                       int64_t group) {
        const unsigned lane = threadIdx.x % kWarpThreads;
        const uint32_t turn = reinterpret_cast<const uint32_t*>(encoding)[1];
        const uint32_t width = encoding[plan.widths + group * kBoundedGroupBlocks + lane];
        const uint32_t start = reinterpret_cast<const uint32_t*>(encoding + plan.starts)[group];
        uint32_t total = 0;
        const uint32_t ahead = before(bounded_words(width), turn % kBoundedGroupBlocks, &total);
        const bool fits = int64_t{start} + total <= plan.capacity;
        const bool right = __ballot_sync(0xFFFFFFFFu, bounded_valid(width)) == 0xFFFFFFFFu && fits;
        return {right ? width : 0, start + ahead, right && turn < kBoundedGroupBlocks};
    }

    // The eight values of this thread in span `span` of the group.
    __device__ __forceinline__ void get(const uint8_t* encoding,
                                        const BoundedPlan& plan,
                                        int span,
                                        Eight& x) const {
        constexpr unsigned kAll = 0xFFFFFFFFu;
        const int block = static_cast<int>(8 * span + threadIdx.x % kWarpThreads / 4);
        const uint32_t bits = __shfl_sync(kAll, width, block);
        const uint32_t at = __shfl_sync(kAll, begin, block);
        const uint8_t* from = encoding + plan.payload + 4 * int64_t{at};
        if (bits == kBoundedRaw) {
            const float* values = reinterpret_cast<const float*>(from) + threadIdx.x % 4 * 8;
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                x.v[k] = values[k];
            }
        } else if (bits != 0 && bits != kBoundedPoison) {
            get_bounded_codes(from, bits, plan.step, x);
        } else {
            const float value = bits == 0 ? 0.0f : __uint_as_float(kNanFloat32);
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                x.v[k] = value;
            }
        }
    }
};

}  // namespace
}  // namespace slimwire
