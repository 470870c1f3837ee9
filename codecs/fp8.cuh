// Kernels of the block floats; byte for byte the bodies of codecs/host/fp8_kernels.h. A warp
// encodes a span of 256 elements (or one block, where blocks are larger; or two spans, where they
// draw), eight consecutive elements per thread; a block's maximum is taken by shuffles among the
// lanes that share it. Blocks above 256 elements are read twice, the second time from cache.
// Instantiated by fp8e4m3.cu and fp8e5m2.cu.
#pragma once

#include <type_traits>

#include "codecs/cuda/elements.cuh"
#include "codecs/cuda/launchers.h"
#include "codecs/cuda/random.cuh"
#include "codecs/cuda/work.cuh"

namespace slimwire {
namespace {

template <DType kTarget>
using Fp8FormatOf = std::conditional_t<kTarget == DType::kFloat8e4m3, Fp8e4m3Format, Fp8e5m2Format>;

struct Fp8Shape {
    int64_t block;
    int log2_block;
    int lanes;   // lanes that share a block, at most a warp
    int rounds;  // times a warp goes over a span: block / 256, at least 1
    bool scale_is_float32;

    __device__ static __forceinline__ Fp8Shape of(const CodecParams& params) {
        const int block = params.block;
        return {block, 31 - __clz(block), block >= kWarpElems ? kWarpThreads : block / kPerThread,
                block > kWarpElems ? static_cast<int>(block / kWarpElems) : 1,
                params.scale_type == static_cast<uint8_t>(ScaleType::kFloat32)};
    }
    // Bytes of the codes: the scales follow them.
    __device__ __forceinline__ int64_t padded(int64_t count) const {
        return (count + block - 1) >> log2_block << log2_block;
    }
};

// Elements that one warp encodes at a time.
__host__ __device__ inline int64_t fp8_unit_elems(const CodecParams& params) {
    const int64_t spans = draws(params) ? 2 * kWarpElems : kWarpElems;
    return params.block > spans ? params.block : spans;
}

__device__ __forceinline__ void put_fp8_scale(uint8_t* scales,
                                              int64_t b,
                                              uint32_t bits,
                                              bool scale_is_float32) {
    if (scale_is_float32) {
        reinterpret_cast<uint32_t*>(scales)[b] = bits;
    } else {
        reinterpret_cast<uint16_t*>(scales)[b] = static_cast<uint16_t>(bits >> 16);
    }
}
__device__ __forceinline__ uint32_t get_fp8_scale(const uint8_t* scales,
                                                  int64_t b,
                                                  bool scale_is_float32) {
    return scale_is_float32
               ? reinterpret_cast<const uint32_t*>(scales)[b]
               : static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(scales)[b]) << 16;
}

// fp32 bits of the scale for a block of this largest magnitude, neither zero nor non-finite.
template <class Format>
__device__ __forceinline__ uint32_t choose_fp8_scale(uint32_t magnitude, bool scale_is_float32) {
    const float largest = Format::kMax;
    uint32_t bits = __float_as_uint(__fdiv_rn(__uint_as_float(magnitude), largest));
    if (!scale_is_float32) {
        bits = (bits + 0xFFFF) & 0xFFFF0000u;
    }
    const uint32_t cap = Format::kMaxScaleBits;
    bits = min(bits, cap);
    return max(bits, kMinScaleBits);
}

// The code of a finite y; `drawn` is twice its random byte plus 1. See fp8_kernels.h.
template <class Format, bool kStochastic>
__device__ __forceinline__ uint32_t fp8_code(float y, uint32_t drawn) {
    constexpr int kDropped = 23 - Format::kFractionBits;
    const uint32_t largest = Format::kMaxBits;
    const uint32_t smallest = Format::kMinNormalBits;
    const uint32_t bits = __float_as_uint(y);
    const uint32_t magnitude = min(bits & kMagnitudeMask, largest);
    const uint32_t exponent = max(magnitude & kInfinityBits, smallest);
    uint32_t steps;
    if constexpr (kStochastic) {
        const float power = __uint_as_float(((254u + 9 + Format::kFractionBits) << 23) - exponent);
        const auto fixed = static_cast<uint32_t>(__fmul_rn(__uint_as_float(magnitude), power));
        steps = (fixed + drawn) >> 9;
    } else {
        const float magic = __uint_as_float(exponent + (static_cast<uint32_t>(kDropped) << 23));
        steps = __float_as_uint(__fadd_rn(__uint_as_float(magnitude), magic)) & 0xFF;
    }
    const uint32_t code = steps + ((exponent - smallest) >> kDropped);
    return code | (bits >> 24 & 0x80);
}

// The codes of two finite y. The hardware's conversion, where there is one, rounds and saturates as
// fp8_code does for nearest even; tests/gpu/codecs compares them.
template <class Format, bool kStochastic>
__device__ __forceinline__ uint32_t
fp8_code_pair(float low, float high, uint32_t drawn_low, uint32_t drawn_high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    if constexpr (!kStochastic) {
        uint16_t pair;
        if constexpr (std::is_same_v<Format, Fp8e4m3Format>) {
            asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(pair) : "f"(low), "f"(high));
        } else {
            asm("cvt.rn.satfinite.e5m2x2.f32 %0, %2, %1;" : "=h"(pair) : "f"(low), "f"(high));
        }
        return pair;
    } else
#endif
    {
        return fp8_code<Format, kStochastic>(low, drawn_low) |
               fp8_code<Format, kStochastic>(high, drawn_high) << 8;
    }
}

