// Kernels of the block integers; byte for byte the bodies of codecs/host/block_int_kernels.h. A
// warp encodes a span of 256 elements (or one block, where blocks are larger), eight consecutive
// elements per thread; a block's maximum is taken by shuffles among the lanes that share it. Blocks
// above 256 elements are read twice, the second time from cache, instead of being held in
// registers. Instantiated by int8.cu, int6.cu, int4.cu, int2.cu.
#pragma once

#include "codecs/cuda/elements.cuh"
#include "codecs/cuda/launchers.h"
#include "codecs/cuda/work.cuh"

namespace slimwire {
namespace {

constexpr int64_t kSpanElems = kWarpThreads * kPerThread;

// Evaluated here because device code may not call constant expressions of host functions.
template <int kBits>
struct Limits {
    static constexpr float kLargestCode = largest_code(kBits);
    static constexpr uint32_t kMaxScaleBits = max_scale_bits(kBits);
};

struct Shape {
    int64_t block;
    int log2_block;
    int lanes;   // lanes that share a block, at most a warp
    int rounds;  // times a warp goes over a span: block / 256, at least 1
    bool scale_is_float32;

    __device__ __forceinline__ int64_t padded(int64_t count) const {
        return (count + block - 1) >> log2_block << log2_block;
    }
    __device__ __forceinline__ int64_t span_elems() const { return kSpanElems * rounds; }
};

__device__ __forceinline__ Shape shape_of(const CodecParams& params) {
    const int block = params.block;
    return {block, 31 - __clz(block), block >= kSpanElems ? kWarpThreads : block / kPerThread,
            block > kSpanElems ? static_cast<int>(block / kSpanElems) : 1,
            params.scale_type == static_cast<uint8_t>(ScaleType::kFloat32)};
}

__device__ __forceinline__ void put_scale(uint8_t* scales,
                                          int64_t b,
                                          uint32_t bits,
                                          bool scale_is_float32) {
    if (scale_is_float32) {
        reinterpret_cast<uint32_t*>(scales)[b] = bits;
    } else {
        reinterpret_cast<uint16_t*>(scales)[b] = static_cast<uint16_t>(bits >> 16);
    }
}
__device__ __forceinline__ uint32_t get_scale(const uint8_t* scales,
                                              int64_t b,
                                              bool scale_is_float32) {
    return scale_is_float32
               ? reinterpret_cast<const uint32_t*>(scales)[b]
               : static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(scales)[b]) << 16;
}

// fp32 bits of the scale for a block of this largest magnitude, neither zero nor non-finite.
template <int kBits>
__device__ __forceinline__ uint32_t choose_scale(uint32_t magnitude, bool scale_is_float32) {
    uint32_t bits =
        __float_as_uint(__fdiv_rn(__uint_as_float(magnitude), Limits<kBits>::kLargestCode));
    if (!scale_is_float32) {
        bits = (bits + 0xFFFF) & 0xFFFF0000u;
    }
    bits = min(bits, Limits<kBits>::kMaxScaleBits);
    return max(bits, kMinScaleBits);
}

// Eight codes as a little-endian bit stream, in one store.
template <int kBits>
__device__ __forceinline__ void put_codes(uint8_t* to, const uint32_t (&code)[kPerThread]) {
    constexpr uint32_t kMask = (1u << kBits) - 1;
    if constexpr (kBits == 8) {
        uint32_t w[2] = {0, 0};
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            w[k / 4] |= (code[k] & kMask) << (8 * (k % 4));
        }
        *reinterpret_cast<uint2*>(to) = make_uint2(w[0], w[1]);
    } else if constexpr (kBits == 6) {
        uint64_t w = 0;
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            w |= static_cast<uint64_t>(code[k] & kMask) << (kBits * k);
        }
#pragma unroll
        for (int k = 0; k < 3; ++k) {
            reinterpret_cast<uint16_t*>(to)[k] = static_cast<uint16_t>(w >> (16 * k));
        }
    } else {
        uint32_t w = 0;
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            w |= (code[k] & kMask) << (kBits * k);
        }
        if constexpr (kBits == 4) {
            *reinterpret_cast<uint32_t*>(to) = w;
        } else {
            *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(w);
        }
    }
}

