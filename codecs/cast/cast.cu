// Kernels of the casts; byte for byte the bodies of codecs/cast/host/cast_kernels.h. A thread
// takes eight neighbours, twice where it draws.
#include <type_traits>

#include "codecs/gpu/elements.cuh"
#include "codecs/gpu/launchers.h"
#include "codecs/gpu/random.cuh"
#include "codecs/gpu/work.cuh"

namespace slimwire {
namespace {

template <DType kTarget>
using TargetOf = std::conditional_t<kTarget == DType::kFloat16, Float16, Bfloat16>;

// What a unit of work is, and how many threads take it.
__host__ __device__ constexpr int64_t unit_elems(bool stochastic) {
    return stochastic ? 2 * kWarpElems : kPerThread;
}
__host__ __device__ constexpr int64_t unit_threads(bool stochastic) {
    return stochastic ? kWarpThreads : 1;
}

// Finite magnitudes beyond the target's largest become the largest.
template <class Target>
__device__ __forceinline__ float saturate(float p) {
    const uint32_t magnitude = magnitude_of(p);
    if (magnitude >= kInfinityBits || magnitude <= Target::kMaxBits) {
        return p;
    }
    return __uint_as_float((__float_as_uint(p) & ~kMagnitudeMask) | Target::kMaxBits);
}

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
// writes their new residual.
template <class Target, bool kStochastic>
__device__ __forceinline__ void put_encoded(uint8_t* output,
                                            float* residual,
                                            int64_t i,
                                            int64_t count,
                                            const Eight& p,
                                            const EightBytes& bytes) {
    Eight rounded;
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
        rounded.v[k] = saturate<Target>(p.v[k]);
        if (kStochastic && magnitude_of(p.v[k]) < kInfinityBits) {
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
        if (magnitude_of(p.v[k]) < kInfinityBits) {
            left.v[k] = __fsub_rn(p.v[k], Target::round(rounded.v[k]));
        }
    }
    store_eight<Float32>(kept, i, count, left);
}

// Encodes the unit that starts at `begin`: eight elements by a thread, or 512 by a warp when they
// draw, which all of it calls.
template <class Target, bool kStochastic, class Source>
__device__ __forceinline__ void encode_cast_unit(const Source& source,
                                                 int64_t begin,
                                                 uint32_t chunk,
                                                 const DeviceRandom& random,
                                                 uint8_t* output,
                                                 float* residual) {
    Eight p;
    if constexpr (kStochastic) {
        EightBytes bytes;
        EightBytes other;
        draw_twice_eight(random, begin, chunk, bytes, other);
        int64_t i = begin + int64_t{threadIdx.x % kWarpThreads} * kPerThread;
#pragma unroll 1  // unrolled it spills
        for (int span = 0; span < 2; ++span, i += kWarpElems) {
            source.eight(i, p);
            put_encoded<Target, true>(output, residual, i, source.count, p, bytes);
            bytes = other;
        }
    } else {
        source.eight(begin, p);
        put_encoded<Target, false>(output, residual, begin, source.count, p, {});
    }
}

// The encoder that draws needs more than 80 registers on these.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 800 || __CUDA_ARCH__ >= 1200)
constexpr int kDrawingBlocks = 2;
#else
constexpr int kDrawingBlocks = resident_blocks(true);
#endif

template <class Target, bool kStochastic, class Element>
__global__ void __launch_bounds__(kThreads, kStochastic ? kDrawingBlocks : kResidentBlocks)
    cast_encode_kernel(EncodeArgs args, Work work) {
    const float factor = encode_factor<Element>(args);
    const DeviceRandom random = DeviceRandom::of(args.random, RandomPurpose::kEncode);
    work.walk(thread_index() / unit_threads(kStochastic),
              thread_total() / unit_threads(kStochastic), unit_elems(kStochastic),
              [&](int64_t chunk, int64_t unit, int64_t count) {
                  const int64_t at = chunk * work.chunk_elems;
                  float* residual = args.residual != nullptr ? args.residual + at : nullptr;
                  const UserSource<Element> source{
                      static_cast<const uint8_t*>(args.input) + at * Element::kBytes, residual,
                      count, factor};
                  encode_cast_unit<Target, kStochastic>(
                      source, unit * unit_elems(kStochastic), static_cast<uint32_t>(chunk), random,
                      static_cast<uint8_t*>(args.output) + chunk * args.slot_bytes, residual);
              });
}

template <class Target, class Element>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    cast_decode_kernel(DecodeArgs args, Work work) {
    work.walk(
        thread_index(), thread_total(), kPerThread,
        [&](int64_t chunk, int64_t unit, int64_t count) {
            const int64_t i = unit * kPerThread;
            Eight x;
            load_eight<Target>(static_cast<const uint8_t*>(args.input) + chunk * args.slot_bytes, i,
                               count, x);
            deliver<Element>(
                static_cast<uint8_t*>(args.output) + chunk * work.chunk_elems * Element::kBytes, i,
                count, args.accumulate, x);
        });
}

// Where p comes from when encodings are summed.
template <class Target>
struct CastSum {
    const uint8_t* input;
    const float* residual;
    int64_t input_stride;
    int64_t count;
    int32_t inputs;
    float factor;

