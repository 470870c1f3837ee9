// Kernels of codecs that make codes of blocks of elements: encode, decode, reduce and sum around
// what a Codec does. A Codec has
//   kUnitThreads      threads that encode a unit: a warp, or one
//   kEncodeBlocks, kReduceBlocks   thread blocks that must fit a multiprocessor, so that no
//                     register spills
//   unit_elems(params)   elements of a unit
//   of(params)        what the parameters mean
//   layout(count)     where the planes of an encoding of `count` elements lie
//   encode(source, random, chunk, begin, count, encoding, residual)   the unit from element `begin`
//                     on; all its threads call it
//   get(encoding, layout, i, most, x)   eight values from element i on, within the user's type
#pragma once

#include "codecs/gpu/elements.cuh"
#include "codecs/gpu/random.cuh"
#include "codecs/gpu/work.cuh"

namespace slimwire {
namespace {

// Where p comes from when encodings are summed.
template <class Codec>
struct EncodingSum {
    const uint8_t* input;
    const float* residual;
    int64_t input_stride;
    int64_t count;
    int32_t inputs;
    float input_scale;
    float factor;
    DType dtype;
    Codec codec;
    typename Codec::Layout layout;

    template <class Args>
    __device__ static __forceinline__ EncodingSum of(const Args& args, const float* residual) {
        const Codec codec = Codec::of(args.params);
        return {static_cast<const uint8_t*>(args.input),
                residual,
                args.input_stride,
                args.count,
                args.inputs,
                args.input_scale,
                args.scale,
                args.dtype,
                codec,
                codec.layout(args.count)};
    }

