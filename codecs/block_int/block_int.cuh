// Kernels of the block integers; byte for byte the bodies of
// codecs/block_int/host/block_int_kernels.h. Plain ones know their rounding when they are compiled,
// those that rotate read it from the arguments. Instantiated by int8.cu, int4.cu, int2.cu.
#pragma once

#include "codecs/block_int/block_int_unit.cuh"

namespace slimwire {
namespace {

// What an encoding kernel was compiled for. Without a rotation and draws also whether there may be
// a residual, which takes registers.
template <int kBitsOf, bool kRotatedOf, bool kStochasticOf, bool kResidualOf>
struct Variant {
    static constexpr int kBits = kBitsOf;
    static constexpr bool kRotated = kRotatedOf;
    static constexpr bool kStochastic = kStochasticOf;
    static constexpr bool kResidual = kResidualOf;
    // Thread blocks that must fit a multiprocessor, so that no register spills: two spans, and p
    // beside what a rotation makes of it, take room.
    static constexpr int kBlocks = kRotated || kResidual ? 2 : 3;
};

// Calls run(Variant{}) with the one that does what the arguments ask for.
template <int kBits, class Run>
cudaError_t with_variant(const CodecParams& params, const float* residual, Run run) {
    if (params.rotate != 0) {
        return run(Variant<kBits, true, false, true>{});
    }
    if (draws(params)) {
        return run(Variant<kBits, false, true, true>{});
    }
    return residual != nullptr ? run(Variant<kBits, false, false, true>{})
                               : run(Variant<kBits, false, false, false>{});
}

template <class Variant>
__device__ __forceinline__ Encoder encoder_of(const CodecParams& params,
                                              const RandomKey& random,
                                              RandomPurpose purpose) {
    Encoder encoder;
    encoder.shape = block_int_shape(params);
    if (Variant::kRotated) {
        encoder.rotation = Rotation::of(encoder.shape);
    }
    encoder.random = DeviceRandom::of(random, purpose);
    return encoder;
}

// The user's elements.
template <bool kRotated, class Element>
struct ElementLoad {
    UserSource<Element> source;
    const Rotation& rotation;

    __device__ static constexpr uint32_t most() { return Element::kMaxBits; }
    __device__ __forceinline__ void load(int64_t i, Eight (&p)[kSpans], Eight (&y)[kSpans]) const {
        if constexpr (!kRotated) {
            source.spans(i, p);
        }
#pragma unroll
        for (int g = 0; g < kSpans; ++g) {
            if constexpr (kRotated) {  // which leaves no registers for both at once
                source.eight(i + g * kWarpElems, p[g]);
            }
            y[g] = p[g];
        }
        if constexpr (kRotated) {
            rotation.forward(y);
        }
    }
};

// The sums of elements with a rotation, before it is undone; zero from `layout.padded` on.
template <int kBits>
__device__ __forceinline__ void sum_rotated(const EncodingSum<BlockIntCodes<kBits>>& sources,
                                            int64_t i,
                                            Eight (&sum)[kSpans]) {
    sources.sum(i, sources.layout.padded, kMaxFloat32Bits, sum);
#pragma unroll
    for (int g = 0; g < kSpans; ++g) {
        if (i + g * kWarpElems >= sources.layout.padded) {
            sum[g] = {};
        }
    }
}

// The sum of encodings.
template <class Variant>
struct SumLoad {
    const EncodingSum<BlockIntCodes<Variant::kBits>>& sources;
    const Encoder& encoder;

    __device__ __forceinline__ uint32_t most() const { return sources.most(); }
    __device__ __forceinline__ void load(int64_t i, Eight (&p)[kSpans], Eight (&y)[kSpans]) const {
        if constexpr (Variant::kRotated) {
            const float unrotate = encoder.shape.unrotate;
            sum_rotated(sources, i, p);
            scale(p, sources.residual == nullptr ? sources.factor : unrotate);
            if (sources.residual != nullptr) {
                encoder.rotation.backward(p);
#pragma unroll
                for (int g = 0; g < kSpans; ++g) {
                    limit_sums(sources.sum_limit, p[g]);
                    scale_and_add(sources.factor, overflow_bits(sources.dtype), sources.residual,
                                  i + g * kWarpElems, sources.count, p[g]);
                }
            }
        } else {
            sources.spans(i, p);
        }
#pragma unroll
        for (int g = 0; g < kSpans; ++g) {
            y[g] = p[g];
        }
        if constexpr (Variant::kRotated) {
            if (sources.residual != nullptr) {
                encoder.rotation.forward(y);
            } else {
                overflow_rotated(y);
            }
        }
    }

