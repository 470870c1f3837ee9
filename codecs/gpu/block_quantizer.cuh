// Kernels of codecs that make codes of blocks of elements: encode, decode, reduce and sum around
// what a Codec does. A Codec has
//   kEncodeBlocks, kReduceBlocks   thread blocks that must fit a multiprocessor, so that no
//                     register spills; the first also of the kernel that sums without encoding
//   unit_elems(params)   elements of a unit
//   of(params)        what the parameters mean
//   layout(count)     where the planes of an encoding of `count` elements lie
//   encode(source, random, chunk, begin, count, encoding, residual)   the unit from element `begin`
//                     on; a whole warp calls it
//   Codes             eight codes and their scale as they lie in memory
//   kLoadBytes        of them
//   load(encoding, layout, i, codes)   those of elements i, ..., i + 7, one of which is there
//   values(codes, most, x)   what they decode to, within the user's type
#pragma once

#include "codecs/gpu/elements.cuh"
#include "codecs/gpu/random.cuh"
#include "codecs/gpu/work.cuh"

namespace slimwire {
namespace {

// Bytes of encodings that a thread loads before it uses any.
constexpr int kBytesAhead = 48;

// Where the thread's eight elements of the first of a warp's spans begin.
__device__ __forceinline__ int64_t first_of_spans(int64_t unit) {
    return unit * kUnitElems + int64_t{threadIdx.x % kWarpThreads} * kPerThread;
}

// Where eight elements of which one is there begin, if those from element i on are not.
__device__ __forceinline__ int64_t within_count(int64_t i, int64_t count) {
    return i < count ? i : (count - 1) & -int64_t{kPerThread};
}

// The largest of all x that belong to one block, for both spans of the thread.
__device__ __forceinline__ void share_largest(uint32_t (&x)[kSpans], int block) {
    const int lanes = block < kWarpElems ? block / kPerThread : kWarpThreads;
    for (int by = lanes / 2; by > 0; by /= 2) {
#pragma unroll
        for (int g = 0; g < kSpans; ++g) {
            x[g] = max(x[g], __shfl_xor_sync(0xFFFFFFFFu, x[g], by));
        }
    }
    if (kWarpElems < block) {
        x[0] = x[1] = max(x[0], x[1]);
    }
}

// The scale of block b, fp32 bits, in a plane of four bytes or of two, which are the upper ones.
__device__ __forceinline__ void put_scale(uint8_t* scales, int64_t b, uint32_t bits, int bytes) {
    if (bytes == 4) {
        reinterpret_cast<uint32_t*>(scales)[b] = bits;
    } else {
        reinterpret_cast<uint16_t*>(scales)[b] = static_cast<uint16_t>(bits >> 16);
    }
}
// As it lies there.
__device__ __forceinline__ uint32_t load_scale(const uint8_t* scales, int64_t b, int bytes) {
    return bytes == 4 ? reinterpret_cast<const uint32_t*>(scales)[b]
                      : reinterpret_cast<const uint16_t*>(scales)[b];
}

// Where p comes from when encodings are summed.
template <class Codec>
struct EncodingSum {
    const uint8_t* input;
    const float* residual;
    int64_t input_stride;
    int64_t count;
    int32_t inputs;
    float input_scale;
    SumLimit sum_limit;
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
                args.sum_limit,
                args.scale,
                args.dtype,
                codec,
                codec.layout(args.count)};
    }

    __device__ __forceinline__ uint32_t most() const { return max_bits(dtype); }
    // p of as many spans: element i of the first.
    template <int kCount>
    __device__ __forceinline__ void spans(int64_t i, Eight (&p)[kCount]) const {
        sum(i, count, most(), p);
        finish(i, p);
    }
    __device__ __forceinline__ void eight(int64_t i, Eight& p) const {
        Eight one[1];
        spans(i, one);
        p = one[0];
    }