// The value of a code, infinity and NaN included.
__device__ __forceinline__ float fp8_value(uint32_t code, Fp8e4m3Format) {
    const float magnitude = (code & 0x7F) == 0x7F
                                ? __uint_as_float(kNanFloat32)
                                : __fmul_rn(__uint_as_float((code & 0x7F) << 20), 0x1p120f);
    return __uint_as_float(__float_as_uint(magnitude) | (code & 0x80) << 24);
}
__device__ __forceinline__ float fp8_value(uint32_t code, Fp8e5m2Format) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(code << 8)));
}

// The values of the two codes in the low half of `pair`.
template <class Format>
__device__ __forceinline__ void fp8_value_pair(uint32_t pair, float& low, float& high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    if constexpr (std::is_same_v<Format, Fp8e4m3Format>) {
        uint32_t halves;
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(pair)));
        low = __half2float(__ushort_as_half(static_cast<unsigned short>(halves)));
        high = __half2float(__ushort_as_half(static_cast<unsigned short>(halves >> 16)));
    } else
#endif
    {
        low = fp8_value(pair & 0xFF, Format{});
        high = fp8_value(pair >> 8 & 0xFF, Format{});
    }
}

// value * scale of eight codes; NaN under a non-finite scale.
template <class Format>
__device__ __forceinline__ void scale_fp8_values(const uint32_t (&w)[2], float scale, Eight& x) {
#pragma unroll
    for (int k = 0; k < kPerThread; k += 2) {
        fp8_value_pair<Format>(w[k / 4] >> (8 * (k % 4)), x.v[k], x.v[k + 1]);
        x.v[k] = __fmul_rn(x.v[k], scale);
        x.v[k + 1] = __fmul_rn(x.v[k + 1], scale);
    }
}
template <class Format>
__device__ __forceinline__ void get_fp8_values(const uint8_t* from, uint32_t scale_bits, Eight& x) {
    const uint2 words = *reinterpret_cast<const uint2*>(from);
    const uint32_t w[2] = {words.x, words.y};
    const bool poison = (scale_bits & kMagnitudeMask) >= kInfinityBits;
    scale_fp8_values<Format>(w, __uint_as_float(poison ? kNanFloat32 : scale_bits), x);
}

