// What the kernels of the block integers are made of: scales, codes and rotations as one thread
// with eight neighbours sees them, and what a warp does together. Byte for byte the steps of
// codecs/block_int/host/block_int_tile.h and rotation.h. Rules: FORMAT.md.
#pragma once

#include "codecs/block_int/block_int_shape.h"
#include "codecs/gpu/code_stream.cuh"
#include "codecs/gpu/elements.cuh"
#include "codecs/gpu/random.cuh"
#include "codecs/gpu/work.cuh"

namespace slimwire {
namespace {

constexpr int kSpans = 2;  // of 256 elements that a warp takes at a time: the longest rotation

// Evaluated here because device code may not call constant expressions of host functions.
template <int kBits>
struct Limits {
    static constexpr float kLargestCode = largest_code(kBits);
    static constexpr int kLargest = largest_code(kBits);
    static constexpr float kReach = 1 << (kBits - 1);
    static constexpr uint32_t kMaxScaleBits = max_scale_bits(kBits);
};

__device__ __forceinline__ void put_scale(uint8_t* scales, int64_t b, uint32_t bits, int bytes) {
    if (bytes == 4) {
        reinterpret_cast<uint32_t*>(scales)[b] = bits;
    } else {
        reinterpret_cast<uint16_t*>(scales)[b] = static_cast<uint16_t>(bits >> 16);
    }
}
__device__ __forceinline__ uint32_t get_scale(const uint8_t* scales, int64_t b, int bytes) {
    return bytes == 4 ? reinterpret_cast<const uint32_t*>(scales)[b]
                      : static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(scales)[b]) << 16;
}

// fp32 bits of the scale for a block of this largest magnitude, neither zero nor non-finite.
template <int kBits>
__device__ __forceinline__ uint32_t choose_scale(uint32_t magnitude, int scale_bytes) {
    uint32_t bits =
        __float_as_uint(__fdiv_rn(__uint_as_float(magnitude), Limits<kBits>::kLargestCode));
    if (scale_bytes == 2) {
        bits = (bits + 0xFFFF) & 0xFFFF0000u;
    }
    bits = min(bits, Limits<kBits>::kMaxScaleBits);
    return max(bits, kMinScaleBits);
}

// A code as the float kRoundingMagic + code: nearest, or stochastic by a byte.
__device__ __forceinline__ float quantise(float y, float inverse) {
    return __fmaf_rn(y, inverse, kRoundingMagic);
}
template <int kBits>
__device__ __forceinline__ float quantise_stochastic(float y, float inverse, uint32_t byte) {
    const uint32_t fixed =
        __float_as_uint(__fmaf_rn(y, inverse, kStochasticMagic)) - kStochasticMagicBits;
    int code = static_cast<int>(fixed + byte) >> 8;
    code = code < Limits<kBits>::kLargest ? code : Limits<kBits>::kLargest;
    code = code > -Limits<kBits>::kLargest ? code : -Limits<kBits>::kLargest;
    return __uint_as_float(kRoundingMagicBits + static_cast<uint32_t>(code));
}

// code * (scale * factor) of eight codes; NaN under a non-finite scale.
template <int kBits>
__device__ __forceinline__ void get_values(const uint8_t* from,
                                           uint32_t scale_bits,
                                           float factor,
                                           Eight& x) {
    uint32_t w[2];
    get_code_words<kBits>(from, w);
    const bool poison = (scale_bits & kMagnitudeMask) >= kInfinityBits;
    const float scale = __fmul_rn(__uint_as_float(scale_bits), factor);
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
        const uint32_t up = w[k / 4] << (32 - kBits - kBits * (k % 4));
        const float code = static_cast<float>(static_cast<int32_t>(up) >> (32 - kBits));
        x.v[k] = poison ? __uint_as_float(kNanFloat32) : __fmul_rn(code, scale);
    }
}

