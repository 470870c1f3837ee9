// Scales of quantizers in kernels; the bodies of codecs/quantizers/host/quantizer_scales.h. A
// block's sums stand in eight lanes of each of its threads (several blocks share a warp, or a block
// takes several rounds of it), which FORMAT.md's order adds in halves.
#pragma once

#include "codecs/quantizers/quantizer_codes.cuh"

namespace slimwire {
namespace {

__device__ __forceinline__ float plus_other(float mine, float given, int distance) {
    return __fadd_rn(mine, __shfl_xor_sync(0xFFFFFFFFu, given, distance));
}

// Adds upper and lower half of `kHalf` * 2 lanes over the threads `distance` apart, each of which
// goes on with one half.
template <int kHalf>
__device__ __forceinline__ void share_halves(float (&lanes)[kPerThread], int distance) {
    const bool upper = (threadIdx.x & distance) != 0;
#pragma unroll
    for (int k = 0; k < kHalf; ++k) {
        const float mine = upper ? lanes[k + kHalf] : lanes[k];
        const float given = upper ? lanes[k] : lanes[k + kHalf];
        lanes[k] = plus_other(mine, given, distance);
    }
}

// The sum of the lanes of `threads` neighbours, a power of two; the same in all of them.
__device__ __forceinline__ float sum_of_lanes(float (&lanes)[kPerThread], int threads) {
    if (threads >=
        8) {  // the three first steps share the lanes out, so that each adds half as many
        const int distance = threads / 2;
        share_halves<4>(lanes, distance);
        share_halves<2>(lanes, distance / 2);
        share_halves<1>(lanes, distance / 4);
        float sum = lanes[0];
        for (int rest = distance / 8; rest > 0; rest /= 2) {
            sum = plus_other(sum, sum, rest);
        }
        sum = plus_other(sum, sum, distance);
        sum = plus_other(sum, sum, distance / 2);
        return plus_other(sum, sum, distance / 4);
    }
    for (int distance = threads / 2; distance > 0; distance /= 2) {
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            lanes[k] = plus_other(lanes[k], lanes[k], distance);
        }
    }
    const float even = __fadd_rn(__fadd_rn(lanes[0], lanes[4]), __fadd_rn(lanes[2], lanes[6]));
    const float odd = __fadd_rn(__fadd_rn(lanes[1], lanes[5]), __fadd_rn(lanes[3], lanes[7]));
    return __fadd_rn(even, odd);
}

// The block of a thread: p of its eight elements in `rounds` rounds from element `first` on.
template <class Source>
struct QuantizerBlock {
    const Source& source;
    int64_t first;
    int rounds;
    int threads;    // that share a block in a round
    int32_t elems;  // of the block that exist, at least 1
    Eight p;        // of the last round that was read

    // Calls term(p, lane's sum) for every element and adds up.
    template <class Term>
    __device__ __forceinline__ float sum(Term term) {
        float lanes[kPerThread] = {};
        for (int round = 0; round < rounds; ++round) {
            read(round);
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                lanes[k] = term(p.v[k], lanes[k]);
            }
        }
        return sum_of_lanes(lanes, threads);
    }
    __device__ __forceinline__ void read(int round) {
        if (rounds > 1) {
            source.eight(first + int64_t{round} * kWarpElems, p);
        }
    }
    __device__ __forceinline__ uint32_t largest() {
        uint32_t magnitude = 0;
        for (int round = 0; round < rounds; ++round) {
            read(round);
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                magnitude = max(magnitude, magnitude_of(p.v[k]));
            }
        }
        for (int lanes = threads / 2; lanes > 0; lanes /= 2) {
            magnitude = max(magnitude, __shfl_xor_sync(0xFFFFFFFFu, magnitude, lanes));
        }
        return magnitude;
    }

    // Mean magnitude, fp32 bits; what is not finite where an element is not.
    __device__ __forceinline__ uint32_t mean() {
        const float n = __int2float_rn(elems);
        const float plain =
            sum([](float x, float s) { return __fadd_rn(s, __uint_as_float(magnitude_of(x))); });
        const bool finite = magnitude_of(plain) < kInfinityBits;
        uint32_t bits = __float_as_uint(__fdiv_rn(plain, n));
        if (__any_sync(0xFFFFFFFFu, !finite)) {
            const float down = sum([](float x, float s) {
                return __fadd_rn(s, __fmul_rn(__uint_as_float(magnitude_of(x)), kQuantizerDown));
            });
            const float up = __fmul_rn(__fdiv_rn(down, n), kQuantizerUp);
            if (!finite && magnitude_of(down) >= kInfinityBits) {
                bits = kNanScaleBits;
            } else if (!finite) {
                bits = min(__float_as_uint(up), uint32_t{kMaxFloat32Bits});
            }
        }
        return bits;
    }
    // Norm, or root of the mean of `n` squares; of a block with this largest magnitude.
    __device__ __forceinline__ uint32_t norm(uint32_t magnitude, int32_t n) {
        const uint32_t field = min(max(magnitude >> 23, 1u), 253u);
        const float down = __uint_as_float((254 - field) << 23);
        const float squares = sum([down](float x, float s) {
            const float y = __fmul_rn(x, down);
            return __fmaf_rn(y, y, s);
        });
        const float root = __fsqrt_rn(n > 1 ? __fdiv_rn(squares, __int2float_rn(n)) : squares);
        return min(__float_as_uint(__fmul_rn(root, __uint_as_float(field << 23))),
                   uint32_t{kMaxFloat32Bits});
    }
};

struct QuantizerChoice {
    float scale;
    float inverse;
    bool poison;
};

template <class Kind, class Source>
__device__ __forceinline__ QuantizerChoice choose_quantizer_scales(QuantizerBlock<Source>& block,
                                                                   const QuantizerShape& shape) {
    if constexpr (Kind::kRule == QuantizerRule::kSign) {
        if (shape.scale == QuantizerScale::kMean) {
            const uint32_t bits = block.mean();
            return {__uint_as_float(bits), 0.0f, bits >= kInfinityBits};
        }
        const uint32_t most = block.largest();
        const uint32_t bits = block.norm(most, block.elems);
        return {__uint_as_float(bits), 0.0f, most >= kInfinityBits};
    } else if constexpr (Kind::kRule == QuantizerRule::kPowers) {
        const uint32_t most = block.largest();
        const uint32_t field = min(max((most + 0x7FFFFFu) >> 23, 1u), 254u);
        return {__uint_as_float(field << 23),
                __uint_as_float(field == 254 ? 0x00400000u : (254 - field) << 23),
                most >= kInfinityBits};
    } else {
        const uint32_t most = block.largest();
        uint32_t bits = most;
        if (shape.scale == QuantizerScale::kNorm) {
            bits = block.norm(most, 1);
        } else if (shape.scale == QuantizerScale::kClip) {
            const float root = __uint_as_float(block.norm(most, block.elems));
            bits = min(most, __float_as_uint(__fmul_rn(root, kQuantizerClip)));
        }
        const float largest = __uint_as_float(min(bits, uint32_t{kQuantizerMostBits}));
        const float step = __fdiv_rn(largest, __int2float_rn(shape.levels));
        const float scale = __uint_as_float(max(__float_as_uint(step), uint32_t{kMinScaleBits}));
        return {scale, __fdiv_rn(1.0f, scale), most >= kInfinityBits};
    }
}

}  // namespace
}  // namespace slimwire