// The codes of eight p, the first in the lowest byte.
template <class Format, bool kStochastic>
__device__ __forceinline__ void fp8_codes(const Eight& p,
                                          float inverse,
                                          const EightBytes& bytes,
                                          uint32_t (&w)[2]) {
    w[0] = 0;
    w[1] = 0;
#pragma unroll
    for (int k = 0; k < kPerThread; k += 2) {
        const float low = __fmul_rn(p.v[k], inverse);
        const float high = __fmul_rn(p.v[k + 1], inverse);
        w[k / 4] |=
            fp8_code_pair<Format, kStochastic>(low, high, bytes.drawn(k), bytes.drawn(k + 1))
            << (8 * (k % 4));
    }
}

struct Fp8Output {
    uint8_t* codes;
    uint8_t* scales;
    float* residual;
    int64_t padded;  // elements, whole blocks
};

// Encodes the blocks of one span, or the one block of several rounds, from element `begin` of a
// chunk of `count`; one whole warp calls it. `first` and `other` are drawn where needed.
template <class Format, bool kStochastic, class Source>
__device__ __forceinline__ void encode_fp8_span(const Source& source,
                                                const Fp8Shape& shape,
                                                const DeviceRandom& random,
                                                uint32_t chunk,
                                                int64_t begin,
                                                int64_t count,
                                                const Fp8Output& output,
                                                EightBytes& bytes,
                                                EightBytes& other) {
    const int64_t first = begin + int64_t{threadIdx.x % kWarpThreads} * kPerThread;
    Eight p;
    uint32_t magnitude = 0;
    for (int round = 0; round < shape.rounds; ++round) {
        source.eight(first + round * kWarpElems, p);
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            magnitude = max(magnitude, magnitude_of(p.v[k]));
        }
    }
    for (int lanes = shape.lanes / 2; lanes > 0; lanes /= 2) {
        magnitude = max(magnitude, __shfl_xor_sync(0xFFFFFFFFu, magnitude, lanes));
    }
    const bool poison = magnitude >= kInfinityBits;
    const bool empty = magnitude == 0;
    const uint32_t chosen = choose_fp8_scale<Format>(magnitude, shape.scale_is_float32);
    const float scale = empty ? 0.0f : __uint_as_float(chosen);
    const float inverse = empty || poison ? 0.0f : __fdiv_rn(1.0f, __uint_as_float(chosen));

    for (int round = 0; round < shape.rounds; ++round) {
        const int64_t i = first + round * kWarpElems;
        if constexpr (kStochastic) {
            if ((begin + round * kWarpElems) % (2 * kWarpElems) == 0) {
                draw_twice_eight(random, begin + round * kWarpElems, chunk, bytes, other);
            } else {
                bytes = other;
            }
        }
        if (i >= output.padded) {
            continue;
        }
        if (shape.rounds > 1) {
            source.eight(i, p);
        }
        uint32_t w[2];
        fp8_codes<Format, kStochastic>(p, inverse, bytes, w);
        w[0] = poison ? 0 : w[0];
        w[1] = poison ? 0 : w[1];
        *reinterpret_cast<uint2*>(output.codes + i) = make_uint2(w[0], w[1]);
        if ((i & (shape.block - 1)) == 0) {
            put_fp8_scale(output.scales, i >> shape.log2_block,
                          poison ? kNanScaleBits : __float_as_uint(scale), shape.scale_is_float32);
        }
        if (output.residual != nullptr && !poison) {
            Eight value;
            scale_fp8_values<Format>(w, scale, value);
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                p.v[k] = __fsub_rn(p.v[k], value.v[k]);
            }
            store_eight<Float32>(reinterpret_cast<uint8_t*>(output.residual), i, count, p);
        }
    }
}

