// What the kernels of the block integers are made of: scales, codes and rotations as one thread
// with eight neighbours sees them, and what a warp does together. Byte for byte the steps of
// codecs/block_int/host/block_int_tile.h and rotation.h. Rules: FORMAT.md.
#pragma once

#include "codecs/block_int/block_int_shape.h"
#include "codecs/gpu/block_quantizer.cuh"
#include "codecs/gpu/code_stream.cuh"

namespace slimwire {
namespace {

// Evaluated here because device code may not call constant expressions of host functions.
template <int kBits>
struct Limits {
    static constexpr int kLargest = largest_code(kBits);
    static constexpr float kReach = 1 << (kBits - 1);
    static constexpr uint32_t kMaxScaleBits = max_scale_bits(kBits);
};

// fp32 bits of the scale for a block of this largest magnitude, neither zero nor non-finite.
template <int kBits>
__device__ __forceinline__ uint32_t choose_scale(uint32_t magnitude, int scale_bytes) {
    uint32_t bits =
        __float_as_uint(divided_by<Limits<kBits>::kLargest>(__uint_as_float(magnitude)));
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

// The bit stream of the codes of eight floats kRoundingMagic + code.
template <int kBits>
__device__ __forceinline__ void pack_rounded(const float (&rounded)[kPerThread], uint32_t (&w)[2]) {
    if constexpr (kBits == 8) {
        uint32_t code[kPerThread];
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            code[k] = __float_as_uint(rounded[k]);
        }
        pack_codes<kBits>(code, w);
    } else {
        uint32_t sum = 0;
#pragma unroll
        for (int k = kPerThread - 1; k >= 0; --k) {
            sum = (sum << kBits) + __float_as_uint(rounded[k]);
        }
        // Each term is too large by the magic number; moved up by kReach no code borrows.
        constexpr uint32_t kReach = 1u << (kBits - 1);
        constexpr uint32_t kOnes = kBits == 4 ? 0x11111111u : 0x5555u;
        w[0] = (sum - (kRoundingMagicBits - kReach) * kOnes) ^ kReach * kOnes;
        w[1] = 0;
    }
}

// code * scale of eight codes. A code, moved up to be positive, is the low part of the significand
// of a float that is large enough to have its lowest bit stand for 1.
template <int kBits>
__device__ __forceinline__ void scaled_codes(const RawCodes<kBits>& codes, float scale, Eight& x) {
    constexpr uint32_t kReach = 1u << (kBits - 1);
    uint32_t w[2];
    code_words(codes, w);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        w[j] ^= kReach * (kBits == 8 ? 0x01010101u : kBits == 4 ? 0x1111u : 0x55u);
    }
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
        const int shift = kBits == 8 ? 0 : kBits * (k % 4);
        const uint32_t power = (127u + 23 - shift) << 23;
        const uint32_t bits = kBits == 8 ? __byte_perm(w[k / 4], power, 0x7650 | k % 4)
                                         : (w[k / 4] & (2 * kReach - 1) << shift) | power;
        const float code =
            __fsub_rn(__uint_as_float(bits), static_cast<float>((1u << (23 - shift)) + kReach));
        x.v[k] = __fmul_rn(code, scale);
    }
}

// What an encoding is for the kernels of block_quantizer.cuh that decode it without a rotation.
template <int kBits>
struct BlockIntCodes {
    using Layout = BlockIntLayout;
    struct Codes {
        RawCodes<kBits> codes;
        uint32_t scale;  // as it lies in memory
    };
    static constexpr int kLoadBytes = kBits + 4;
    static constexpr int kEncodeBlocks = kSpanBlocks;

    BlockIntShape shape;

    __device__ static __forceinline__ BlockIntCodes of(const CodecParams& params) {
        return {block_int_shape(params)};
    }
    __device__ __forceinline__ Layout layout(int64_t count) const {
        return block_int_layout(shape, count);
    }
    __device__ __forceinline__ void load(const uint8_t* encoding,
                                         const Layout& layout,
                                         int64_t i,
                                         Codes& raw) const {
        load_codes(encoding + i / 8 * kBits, raw.codes);
        raw.scale = load_scale(encoding + layout.scales, i >> shape.log2_block, shape.scale_bytes);
    }
    // Their values, which end at `most`; NaN under a non-finite scale. Scales are multiplied by
    // `factor`.
    __device__ __forceinline__ void values(const Codes& raw,
                                           uint32_t most,
                                           Eight& x,
                                           float factor = 1.0f) const {
        const uint32_t bits = shape.scale_bytes == 4 ? raw.scale : raw.scale << 16;
        const bool poison = (bits & kMagnitudeMask) >= kInfinityBits;
        const float scale = poison ? __uint_as_float(kNanFloat32) : __uint_as_float(bits);
        scaled_codes<kBits>(raw.codes, __fmul_rn(scale, factor), x);
        keep_within(most, scale, Limits<kBits>::kReach, x);
    }
};

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
    // Rotates p; a group that leaves fp32 is R times the rotation of p / R, at most the largest.
    __device__ __forceinline__ void forward_within(float unrotate,
                                                   const Eight (&p)[kSpans],
                                                   Eight (&y)[kSpans]) const {
        forward(y);
        uint32_t most[kSpans] = {largest_of(y[0]), largest_of(y[1])};
        if (!__any_sync(0xFFFFFFFFu, max(most[0], most[1]) >= kInfinityBits)) {
            return;
        }
        share_largest(most, rotate);
#pragma unroll
        for (int g = 0; g < kSpans; ++g) {
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                y[g].v[k] = __fmul_rn(p[g].v[k], most[g] >= kInfinityBits ? unrotate : 1.0f);
            }
        }
        forward(y);
#pragma unroll
        for (int g = 0; g < kSpans; ++g) {
            if (most[g] >= kInfinityBits) {
                limit_wholes(y[g], static_cast<float>(rotate));
            }
        }
    }

    // Whether a number of the warp is not finite.
    __device__ static __forceinline__ bool leaves(const Eight (&x)[kSpans]) {
        uint32_t most = 0;
#pragma unroll
        for (int g = 0; g < kSpans; ++g) {
            most = largest_of(x[g], most);
        }
        return __any_sync(0xFFFFFFFFu, most >= kInfinityBits) != 0;
    }
    // Each times a power of two, of a finite one at most the largest fp32.
    __device__ static __forceinline__ void limit_wholes(Eight& x, float wholes) {
        const uint32_t most = __float_as_uint(__fdiv_rn(__uint_as_float(kMaxFloat32Bits), wholes));
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            x.v[k] = __fmul_rn(saturated(x.v[k], most), wholes);
        }
    }
    __device__ static __forceinline__ void scale_spans(Eight (&x)[kSpans], float factor) {
#pragma unroll
        for (int g = 0; g < kSpans; ++g) {
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                x[g].v[k] = __fmul_rn(x[g].v[k], factor);
            }
        }
    }
};

}  // namespace
}  // namespace slimwire
