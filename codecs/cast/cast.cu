// Kernels of the casts; byte for byte the bodies of codecs/cast/host/cast_kernels.h. A thread
// takes eight neighbours, twice where it draws.
#include <type_traits>

#include "codecs/cast/launchers.h"
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
    Eight rounded;
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
        rounded.v[k] = saturated(overflowed(p.v[k], overflow), Target::kMaxBits);
        if (kStochastic && magnitude_of(rounded.v[k]) < kInfinityBits) {
            rounded.v[k] = round_stochastically<Target>(rounded.v[k], bytes.drawn(k));
        }
    }
    store_eight<Target>(output, i, count, rounded);
    if (residual == nullptr) {
        return;
    }
    uint8_t* kept = reinterpret_cast<uint8_t*>(residual);
    Eight left;
    load_eight<Float32>(kept, i, count, left);
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
        if (magnitude_of(rounded.v[k]) < kInfinityBits) {
            const float decoded = saturated(Target::round(rounded.v[k]), most);
            left.v[k] = __fsub_rn(p.v[k], decoded);
        }
    }
    store_eight<Float32>(kept, i, count, left);
}

// The encoder that draws needs more than 80 registers on these.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 800 || __CUDA_ARCH__ >= 1200)
constexpr int kDrawingBlocks = 2;
#else
constexpr int kDrawingBlocks = resident_blocks(true);
#endif

template <class Target, bool kStochastic>
struct CastCodec {
    struct Layout {
        int64_t count;
    };
    bool saturates;

    static constexpr int kUnitThreads = kStochastic ? kWarpThreads : 1;
    static constexpr int kEncodeBlocks = kStochastic ? kDrawingBlocks : kResidentBlocks;
    static constexpr int kReduceBlocks = resident_blocks(kStochastic);

    __host__ __device__ static int64_t unit_elems(const CodecParams&) {
        return kStochastic ? 2 * kWarpElems : kPerThread;
    }
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
        Eight p;
        if constexpr (kStochastic) {
            EightBytes bytes;
            EightBytes other;
            draw_twice_eight(random, begin, chunk, bytes, other);
            int64_t i = begin + int64_t{threadIdx.x % kWarpThreads} * kPerThread;
#pragma unroll 1  // unrolled it spills
            for (int span = 0; span < 2; ++span, i += kWarpElems) {
                source.eight(i, p);
                put_encoded<Target, true>(overflow, source.most(), encoding, residual, i, count, p,
                                          bytes);
                bytes = other;
            }
        } else {
            source.eight(begin, p);
            put_encoded<Target, false>(overflow, source.most(), encoding, residual, begin, count, p,
                                       {});
        }
    }

    __device__ __forceinline__ void get(
        const uint8_t* encoding, const Layout& layout, int64_t i, uint32_t most, Eight& x) const {
        load_eight<Target>(encoding, i, layout.count, x);
        keep_within(most, x);
    }
};

template <DType kTarget>
using CastKernels =
    BlockQuantizer<CastCodec<TargetOf<kTarget>, false>, CastCodec<TargetOf<kTarget>, true>>;

}  // namespace

template <DType kTarget>
cudaError_t CastCuda<kTarget>::encode(const EncodeArgs& args, cudaStream_t stream) {
    return CastKernels<kTarget>::encode(args, stream);
}
template <DType kTarget>
cudaError_t CastCuda<kTarget>::decode(const DecodeArgs& args, cudaStream_t stream) {
    return CastKernels<kTarget>::decode(args, stream);
}
template <DType kTarget>
cudaError_t CastCuda<kTarget>::reduce(const DecodeReduceEncodeArgs& args, cudaStream_t stream) {
    return CastKernels<kTarget>::reduce(args, stream);
}
template <DType kTarget>
cudaError_t CastCuda<kTarget>::sum(const DecodeReduceArgs& args, cudaStream_t stream) {
    return CastKernels<kTarget>::sum(args, stream);
}

template struct CastCuda<DType::kBfloat16>;
template struct CastCuda<DType::kFloat16>;

}  // namespace slimwire