  private:
    // y of the groups becomes infinite of which the user's type would round an element to infinity.
    __device__ __forceinline__ void overflow_rotated(Eight (&y)[kSpans]) const {
        const SumLimit& limit = sources.sum_limit;
        const uint32_t overflow =
            limit.most == kNoSumLimit
                ? overflow_bits(sources.dtype)
                : __float_as_uint(__fmul_rn(__fmul_rn(limit.most, limit.overflow), sources.factor));
        uint32_t most = 0;
#pragma unroll
        for (int g = 0; g < kSpans; ++g) {
            most = max(most, largest_of(y[g]));
        }
        // No element is above the largest of its group, but for roundings.
        if (overflow >= kInfinityBits || !__any_sync(0xFFFFFFFFu, most >= overflow - (1u << 23))) {
            return;
        }
        Eight x[kSpans];
#pragma unroll
        for (int g = 0; g < kSpans; ++g) {
            x[g] = y[g];
        }
        scale(x, encoder.shape.unrotate);
        encoder.rotation.backward(x);
        uint32_t largest[kSpans] = {largest_of(x[0]), largest_of(x[1])};
        share_largest(largest, encoder.shape.rotate);
#pragma unroll
        for (int g = 0; g < kSpans; ++g) {
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                y[g].v[k] = largest[g] >= overflow ? __uint_as_float(kInfinityBits) : y[g].v[k];
            }
        }
    }
    __device__ static __forceinline__ void scale(Eight (&x)[kSpans], float factor) {
#pragma unroll
        for (int g = 0; g < kSpans; ++g) {
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                x[g].v[k] = __fmul_rn(x[g].v[k], factor);
            }
        }
    }
};

template <class Variant, class Element>
__global__ void __launch_bounds__(kThreads, Variant::kBlocks)
    block_int_encode_kernel(EncodeArgs args, Work work) {
    const float factor = encode_factor<Element>(args);
    const Encoder encoder = encoder_of<Variant>(args.params, args.random, RandomPurpose::kEncode);
    const int64_t unit_elems = unit_of(args.params);
    work.walk(thread_index() / kWarpThreads, thread_total() / kWarpThreads, unit_elems,
              [&](int64_t chunk, int64_t unit, int64_t count) {
                  const int64_t at = chunk * work.chunk_elems;
                  float* residual =
                      Variant::kResidual && args.residual != nullptr ? args.residual + at : nullptr;
                  const ElementLoad<Variant::kRotated, Element> source{
                      {static_cast<const uint8_t*>(args.input) + at * Element::kBytes, residual,
                       count, factor},
                      encoder.rotation};
                  encode_unit<Variant>(
                      encoder, source, static_cast<uint32_t>(chunk), unit * unit_elems, count,
                      static_cast<uint8_t*>(args.output) + chunk * args.slot_bytes, residual);
              });
}

template <class Variant>
__global__ void __launch_bounds__(kThreads, Variant::kBlocks)
    block_int_reduce_kernel(DecodeReduceEncodeArgs args, Work work) {
    const Encoder encoder = encoder_of<Variant>(args.params, args.random, RandomPurpose::kReduce);
    float* residual = Variant::kResidual ? args.residual : nullptr;
    const auto sources = EncodingSum<BlockIntCodes<Variant::kBits>>::of(args, residual);
    const SumLoad<Variant> source{sources, encoder};
    const int64_t unit_elems = unit_of(args.params);
    work.walk(thread_index() / kWarpThreads, thread_total() / kWarpThreads, unit_elems,
              [&](int64_t, int64_t unit, int64_t count) {
                  encode_unit<Variant>(encoder, source, 0, unit * unit_elems, count,
                                       static_cast<uint8_t*>(args.output), residual);
              });
}

