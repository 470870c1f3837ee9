// The unit of work of the block integers' encoders: a warp takes two spans of 256 elements, or one
// block where blocks are larger; eight consecutive elements of each span per thread. The largest
// magnitude of a block is found by shuffles among its lanes and then among a thread's spans. Blocks
// above 512 elements are gone over twice, the second time from cache.
#pragma once

#include "codecs/block_int/block_int_parts.cuh"

namespace slimwire {
namespace {

__host__ __device__ inline int64_t unit_of(const CodecParams& params) {
    return params.block > kUnitElems ? params.block : kUnitElems;
}

// What an encoding operation needs to know.
struct Encoder {
    BlockIntShape shape;
    Rotation rotation;
    DeviceRandom random;
};

// What an encoding is written to.
struct UnitOutput {
    BlockIntLayout layout;
    int64_t count;
    uint8_t* bytes;
    float* residual;
    uint32_t most;  // of the user's type
};

// Codes, scale and, without a rotation, the residual of the eight y from element i on, whose
// block's largest is `magnitude`. With a rotation y becomes what the codes decode to.
template <class Variant>
__device__ __forceinline__ void encode_eight(const BlockIntShape& shape,
                                             bool stochastic,
                                             uint32_t magnitude,
                                             const EightBytes& bytes,
                                             int64_t i,
                                             const UnitOutput& output,
                                             Eight& y) {
    constexpr int kBits = Variant::kBits;
    const bool poison = magnitude >= kInfinityBits;
    const float chosen = __uint_as_float(choose_scale<kBits>(magnitude, shape.scale_bytes));
    const float inverse = __frcp_rn(chosen);
    const float unit = Variant::kRotated ? __fmul_rn(chosen, shape.unrotate) : chosen;
    float rounded[kPerThread];
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
        const uint32_t byte = bytes.v[k / 4] >> (8 * (k % 4)) & 0xFF;
        rounded[k] = stochastic ? quantise_stochastic<kBits>(y.v[k], inverse, byte)
                                : quantise(y.v[k], inverse);
    }
    if (i < output.layout.padded) {
        uint32_t w[2];
        pack_rounded<kBits>(rounded, w);
        w[0] = poison ? 0 : w[0];
        w[1] = poison ? 0 : w[1];
        put_words<kBits>(output.bytes + i / 8 * kBits, w);
        if ((i & (shape.block - 1)) == 0) {
            put_scale(output.bytes + output.layout.scales, i >> shape.log2_block,
                      poison           ? kNanScaleBits
                      : magnitude == 0 ? 0
                                       : __float_as_uint(chosen),
                      shape.scale_bytes);
        }
    }
    Eight decoded;
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
        decoded.v[k] = __fmul_rn(__fsub_rn(rounded[k], kRoundingMagic), unit);
        if constexpr (Variant::kRotated) {
            y.v[k] = poison ? __uint_as_float(kNanFloat32) : decoded.v[k];
        }
    }
    if (output.residual != nullptr && !poison && !Variant::kRotated) {
        keep_within(output.most, chosen, Limits<kBits>::kReach, decoded);
        Eight left;
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            left.v[k] = __fsub_rn(y.v[k], decoded.v[k]);
        }
        store_eight<Float32>(reinterpret_cast<uint8_t*>(output.residual), i, output.count, left);
    }
}

// The residual after a rotation, of a thread's spans from element i on: p less what the codes y
// decode to, unless that is not finite.
__device__ __forceinline__ void put_rotated_residual(const Rotation& rotation,
                                                     int64_t i,
                                                     const UnitOutput& output,
                                                     const Eight (&p)[kSpans],
                                                     Eight (&y)[kSpans]) {
    rotation.backward(y);
#pragma unroll
    for (int g = 0; g < kSpans; ++g) {
        const int64_t at = i + g * kWarpElems;
        uint8_t* kept = reinterpret_cast<uint8_t*>(output.residual);
        Eight left;
        load_eight<Float32>(kept, at, output.count, left);
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            const float lost = __fsub_rn(p[g].v[k], saturated(y[g].v[k], output.most));
            left.v[k] = magnitude_of(lost) < kInfinityBits ? lost : left.v[k];
        }
        store_eight<Float32>(kept, at, output.count, left);
    }
}

// Encodes the unit that starts at element `begin` of a chunk of `count`; one whole warp calls it.
// source.load(i, p, y) gives what a thread's spans hold from element i on: p, and what is
// quantised; source.most() the largest of the user's type.
template <class Variant, class Source>
__device__ __forceinline__ void encode_unit(const Encoder& encoder,
                                            const Source& source,
                                            uint32_t chunk,
                                            int64_t begin,
                                            int64_t count,
                                            uint8_t* bytes,
                                            float* residual) {
    const BlockIntShape& shape = encoder.shape;
    const UnitOutput output{block_int_layout(shape, count), count, bytes, residual, source.most()};
    const bool stochastic = Variant::kRotated ? shape.stochastic : Variant::kStochastic;
    constexpr int kStep = static_cast<int>(kUnitElems);
    const int steps = shape.block > kStep ? shape.block / kStep : 1;
    const int64_t first = begin + int64_t{threadIdx.x % kWarpThreads} * kPerThread;
    Eight p[kSpans];
    Eight y[kSpans];
    uint32_t magnitude[kSpans] = {};
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        source.load(first + step * kStep, p, y);
#pragma unroll
        for (int g = 0; g < kSpans; ++g) {
            magnitude[g] = largest_of(y[g], magnitude[g]);
        }
    }
    share_largest(magnitude, shape.block);

#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        const int64_t here = first + step * kStep;
        if (steps > 1) {
            source.load(here, p, y);
        }
        EightBytes drawn[kSpans] = {};
        if (stochastic) {
            draw_twice_eight(encoder.random, begin + step * kStep, chunk, drawn[0], drawn[1]);
        }
#pragma unroll
        for (int g = 0; g < kSpans; ++g) {
            encode_eight<Variant>(shape, stochastic, magnitude[g], drawn[g], here + g * kWarpElems,
                                  output, y[g]);
        }
        if constexpr (Variant::kRotated) {
            if (residual != nullptr) {
                put_rotated_residual(encoder.rotation, here, output, p, y);
            }
        }
    }
}

}  // namespace
}  // namespace slimwire
