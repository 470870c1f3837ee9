// Kernels of the casts; byte for byte the bodies of codecs/cast/host/cast_kernels.h. A thread
// takes eight neighbours, twice where it draws.
#include <type_traits>

#include "codecs/cast/cast_shape.h"
#include "codecs/gpu/block_quantizer.cuh"

namespace slimwire {
namespace {

template <DType kTarget>
using TargetOf = std::conditional_t<kTarget == DType::kFloat16, Float16, Bfloat16>;

// A finite x, not above the target's largest, rounded to one of its neighbours in the target, see
// FORMAT.md; `drawn` is twice the value's random byte plus 1.
template <class Target>
__device__ __forceinline__ float round_stochastically(float x, uint32_t drawn) {
    const uint32_t magnitude = magnitude_of(x);
    const uint32_t sign = __float_as_uint(x) & ~kMagnitudeMask;
    if constexpr (std::is_same_v<Target, Bfloat16>) {
        return __uint_as_float(sign | ((magnitude + (drawn << 7)) & ~0xFFFFu));
    } else {
        constexpr uint32_t kSmallestNormal = 0x38800000u;
        if (magnitude >= kSmallestNormal) {
            return __uint_as_float(sign | ((magnitude + (drawn << 4)) & ~0x1FFFu));
        }
        const float steps512 = __fmul_rn(__uint_as_float(magnitude), 0x1p33f);
        const uint32_t steps = (static_cast<uint32_t>(steps512) + drawn) >> 9;
        const float small = __fsub_rn(__uint_as_float(0x3F000000u + steps), 0.5f);
        return __uint_as_float(sign | __float_as_uint(small));
    }
}

// Encodes elements i, ..., i + 7 of a chunk of `count`, whose p is `p` and that draw `bytes`, and
// writes their new residual. Finite p from `overflow` on become infinite; decoded values end at
// `most`, the largest of the user's type.
template <class Target, bool kStochastic>
__device__ __forceinline__ void put_encoded(uint32_t overflow,
                                            uint32_t most,
                                            uint8_t* output,
                                            float* residual,
                                            int64_t i,
                                            int64_t count,
                                            const Eight& p,
                                            const EightBytes& bytes) {
    Eight rounded = p;
    const bool within = largest_of(p) <= Target::kMaxBits;
    if (!within) {
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            rounded.v[k] = saturated(overflowed(p.v[k], overflow), Target::kMaxBits);
        }
    }
    if constexpr (kStochastic) {
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            if (magnitude_of(rounded.v[k]) < kInfinityBits) {
                rounded.v[k] = round_stochastically<Target>(rounded.v[k], bytes.drawn(k));
            }
        }
    }
    Raw<Target> encoded;
    Target::words(rounded, encoded.w);
    store_raw<Target>(output, i, count, encoded);
    if (residual == nullptr) {
        return;
    }
    uint8_t* kept = reinterpret_cast<uint8_t*>(residual);
    Eight left;
    Target::values(encoded.w, left);
    if (most < Target::kMaxBits) {
        keep_within(most, left);
    }
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
        left.v[k] = __fsub_rn(p.v[k], left.v[k]);
    }
    if (!within) {
        Eight old;
        load_eight<Float32>(kept, i, count, old);
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            left.v[k] = magnitude_of(rounded.v[k]) < kInfinityBits ? left.v[k] : old.v[k];
        }
    }
    store_eight<Float32>(kept, i, count, left);
}

template <class Target, bool kStochastic>
struct CastCodec {
    struct Layout {
        int64_t count;
    };
    using Codes = Raw<Target>;
    static constexpr int kLoadBytes = kPerThread * Target::kBytes;
    bool saturates;

    static constexpr int kEncodeBlocks = 2;
    static constexpr int kReduceBlocks = kEncodeBlocks;

    __host__ __device__ static int64_t unit_elems(const CodecParams&) { return kUnitElems; }
    __device__ static __forceinline__ CastCodec of(const CodecParams& params) {
        return {std::is_same_v<Target, Bfloat16> ||
                params.scale_type == static_cast<uint8_t>(CastOverflow::kSaturate)};
    }
    __device__ __forceinline__ Layout layout(int64_t count) const { return {count}; }

    template <class Source>
    __device__ __forceinline__ void encode(const Source& source,
                                           const DeviceRandom& random,
                                           uint32_t chunk,
                                           int64_t begin,
                                           int64_t count,
                                           uint8_t* encoding,
                                           float* residual) const {
        const uint32_t overflow = saturates ? kInfinityBits : Target::kOverflowBits;
        const int64_t i = begin + int64_t{threadIdx.x % kWarpThreads} * kPerThread;
        Eight p[kSpans];
        EightBytes bytes[kSpans] = {};
        source.spans(i, p);
        if constexpr (kStochastic) {
            draw_twice_eight(random, begin, chunk, bytes[0], bytes[1]);
        }
#pragma unroll
        for (int g = 0; g < kSpans; ++g) {
            put_encoded<Target, kStochastic>(overflow, source.most(), encoding, residual,
                                             i + g * kWarpElems, count, p[g], bytes[g]);
        }
    }

    __device__ __forceinline__ void load(const uint8_t* encoding,
                                         const Layout& layout,
                                         int64_t i,
                                         Codes& raw) const {
        load_raw<Target>(encoding, i, layout.count, raw);
    }
    __device__ __forceinline__ void values(const Codes& raw, uint32_t most, Eight& x) const {
        Target::values(raw.w, x);
        if (most < Target::kMaxBits) {
            keep_within(most, x);
        }
    }
};

}  // namespace

template <DType kTarget>
struct CastKernels
    : BlockQuantizer<CastCodec<TargetOf<kTarget>, false>, CastCodec<TargetOf<kTarget>, true>> {};

template struct Launchers<CastKernels<DType::kBfloat16>>;
template struct Launchers<CastKernels<DType::kFloat16>>;

}  // namespace slimwire