// code * scale of eight codes; NaN under a non-finite scale.
template <int kBits>
__device__ __forceinline__ void get_values(const uint8_t* from, uint32_t scale_bits, Eight& x) {
    uint32_t w[2];
    if constexpr (kBits == 8) {
        const uint2 words = *reinterpret_cast<const uint2*>(from);
        w[0] = words.x;
        w[1] = words.y;
    } else if constexpr (kBits == 6) {
        const uint16_t* half = reinterpret_cast<const uint16_t*>(from);
        w[0] = half[0] | static_cast<uint32_t>(half[1] & 0xFF) << 16;
        w[1] = half[1] >> 8 | static_cast<uint32_t>(half[2]) << 8;
    } else if constexpr (kBits == 4) {
        w[0] = *reinterpret_cast<const uint32_t*>(from);
        w[1] = w[0] >> 16;
    } else {
        w[0] = *reinterpret_cast<const uint16_t*>(from);
        w[1] = w[0] >> 8;
    }
    const bool poison = (scale_bits & kMagnitudeMask) >= kInfinityBits;
    const float scale = __uint_as_float(scale_bits);
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
        const uint32_t up = w[k / 4] << (32 - kBits - kBits * (k % 4));
        const float code = static_cast<float>(static_cast<int32_t>(up) >> (32 - kBits));
        x.v[k] = poison ? __uint_as_float(kNanFloat32) : __fmul_rn(code, scale);
    }
}

// Encodes the span that starts at element `begin` of a chunk of `count`; one whole warp calls it.
template <int kBits, class Source>
__device__ __forceinline__ void encode_span(const Source& source,
                                            const Shape& shape,
                                            int64_t begin,
                                            int64_t count,
                                            uint8_t* output,
                                            float* residual) {
    const int64_t padded = shape.padded(count);
    const int64_t first = begin + int64_t{threadIdx.x % kWarpThreads} * kPerThread;
    Eight p;
    uint32_t magnitude = 0;
    for (int round = 0; round < shape.rounds; ++round) {
        source.eight(first + round * kSpanElems, p);
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
    const uint32_t chosen = choose_scale<kBits>(magnitude, shape.scale_is_float32);
    const float scale = empty ? 0.0f : __uint_as_float(chosen);
    const float inverse = empty ? 0.0f : __fdiv_rn(1.0f, __uint_as_float(chosen));

    for (int round = 0; round < shape.rounds; ++round) {
        const int64_t i = first + round * kSpanElems;
        if (i >= padded) {
            break;
        }
        if (shape.rounds > 1) {
            source.eight(i, p);
        }
        uint32_t code[kPerThread];
        Eight left;
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            const float rounded = __fmaf_rn(p.v[k], inverse, kRoundingMagic);
            code[k] = poison ? 0 : __float_as_uint(rounded);
            left.v[k] = __fsub_rn(p.v[k], __fmul_rn(__fsub_rn(rounded, kRoundingMagic), scale));
        }
        put_codes<kBits>(output + i * kBits / 8, code);
        if ((i & (shape.block - 1)) == 0) {
            put_scale(output + padded * kBits / 8, i >> shape.log2_block,
                      poison ? kNanScaleBits : __float_as_uint(scale), shape.scale_is_float32);
        }
        if (residual != nullptr && !poison) {
            store_eight<Float32>(reinterpret_cast<uint8_t*>(residual), i, count, left);
        }
    }
}

// Where p comes from when encodings are summed.
template <int kBits>
struct ReduceSource {
    const uint8_t* input;
    const float* residual;
    int64_t input_stride;
    int64_t count;
    int64_t codes_bytes;
    int32_t inputs;
    float factor;
    Shape shape;

    __device__ __forceinline__ void eight(int64_t i, Eight& p) const {
        p = {};
        if (i >= count) {
            return;
        }
        const uint8_t* from = input;
        for (int32_t s = 0; s < inputs; ++s, from += input_stride) {
            Eight x;
            get_values<kBits>(
                from + i * kBits / 8,
                get_scale(from + codes_bytes, i >> shape.log2_block, shape.scale_is_float32), x);
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                p.v[k] = s == 0 ? x.v[k] : __fadd_rn(p.v[k], x.v[k]);
            }
        }
        scale_and_add(factor, residual, i, count, p);
    }
};