    // The sums alone, of decoded values that end at `most_of_each`; any value from element `end`
    // on.
    template <int kCount>
    __device__ __forceinline__ void sum(int64_t i,
                                        int64_t end,
                                        uint32_t most_of_each,
                                        Eight (&p)[kCount]) const {
        constexpr int kWanted = kBytesAhead / (kCount * Codec::kLoadBytes);
        constexpr int kInputs = kWanted > 2 ? kWanted : 2;
#pragma unroll
        for (int g = 0; g < kCount; ++g) {
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                p[g].v[k] = -0.0f;  // to which any first product adds up to itself
            }
        }
        const uint8_t* from = input;
#pragma unroll 1
        for (int32_t s = 0; s < inputs; s += kInputs, from += kInputs * input_stride) {
            typename Codec::Codes codes[kInputs][kCount];
#pragma unroll
            for (int n = 0; n < kInputs; ++n) {
                if (s + n < inputs) {
#pragma unroll
                    for (int g = 0; g < kCount; ++g) {
                        codec.load(from + n * input_stride, layout,
                                   within_count(i + g * kWarpElems, end), codes[n][g]);
                    }
                }
            }
#pragma unroll
            for (int n = 0; n < kInputs; ++n) {
                if (s + n < inputs) {
#pragma unroll
                    for (int g = 0; g < kCount; ++g) {
                        Eight x;
                        codec.values(codes[n][g], most_of_each, x);
#pragma unroll
                        for (int k = 0; k < kPerThread; ++k) {
                            p[g].v[k] = __fmaf_rn(input_scale, x.v[k], p[g].v[k]);
                        }
                    }
                }
            }
        }
    }
    template <int kCount>
    __device__ __forceinline__ void finish(int64_t i, Eight (&p)[kCount]) const {
        Raw<Float32> old[kCount];
        if (residual != nullptr) {
#pragma unroll
            for (int g = 0; g < kCount; ++g) {
                load_raw<Float32>(reinterpret_cast<const uint8_t*>(residual), i + g * kWarpElems,
                                  count, old[g]);
            }
        }
#pragma unroll
        for (int g = 0; g < kCount; ++g) {
            limit_sums(sum_limit, p[g]);
            scale_and_add(factor, overflow_bits(dtype), residual != nullptr, old[g],
                          i + g * kWarpElems, count, p[g]);
        }
    }
};