    __device__ __forceinline__ void eight(int64_t i, Eight& p) const {
        const uint8_t* from = input;
        load_eight<Target>(from, i, count, p);
        for (int32_t s = 1; s < inputs; ++s) {
            from += input_stride;
            Eight x;
            load_eight<Target>(from, i, count, x);
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                p.v[k] = __fadd_rn(p.v[k], x.v[k]);
            }
        }
        scale_and_add(factor, residual, i, count, p);
    }
};

template <class Target, bool kStochastic>
__global__ void __launch_bounds__(kThreads, resident_blocks(kStochastic))
    cast_reduce_kernel(DecodeReduceEncodeArgs args, Work work) {
    const DeviceRandom random = DeviceRandom::of(args.random, RandomPurpose::kReduce);
    const CastSum<Target> source{static_cast<const uint8_t*>(args.input),
                                 args.residual,
                                 args.input_stride,
                                 args.count,
                                 args.inputs,
                                 args.scale};
    work.walk(thread_index() / unit_threads(kStochastic),
              thread_total() / unit_threads(kStochastic), unit_elems(kStochastic),
              [&](int64_t, int64_t unit, int64_t) {
                  encode_cast_unit<Target, kStochastic>(source, unit * unit_elems(kStochastic), 0,
                                                        random, static_cast<uint8_t*>(args.output),
                                                        args.residual);
              });
}

template <class Target>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    cast_sum_kernel(DecodeReduceArgs args, Work work) {
    const CastSum<Target> source{static_cast<const uint8_t*>(args.input),
                                 nullptr,
                                 args.input_stride,
                                 args.count,
                                 args.inputs,
                                 args.scale};
    work.walk(thread_index(), thread_total(), kPerThread, [&](int64_t, int64_t unit, int64_t) {
        Eight x;
        source.eight(unit * kPerThread, x);
        deliver(args.dtype, static_cast<uint8_t*>(args.output), unit * kPerThread, args.count,
                false, x);
    });
}

}  // namespace

template <DType kTarget>
cudaError_t CastCuda<kTarget>::encode(const EncodeArgs& args, cudaStream_t stream) {
    if (args.count <= 0) {
        return cudaSuccess;
    }
    const bool drawing = draws(args.params);
    const Work work = Work::of(args.count, args.chunk_elems, unit_elems(drawing));
    return visit(args.dtype, [&](auto element) {
        using Element = decltype(element);
        using Target = TargetOf<kTarget>;
        return launch(drawing ? cast_encode_kernel<Target, true, Element>
                              : cast_encode_kernel<Target, false, Element>,
                      args, work, threads_for(work, unit_threads(drawing)), stream);
    });
}

template <DType kTarget>
cudaError_t CastCuda<kTarget>::decode(const DecodeArgs& args, cudaStream_t stream) {
    if (args.count <= 0) {
        return cudaSuccess;
    }
    const Work work = Work::of(args.count, args.chunk_elems, kPerThread);
    return visit(args.dtype, [&](auto element) {
        return launch(cast_decode_kernel<TargetOf<kTarget>, decltype(element)>, args, work,
                      threads_for(work, 1), stream);
    });
}

template <DType kTarget>
cudaError_t CastCuda<kTarget>::reduce(const DecodeReduceEncodeArgs& args, cudaStream_t stream) {
    if (args.count <= 0 || args.inputs <= 0) {
        return cudaSuccess;
    }
    const bool drawing = draws(args.params);
    const Work work = Work::of(args.count, args.count, unit_elems(drawing));
    return launch(drawing ? cast_reduce_kernel<TargetOf<kTarget>, true>
                          : cast_reduce_kernel<TargetOf<kTarget>, false>,
                  args, work, threads_for(work, unit_threads(drawing)), stream);
}

template <DType kTarget>
cudaError_t CastCuda<kTarget>::sum(const DecodeReduceArgs& args, cudaStream_t stream) {
    if (args.count <= 0 || args.inputs <= 0) {
        return cudaSuccess;
    }
    const Work work = Work::of(args.count, args.count, kPerThread);
    return launch(cast_sum_kernel<TargetOf<kTarget>>, args, work, threads_for(work, 1), stream);
}

template struct CastCuda<DType::kBfloat16>;
template struct CastCuda<DType::kFloat16>;

}  // namespace slimwire