// With rotation: a warp takes two spans.
template <int kBits, class Element>
__global__ void __launch_bounds__(kThreads, 2)
    block_int_decode_rotated_kernel(DecodeArgs args, Work work) {
    const auto codec = BlockIntCodes<kBits>::of(args.params);
    const Rotation rotation = Rotation::of(codec.shape);
    work.walk(thread_index() / kWarpThreads, thread_total() / kWarpThreads, kUnitElems,
              [&](int64_t chunk, int64_t unit, int64_t count) {
                  const int64_t i = first_of_spans(unit);
                  const BlockIntLayout layout = codec.layout(count);
                  const auto* encoding =
                      static_cast<const uint8_t*>(args.input) + chunk * args.slot_bytes;
                  Eight x[kSpans] = {};
#pragma unroll
                  for (int g = 0; g < kSpans; ++g) {
                      const int64_t at = i + g * kWarpElems;
                      if (at < layout.padded) {
                          typename BlockIntCodes<kBits>::Codes codes;
                          codec.load(encoding, layout, at, codes);
                          codec.values(codes, kMaxFloat32Bits, x[g], codec.shape.unrotate);
                      }
                  }
                  rotation.backward(x);
#pragma unroll
                  for (int g = 0; g < kSpans; ++g) {
                      keep_within(Element::kMaxBits, x[g]);
                      deliver<Element>(static_cast<uint8_t*>(args.output) +
                                           chunk * work.chunk_elems * Element::kBytes,
                                       i + g * kWarpElems, count, args.accumulate, x[g],
                                       args.sum_limit);
                  }
              });
}

// With rotation.
template <int kBits>
__global__ void __launch_bounds__(kThreads, 2)
    block_int_sum_rotated_kernel(DecodeReduceArgs args, Work work) {
    const auto sources = EncodingSum<BlockIntCodes<kBits>>::of(args, nullptr);
    const BlockIntShape& shape = sources.codec.shape;
    const Rotation rotation = Rotation::of(shape);
    work.walk(thread_index() / kWarpThreads, thread_total() / kWarpThreads, kUnitElems,
              [&](int64_t, int64_t unit, int64_t count) {
                  const int64_t i = first_of_spans(unit);
                  Eight x[kSpans];
                  sum_rotated(sources, i, x);
#pragma unroll
                  for (int g = 0; g < kSpans; ++g) {
#pragma unroll
                      for (int k = 0; k < kPerThread; ++k) {
                          x[g].v[k] = __fmul_rn(x[g].v[k], shape.unrotate);
                      }
                  }
                  rotation.backward(x);
#pragma unroll
                  for (int g = 0; g < kSpans; ++g) {
                      const int64_t at = i + g * kWarpElems;
                      limit_sums(args.sum_limit, x[g]);
                      scale_and_add(args.scale, kInfinityBits, nullptr, at, count, x[g]);
                      deliver(args.dtype, static_cast<uint8_t*>(args.output), at, count, false,
                              x[g]);
                  }
              });
}

}  // namespace

template <int kBits>
struct BlockIntKernels {
    static cudaError_t encode(const EncodeArgs& args, cudaStream_t stream) {
        return with_variant<kBits>(args.params, args.residual, [&](auto variant) {
            using Variant = decltype(variant);
            const Work work = Work::of(args.count, args.chunk_elems, unit_of(args.params));
            return visit(args.dtype, [&](auto element) {
                return launch(block_int_encode_kernel<Variant, decltype(element)>, args, work,
                              kWarpThreads, stream);
            });
        });
    }

    static cudaError_t decode(const DecodeArgs& args, cudaStream_t stream) {
        if (args.params.rotate == 0) {
            return launch_decode<BlockIntCodes<kBits>>(args, stream);
        }
        const Work work = Work::of(args.count, args.chunk_elems, kUnitElems);
        return visit(args.dtype, [&](auto element) {
            return launch(block_int_decode_rotated_kernel<kBits, decltype(element)>, args, work,
                          kWarpThreads, stream);
        });
    }

    static cudaError_t reduce(const DecodeReduceEncodeArgs& args, cudaStream_t stream) {
        return with_variant<kBits>(args.params, args.residual, [&](auto variant) {
            const Work work = Work::of(args.count, args.count, unit_of(args.params));
            return launch(block_int_reduce_kernel<decltype(variant)>, args, work, kWarpThreads,
                          stream);
        });
    }

    static cudaError_t sum(const DecodeReduceArgs& args, cudaStream_t stream) {
        if (args.params.rotate == 0) {
            return launch_sum<BlockIntCodes<kBits>>(args, stream);
        }
        const Work work = Work::of(args.count, args.count, kUnitElems);
        return launch(block_int_sum_rotated_kernel<kBits>, args, work, kWarpThreads, stream);
    }
};

}  // namespace slimwire