// Eight decoded values from element i of an encoding on, which end at `most`; scales are multiplied
// by `factor`. Zeros from `layout.padded` on.
template <int kBits>
__device__ __forceinline__ void decode_eight(const uint8_t* encoding,
                                             const BlockIntShape& shape,
                                             const BlockIntLayout& layout,
                                             int64_t i,
                                             float factor,
                                             uint32_t most,
                                             Eight& x) {
    if (i >= layout.padded) {
        x = {};
        return;
    }
    const int64_t b = i >> shape.log2_block;
    const uint32_t scale = get_scale(encoding + layout.scales, b, shape.scale_bytes);
    get_values<kBits>(encoding + i / 8 * kBits, scale, factor, x);
    keep_within(most, __uint_as_float(scale), Limits<kBits>::kReach, x);
}

// --- Rotation, by a warp: element 256 g + 8 lane + k is x[g].v[k].

struct Rotation {
    int rotate = 0;
    uint32_t signs = 0;  // bit 8 g + k: that element is negated

    __device__ static __forceinline__ Rotation of(const BlockIntShape& shape) {
        Rotation rotation;
        rotation.rotate = shape.rotate;
        const unsigned lane = threadIdx.x % kWarpThreads;
#pragma unroll 1
        for (unsigned g = 0; g < kSpans; ++g) {
            const unsigned at = (256 * g + kPerThread * lane) % static_cast<unsigned>(shape.rotate);
            uint32_t x[4] = {at / 128, 0, 0, 0};
            threefry(x,
                     RandomWords{{shape.seed, 0, 0, static_cast<uint32_t>(RandomPurpose::kSigns)}});
            const unsigned word = at % 128 / 32;
            const uint32_t low = word % 2 == 0 ? x[0] : x[1];
            const uint32_t high = word % 2 == 0 ? x[2] : x[3];
            rotation.signs |= ((word < 2 ? low : high) >> (at % 32) & 0xFF) << (8 * g);
        }
        return rotation;
    }

    __device__ __forceinline__ void flip(Eight (&x)[kSpans]) const {
#pragma unroll
        for (int g = 0; g < kSpans; ++g) {
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                const uint32_t sign = (signs >> (8 * g + k)) << 31;
                x[g].v[k] = __uint_as_float(__float_as_uint(x[g].v[k]) ^ sign);
            }
        }
    }

    // H of every group; strides in the order 1, 2, 4, ...
    __device__ __forceinline__ void hadamard(Eight (&x)[kSpans]) const {
#pragma unroll
        for (int g = 0; g < kSpans; ++g) {
#pragma unroll
            for (int stride = 1; stride < kPerThread; stride *= 2) {
#pragma unroll
                for (int k = 0; k < kPerThread; ++k) {
                    if ((k & stride) == 0) {
                        butterfly(x[g].v[k], x[g].v[k + stride]);
                    }
                }
            }
        }
        const int lanes = rotate < 256 ? rotate / kPerThread : kWarpThreads;
        const int lane = static_cast<int>(threadIdx.x % kWarpThreads);
#pragma unroll 1
        for (int stride = 1; stride < lanes; stride *= 2) {
            const bool upper = (lane & stride) != 0;
#pragma unroll
            for (int g = 0; g < kSpans; ++g) {
#pragma unroll
                for (int k = 0; k < kPerThread; ++k) {
                    const float mine = x[g].v[k];
                    const float other = __shfl_xor_sync(0xFFFFFFFFu, mine, stride);
                    x[g].v[k] = upper ? __fsub_rn(other, mine) : __fadd_rn(mine, other);
                }
            }
        }
        if (rotate > static_cast<int>(kWarpElems)) {
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                butterfly(x[0].v[k], x[1].v[k]);
            }
        }
    }

    __device__ static __forceinline__ void butterfly(float& a, float& b) {
        const float sum = __fadd_rn(a, b);
        b = __fsub_rn(a, b);
        a = sum;
    }

    // A whole warp calls these.
    __device__ __forceinline__ void forward(Eight (&x)[kSpans]) const {
        flip(x);
        hadamard(x);
    }
    __device__ __forceinline__ void backward(Eight (&x)[kSpans]) const {
        hadamard(x);
        flip(x);
    }
};

}  // namespace
}  // namespace slimwire