    __device__ __forceinline__ uint32_t most() const { return max_bits(dtype); }
    __device__ __forceinline__ void eight(int64_t i, Eight& p) const {
        p = {};
        if (i >= count) {
            return;
        }
        const uint8_t* from = input;
        for (int32_t s = 0; s < inputs; ++s, from += input_stride) {
            Eight x;
            codec.get(from, layout, i, most(), x);
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                p.v[k] = s == 0 ? __fmul_rn(input_scale, x.v[k])
                                : __fmaf_rn(input_scale, x.v[k], p.v[k]);
            }
        }
        scale_and_add(factor, overflow_bits(dtype), residual, i, count, p);
    }
};

template <class Codec, class Element>
__global__ void __launch_bounds__(kThreads, Codec::kEncodeBlocks)
    block_encode_kernel(EncodeArgs args, Work work) {
    const Codec codec = Codec::of(args.params);
    const float factor = encode_factor<Element>(args);
    const DeviceRandom random = DeviceRandom::of(args.random, RandomPurpose::kEncode);
    const int64_t unit_elems = Codec::unit_elems(args.params);
    work.walk(thread_index() / Codec::kUnitThreads, thread_total() / Codec::kUnitThreads,
              unit_elems, [&](int64_t chunk, int64_t unit, int64_t count) {
                  const int64_t at = chunk * work.chunk_elems;
                  float* residual = args.residual != nullptr ? args.residual + at : nullptr;
                  const UserSource<Element> source{
                      static_cast<const uint8_t*>(args.input) + at * Element::kBytes, residual,
                      count, factor};
                  codec.encode(source, random, static_cast<uint32_t>(chunk), unit * unit_elems,
                               count, static_cast<uint8_t*>(args.output) + chunk * args.slot_bytes,
                               residual);
              });
}

template <class Codec, class Element>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    block_decode_kernel(DecodeArgs args, Work work) {
    const Codec codec = Codec::of(args.params);
    work.walk(thread_index(), thread_total(), kPerThread,
              [&](int64_t chunk, int64_t unit, int64_t count) {
                  const int64_t i = unit * kPerThread;
                  Eight x;
                  codec.get(static_cast<const uint8_t*>(args.input) + chunk * args.slot_bytes,
                            codec.layout(count), i, Element::kMaxBits, x);
                  deliver<Element>(static_cast<uint8_t*>(args.output) +
                                       chunk * work.chunk_elems * Element::kBytes,
                                   i, count, args.accumulate, x);
              });
}

template <class Codec>
__global__ void __launch_bounds__(kThreads, Codec::kReduceBlocks)
    block_reduce_kernel(DecodeReduceEncodeArgs args, Work work) {
    const Codec codec = Codec::of(args.params);
    const DeviceRandom random = DeviceRandom::of(args.random, RandomPurpose::kReduce);
    const int64_t unit_elems = Codec::unit_elems(args.params);
    const EncodingSum<Codec> source = EncodingSum<Codec>::of(args, args.residual);
    work.walk(thread_index() / Codec::kUnitThreads, thread_total() / Codec::kUnitThreads,
              unit_elems, [&](int64_t, int64_t unit, int64_t count) {
                  codec.encode(source, random, 0, unit * unit_elems, count,
                               static_cast<uint8_t*>(args.output), args.residual);
              });
}

template <class Codec>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    block_sum_kernel(DecodeReduceArgs args, Work work) {
    const EncodingSum<Codec> source = EncodingSum<Codec>::of(args, nullptr);
    work.walk(thread_index(), thread_total(), kPerThread, [&](int64_t, int64_t unit, int64_t) {
        Eight x;
        source.eight(unit * kPerThread, x);
        deliver(args.dtype, static_cast<uint8_t*>(args.output), unit * kPerThread, args.count,
                false, x);
    });
}

// The launches of a codec, of which Drawing is compiled for stochastic rounding.
template <class Nearest, class Drawing>
struct BlockQuantizer {
    static cudaError_t encode(const EncodeArgs& args, cudaStream_t stream) {
        if (args.count <= 0) {
            return cudaSuccess;
        }
        return draws(args.params) ? encode_by<Drawing>(args, stream)
                                  : encode_by<Nearest>(args, stream);
    }
    static cudaError_t decode(const DecodeArgs& args, cudaStream_t stream) {
        if (args.count <= 0) {
            return cudaSuccess;
        }
        const Work work = Work::of(args.count, args.chunk_elems, kPerThread);
        return visit(args.dtype, [&](auto element) {
            return launch(block_decode_kernel<Nearest, decltype(element)>, args, work,
                          threads_for(work, 1), stream);
        });
    }
    static cudaError_t reduce(const DecodeReduceEncodeArgs& args, cudaStream_t stream) {
        if (args.count <= 0 || args.inputs <= 0) {
            return cudaSuccess;
        }
        return draws(args.params) ? reduce_by<Drawing>(args, stream)
                                  : reduce_by<Nearest>(args, stream);
    }
    static cudaError_t sum(const DecodeReduceArgs& args, cudaStream_t stream) {
        if (args.count <= 0 || args.inputs <= 0) {
            return cudaSuccess;
        }
        const Work work = Work::of(args.count, args.count, kPerThread);
        return launch(block_sum_kernel<Nearest>, args, work, threads_for(work, 1), stream);
    }

  private:
    template <class Codec>
    static cudaError_t encode_by(const EncodeArgs& args, cudaStream_t stream) {
        const Work work = Work::of(args.count, args.chunk_elems, Codec::unit_elems(args.params));
        return visit(args.dtype, [&](auto element) {
            return launch(block_encode_kernel<Codec, decltype(element)>, args, work,
                          threads_for(work, Codec::kUnitThreads), stream);
        });
    }
    template <class Codec>
    static cudaError_t reduce_by(const DecodeReduceEncodeArgs& args, cudaStream_t stream) {
        const Work work = Work::of(args.count, args.count, Codec::unit_elems(args.params));
        return launch(block_reduce_kernel<Codec>, args, work,
                      threads_for(work, Codec::kUnitThreads), stream);
    }
};

}  // namespace
}  // namespace slimwire