// Encodes the unit that starts at element `begin`.
template <class Format, bool kStochastic, class Source>
__device__ __forceinline__ void encode_fp8_unit(const Source& source,
                                                const Fp8Shape& shape,
                                                const DeviceRandom& random,
                                                uint32_t chunk,
                                                int64_t begin,
                                                int64_t count,
                                                uint8_t* codes,
                                                float* residual) {
    const int64_t padded = shape.padded(count);
    const Fp8Output output{codes, codes + padded, residual, padded};
    EightBytes bytes = {};
    EightBytes other = {};
    encode_fp8_span<Format, kStochastic>(source, shape, random, chunk, begin, count, output, bytes,
                                         other);
    if (kStochastic && shape.rounds == 1) {
        encode_fp8_span<Format, kStochastic>(source, shape, random, chunk, begin + kWarpElems,
                                             count, output, bytes, other);
    }
}

// Where p comes from when encodings are summed.
template <class Format>
struct Fp8Sum {
    const uint8_t* input;
    const float* residual;
    int64_t input_stride;
    int64_t count;
    int64_t codes_bytes;
    int32_t inputs;
    float factor;
    Fp8Shape shape;

    __device__ __forceinline__ void eight(int64_t i, Eight& p) const {
        p = {};
        if (i >= count) {
            return;
        }
        const uint8_t* from = input;
        for (int32_t s = 0; s < inputs; ++s, from += input_stride) {
            Eight x;
            get_fp8_values<Format>(
                from + i,
                get_fp8_scale(from + codes_bytes, i >> shape.log2_block, shape.scale_is_float32),
                x);
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                p.v[k] = s == 0 ? x.v[k] : __fadd_rn(p.v[k], x.v[k]);
            }
        }
        scale_and_add(factor, residual, i, count, p);
    }
};

template <class Format, bool kStochastic, class Element>
__global__ void __launch_bounds__(kThreads, resident_blocks(kStochastic))
    fp8_encode_kernel(EncodeArgs args, Work work) {
    const Fp8Shape shape = Fp8Shape::of(args.params);
    const float factor = encode_factor<Element>(args);
    const DeviceRandom random = DeviceRandom::of(args.random, RandomPurpose::kEncode);
    const int64_t unit_elems = fp8_unit_elems(args.params);
    work.walk(thread_index() / kWarpThreads, thread_total() / kWarpThreads, unit_elems,
              [&](int64_t chunk, int64_t unit, int64_t count) {
                  const int64_t at = chunk * work.chunk_elems;
                  float* residual = args.residual != nullptr ? args.residual + at : nullptr;
                  const UserSource<Element> source{
                      static_cast<const uint8_t*>(args.input) + at * Element::kBytes, residual,
                      count, factor};
                  encode_fp8_unit<Format, kStochastic>(
                      source, shape, random, static_cast<uint32_t>(chunk), unit * unit_elems, count,
                      static_cast<uint8_t*>(args.output) + chunk * args.slot_bytes, residual);
              });
}

template <class Format, class Element>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    fp8_decode_kernel(DecodeArgs args, Work work) {
    const Fp8Shape shape = Fp8Shape::of(args.params);
    work.walk(
        thread_index(), thread_total(), kPerThread,
        [&](int64_t chunk, int64_t unit, int64_t count) {
            const uint8_t* input =
                static_cast<const uint8_t*>(args.input) + chunk * args.slot_bytes;
            const int64_t i = unit * kPerThread;
            Eight x;
            get_fp8_values<Format>(input + i,
                                   get_fp8_scale(input + shape.padded(count), i >> shape.log2_block,
                                                 shape.scale_is_float32),
                                   x);
            deliver<Element>(
                static_cast<uint8_t*>(args.output) + chunk * work.chunk_elems * Element::kBytes, i,
                count, args.accumulate, x);
        });
}

