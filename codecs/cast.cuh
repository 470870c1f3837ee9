// Kernels of the casts; byte for byte the bodies of codecs/host/cast_kernels.h. Every thread takes
// eight consecutive elements. Instantiated by bf16.cu and fp16.cu.
#pragma once

#include <type_traits>

#include "codecs/cuda/elements.cuh"
#include "codecs/cuda/launchers.h"
#include "codecs/cuda/work.cuh"

namespace slimwire {
namespace {

template <DType kTarget>
using TargetOf = std::conditional_t<kTarget == DType::kFloat16, Float16, Bfloat16>;

// Finite magnitudes beyond the target's largest become the largest.
template <class Target>
__device__ __forceinline__ float saturate(float p) {
    const uint32_t magnitude = magnitude_of(p);
    if (magnitude >= kInfinityBits || magnitude <= Target::kMaxBits) {
        return p;
    }
    return __uint_as_float((__float_as_uint(p) & ~kMagnitudeMask) | Target::kMaxBits);
}

// Encodes elements i, ..., i + 7 of a chunk of `count` and writes their new residual.
template <class Target>
__device__ __forceinline__ void put_encoded(
    uint8_t* output, float* residual, int64_t i, int64_t count, const Eight& p) {
    Eight rounded;
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
        rounded.v[k] = saturate<Target>(p.v[k]);
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

template <class Target, class Element>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    cast_encode_kernel(EncodeArgs args, Work work) {
    const float factor = encode_factor<Element>(args);
    work.walk(thread_index(), thread_total(), kPerThread,
              [&](int64_t chunk, int64_t unit, int64_t count) {
                  const int64_t at = chunk * work.chunk_elems;
                  float* residual = args.residual != nullptr ? args.residual + at : nullptr;
                  const UserSource<Element> source{
                      static_cast<const uint8_t*>(args.input) + at * Element::kBytes, residual,
                      count, factor};
                  Eight p;
                  source.eight(unit * kPerThread, p);
                  put_encoded<Target>(static_cast<uint8_t*>(args.output) + chunk * args.slot_bytes,
                                      residual, unit * kPerThread, count, p);
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

template <class Target>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    cast_reduce_kernel(DecodeReduceEncodeArgs args, Work work) {
    work.walk(
        thread_index(), thread_total(), kPerThread, [&](int64_t, int64_t unit, int64_t count) {
            const int64_t i = unit * kPerThread;
            const uint8_t* from = static_cast<const uint8_t*>(args.input);
            Eight p;
            load_eight<Target>(from, i, count, p);
            for (int32_t s = 1; s < args.inputs; ++s) {
                from += args.input_stride;
                Eight x;
                load_eight<Target>(from, i, count, x);
#pragma unroll
                for (int k = 0; k < kPerThread; ++k) {
                    p.v[k] = __fadd_rn(p.v[k], x.v[k]);
                }
            }
            scale_and_add(args.scale, args.residual, i, count, p);
            put_encoded<Target>(static_cast<uint8_t*>(args.output), args.residual, i, count, p);
        });
}

}  // namespace

template <DType kTarget>
cudaError_t CastCuda<kTarget>::encode(const EncodeArgs& args, cudaStream_t stream) {
    if (args.count <= 0) {
        return cudaSuccess;
    }
    const Work work = Work::of(args.count, args.chunk_elems, kPerThread);
    return visit(args.dtype, [&](auto element) {
        return launch(cast_encode_kernel<TargetOf<kTarget>, decltype(element)>, args, work,
                      threads_for(work, 1), stream);
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
    const Work work = Work::of(args.count, args.count, kPerThread);
    return launch(cast_reduce_kernel<TargetOf<kTarget>>, args, work, threads_for(work, 1), stream);
}

}  // namespace slimwire