template <int kBits, class Element>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    encode_kernel(EncodeArgs args, Work work) {
    const Shape shape = shape_of(args.params);
    const float factor = encode_factor<Element>(args);
    work.walk(thread_index() / kWarpThreads, thread_total() / kWarpThreads, shape.span_elems(),
              [&](int64_t chunk, int64_t span, int64_t count) {
                  const int64_t at = chunk * work.chunk_elems;
                  float* residual = args.residual != nullptr ? args.residual + at : nullptr;
                  const UserSource<Element> source{
                      static_cast<const uint8_t*>(args.input) + at * Element::kBytes, residual,
                      count, factor};
                  encode_span<kBits>(source, shape, span * shape.span_elems(), count,
                                     static_cast<uint8_t*>(args.output) + chunk * args.slot_bytes,
                                     residual);
              });
}

template <int kBits, class Element>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    decode_kernel(DecodeArgs args, Work work) {
    const Shape shape = shape_of(args.params);
    work.walk(thread_index(), thread_total(), kPerThread,
              [&](int64_t chunk, int64_t unit, int64_t count) {
                  const uint8_t* input =
                      static_cast<const uint8_t*>(args.input) + chunk * args.slot_bytes;
                  const int64_t i = unit * kPerThread;
                  Eight x;
                  get_values<kBits>(input + i * kBits / 8,
                                    get_scale(input + shape.padded(count) * kBits / 8,
                                              i >> shape.log2_block, shape.scale_is_float32),
                                    x);
                  deliver<Element>(static_cast<uint8_t*>(args.output) +
                                       chunk * work.chunk_elems * Element::kBytes,
                                   i, count, args.accumulate, x);
              });
}

template <int kBits>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    reduce_kernel(DecodeReduceEncodeArgs args, Work work) {
    const Shape shape = shape_of(args.params);
    const ReduceSource<kBits> source{
        static_cast<const uint8_t*>(args.input), args.residual, args.input_stride, args.count,
        shape.padded(args.count) * kBits / 8,    args.inputs,   args.scale,        shape};
    work.walk(thread_index() / kWarpThreads, thread_total() / kWarpThreads, shape.span_elems(),
              [&](int64_t, int64_t span, int64_t count) {
                  encode_span<kBits>(source, shape, span * shape.span_elems(), count,
                                     static_cast<uint8_t*>(args.output), args.residual);
              });
}

// What the kernels do not do yet.
bool beyond_kernels(const CodecParams& params) {
    return params.rotate != 0 || params.spike != 0 || params.rounding != 0;
}

int64_t span_of(const CodecParams& params) {
    return params.block > kSpanElems ? params.block : kSpanElems;
}

}  // namespace

template <int kBits>
cudaError_t BlockIntCuda<kBits>::encode(const EncodeArgs& args, cudaStream_t stream) {
    if (beyond_kernels(args.params)) {
        return cudaErrorNotSupported;
    }
    if (args.count <= 0) {
        return cudaSuccess;
    }
    const Work work = Work::of(args.count, args.chunk_elems, span_of(args.params));
    return visit(args.dtype, [&](auto element) {
        return launch(encode_kernel<kBits, decltype(element)>, args, work,
                      threads_for(work, kWarpThreads), stream);
    });
}

template <int kBits>
cudaError_t BlockIntCuda<kBits>::decode(const DecodeArgs& args, cudaStream_t stream) {
    if (beyond_kernels(args.params)) {
        return cudaErrorNotSupported;
    }
    if (args.count <= 0) {
        return cudaSuccess;
    }
    const Work work = Work::of(args.count, args.chunk_elems, kPerThread);
    return visit(args.dtype, [&](auto element) {
        return launch(decode_kernel<kBits, decltype(element)>, args, work, threads_for(work, 1),
                      stream);
    });
}

template <int kBits>
cudaError_t BlockIntCuda<kBits>::reduce(const DecodeReduceEncodeArgs& args, cudaStream_t stream) {
    if (beyond_kernels(args.params)) {
        return cudaErrorNotSupported;
    }
    if (args.count <= 0 || args.inputs <= 0) {
        return cudaSuccess;
    }
    const Work work = Work::of(args.count, args.count, span_of(args.params));
    return launch(reduce_kernel<kBits>, args, work, threads_for(work, kWarpThreads), stream);
}

}  // namespace slimwire