template <class Format, bool kStochastic>
__global__ void __launch_bounds__(kThreads, resident_blocks(kStochastic))
    fp8_reduce_kernel(DecodeReduceEncodeArgs args, Work work) {
    const Fp8Shape shape = Fp8Shape::of(args.params);
    const DeviceRandom random = DeviceRandom::of(args.random, RandomPurpose::kReduce);
    const int64_t unit_elems = fp8_unit_elems(args.params);
    const Fp8Sum<Format> source{static_cast<const uint8_t*>(args.input),
                                args.residual,
                                args.input_stride,
                                args.count,
                                shape.padded(args.count),
                                args.inputs,
                                args.scale,
                                shape};
    work.walk(thread_index() / kWarpThreads, thread_total() / kWarpThreads, unit_elems,
              [&](int64_t, int64_t unit, int64_t count) {
                  encode_fp8_unit<Format, kStochastic>(source, shape, random, 0, unit * unit_elems,
                                                       count, static_cast<uint8_t*>(args.output),
                                                       args.residual);
              });
}

template <class Format>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    fp8_sum_kernel(DecodeReduceArgs args, Work work) {
    const Fp8Shape shape = Fp8Shape::of(args.params);
    const Fp8Sum<Format> source{static_cast<const uint8_t*>(args.input),
                                nullptr,
                                args.input_stride,
                                args.count,
                                shape.padded(args.count),
                                args.inputs,
                                args.scale,
                                shape};
    work.walk(thread_index(), thread_total(), kPerThread, [&](int64_t, int64_t unit, int64_t) {
        Eight x;
        source.eight(unit * kPerThread, x);
        deliver(args.dtype, static_cast<uint8_t*>(args.output), unit * kPerThread, args.count,
                false, x);
    });
}

}  // namespace

template <DType kTarget>
cudaError_t Fp8Cuda<kTarget>::encode(const EncodeArgs& args, cudaStream_t stream) {
    if (args.count <= 0) {
        return cudaSuccess;
    }
    using Format = Fp8FormatOf<kTarget>;
    const Work work = Work::of(args.count, args.chunk_elems, fp8_unit_elems(args.params));
    return visit(args.dtype, [&](auto element) {
        using Element = decltype(element);
        return launch(draws(args.params) ? fp8_encode_kernel<Format, true, Element>
                                         : fp8_encode_kernel<Format, false, Element>,
                      args, work, threads_for(work, kWarpThreads), stream);
    });
}

template <DType kTarget>
cudaError_t Fp8Cuda<kTarget>::decode(const DecodeArgs& args, cudaStream_t stream) {
    if (args.count <= 0) {
        return cudaSuccess;
    }
    const Work work = Work::of(args.count, args.chunk_elems, kPerThread);
    return visit(args.dtype, [&](auto element) {
        return launch(fp8_decode_kernel<Fp8FormatOf<kTarget>, decltype(element)>, args, work,
                      threads_for(work, 1), stream);
    });
}

template <DType kTarget>
cudaError_t Fp8Cuda<kTarget>::reduce(const DecodeReduceEncodeArgs& args, cudaStream_t stream) {
    if (args.count <= 0 || args.inputs <= 0) {
        return cudaSuccess;
    }
    using Format = Fp8FormatOf<kTarget>;
    const Work work = Work::of(args.count, args.count, fp8_unit_elems(args.params));
    return launch(
        draws(args.params) ? fp8_reduce_kernel<Format, true> : fp8_reduce_kernel<Format, false>,
        args, work, threads_for(work, kWarpThreads), stream);
}

template <DType kTarget>
cudaError_t Fp8Cuda<kTarget>::sum(const DecodeReduceArgs& args, cudaStream_t stream) {
    if (args.count <= 0 || args.inputs <= 0) {
        return cudaSuccess;
    }
    const Work work = Work::of(args.count, args.count, kPerThread);
    return launch(fp8_sum_kernel<Fp8FormatOf<kTarget>>, args, work, threads_for(work, 1), stream);
}

}  // namespace slimwire