template <class Codec, class Element>
__global__ void __launch_bounds__(kThreads, Codec::kEncodeBlocks)
    block_encode_kernel(EncodeArgs args, Work work) {
    const Codec codec = Codec::of(args.params);
    const float factor = encode_factor<Element>(args);
    const DeviceRandom random = DeviceRandom::of(args.random, RandomPurpose::kEncode);
    const int64_t unit_elems = Codec::unit_elems(args.params);
    work.walk(thread_index() / kWarpThreads, thread_total() / kWarpThreads, unit_elems,
              [&](int64_t chunk, int64_t unit, int64_t count) {
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

// A thread decodes eight elements of each of two spans.
template <class Codec, class Element>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    block_decode_kernel(DecodeArgs args, Work work) {
    const Codec codec = Codec::of(args.params);
    work.walk(thread_index() / kWarpThreads, thread_total() / kWarpThreads, kUnitElems,
              [&](int64_t chunk, int64_t unit, int64_t count) {
                  const int64_t i = first_of_spans(unit);
                  const typename Codec::Layout layout = codec.layout(count);
                  const auto* encoding =
                      static_cast<const uint8_t*>(args.input) + chunk * args.slot_bytes;
                  auto* output = static_cast<uint8_t*>(args.output) +
                                 chunk * work.chunk_elems * Element::kBytes;
                  typename Codec::Codes codes[kSpans];
                  Raw<Element> old[kSpans];
#pragma unroll
                  for (int g = 0; g < kSpans; ++g) {
                      const int64_t at = i + g * kWarpElems;
                      codec.load(encoding, layout, within_count(at, count), codes[g]);
                      if (args.accumulate) {
                          load_raw<Element>(output, at, count, old[g]);
                      }
                  }
#pragma unroll
                  for (int g = 0; g < kSpans; ++g) {
                      Eight x;
                      codec.values(codes[g], Element::kMaxBits, x);
                      deliver<Element>(output, i + g * kWarpElems, count, args.accumulate, old[g],
                                       x, args.sum_limit);
                  }
              });
}

template <class Codec>
__global__ void __launch_bounds__(kThreads, Codec::kReduceBlocks)
    block_reduce_kernel(DecodeReduceEncodeArgs args, Work work) {
    const Codec codec = Codec::of(args.params);
    const DeviceRandom random = DeviceRandom::of(args.random, RandomPurpose::kReduce);
    const int64_t unit_elems = Codec::unit_elems(args.params);
    const EncodingSum<Codec> source = EncodingSum<Codec>::of(args, args.residual);
    work.walk(thread_index() / kWarpThreads, thread_total() / kWarpThreads, unit_elems,
              [&](int64_t, int64_t unit, int64_t count) {
                  codec.encode(source, random, 0, unit * unit_elems, count,
                               static_cast<uint8_t*>(args.output), args.residual);
              });
}

template <class Codec>
__global__ void __launch_bounds__(kThreads,
                                  Codec::kEncodeBlocks < kSpanBlocks ? Codec::kEncodeBlocks
                                                                     : kSpanBlocks)
    block_sum_kernel(DecodeReduceArgs args, Work work) {
    const EncodingSum<Codec> source = EncodingSum<Codec>::of(args, nullptr);
    work.walk(thread_index() / kWarpThreads, thread_total() / kWarpThreads, kUnitElems,
              [&](int64_t, int64_t unit, int64_t) {
                  const int64_t i = first_of_spans(unit);
                  Eight x[kSpans];
                  source.spans(i, x);
#pragma unroll
                  for (int g = 0; g < kSpans; ++g) {
                      deliver(args.dtype, static_cast<uint8_t*>(args.output), i + g * kWarpElems,
                              args.count, false, x[g]);
                  }
              });
}

template <class Codec>
cudaError_t launch_decode(const DecodeArgs& args, cudaStream_t stream) {
    const Work work = Work::of(args.count, args.chunk_elems, kUnitElems);
    return visit(args.dtype, [&](auto element) {
        return launch(block_decode_kernel<Codec, decltype(element)>, args, work, kWarpThreads,
                      stream);
    });
}
template <class Codec>
cudaError_t launch_sum(const DecodeReduceArgs& args, cudaStream_t stream) {
    const Work work = Work::of(args.count, args.count, kUnitElems);
    return launch(block_sum_kernel<Codec>, args, work, kWarpThreads, stream);
}

// The launches of a codec, of which Drawing is compiled for stochastic rounding.
template <class Nearest, class Drawing>
struct BlockQuantizer {
    static cudaError_t encode(const EncodeArgs& args, cudaStream_t stream) {
        return draws(args.params) ? encode_by<Drawing>(args, stream)
                                  : encode_by<Nearest>(args, stream);
    }
    static cudaError_t decode(const DecodeArgs& args, cudaStream_t stream) {
        return launch_decode<Nearest>(args, stream);
    }
    static cudaError_t reduce(const DecodeReduceEncodeArgs& args, cudaStream_t stream) {
        return draws(args.params) ? reduce_by<Drawing>(args, stream)
                                  : reduce_by<Nearest>(args, stream);
    }
    static cudaError_t sum(const DecodeReduceArgs& args, cudaStream_t stream) {
        return launch_sum<Nearest>(args, stream);
    }

  private:
    template <class Codec>
    static cudaError_t encode_by(const EncodeArgs& args, cudaStream_t stream) {
        const Work work = Work::of(args.count, args.chunk_elems, Codec::unit_elems(args.params));
        return visit(args.dtype, [&](auto element) {
            return launch(block_encode_kernel<Codec, decltype(element)>, args, work, kWarpThreads,
                          stream);
        });
    }
    template <class Codec>
    static cudaError_t reduce_by(const DecodeReduceEncodeArgs& args, cudaStream_t stream) {
        const Work work = Work::of(args.count, args.count, Codec::unit_elems(args.params));
        return launch(block_reduce_kernel<Codec>, args, work, kWarpThreads, stream);
    }
};

}  // namespace
}  // namespace slimwire
