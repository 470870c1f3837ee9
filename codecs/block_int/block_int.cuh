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
    const Encoder& encoder;

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
            encoder.rotation.forward_within(encoder.shape.unrotate, p, y);
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
// The same over R.
template <int kBits>
__device__ __forceinline__ void sum_parts(EncodingSum<BlockIntCodes<kBits>> sources,
                                          int64_t i,
                                          Eight (&parts)[kSpans]) {
    sources.input_scale = __fmul_rn(sources.input_scale, sources.codec.shape.unrotate);
    sum_rotated(sources, i, parts);
}
// Sums beside which others are formed: out of registers, which have no room for both.
class SetAside {
  public:
    __device__ __forceinline__ explicit SetAside(const Eight (&x)[kSpans]) {
#pragma unroll
        for (int i = 0; i < kSpans * kPerThread; ++i) {
            kept_[i] = x[i / kPerThread].v[i % kPerThread];
        }
    }
    // Times `factor` in the place of x where they are finite.
    __device__ __forceinline__ void bring_back(Eight (&x)[kSpans], float factor = 1.0f) const {
#pragma unroll
        for (int i = 0; i < kSpans * kPerThread; ++i) {
            const float old = kept_[i];
            float& other = x[i / kPerThread].v[i % kPerThread];
            other = magnitude_of(old) < kInfinityBits ? __fmul_rn(old, factor) : other;
        }
    }

  private:
    volatile float kept_[kSpans * kPerThread];
};
// The sums, their rotation undone.
template <int kBits>
__device__ __forceinline__ void sum_elements_of(const EncodingSum<BlockIntCodes<kBits>>& sources,
                                                const Rotation& rotation,
                                                int64_t i,
                                                Eight (&x)[kSpans]) {
    sum_rotated(sources, i, x);
    Rotation::scale_spans(x, sources.codec.shape.unrotate);
    if (Rotation::leaves(x)) {
        const SetAside sums(x);
        sum_parts(sources, i, x);
        sums.bring_back(x);
    }
    rotation.backward(x);
}

// The sum of encodings.
template <class Variant>
struct SumLoad {
    const EncodingSum<BlockIntCodes<Variant::kBits>>& sources;
    const Encoder& encoder;

    __device__ __forceinline__ uint32_t most() const { return sources.most(); }
    __device__ __forceinline__ void load(int64_t i, Eight (&p)[kSpans], Eight (&y)[kSpans]) const {
        if constexpr (!Variant::kRotated) {
            sources.spans(i, p);
        } else if (sources.residual == nullptr) {
            sum_rotated(sources, i, p);
            Rotation::scale_spans(p, sources.factor);
        } else {
            sum_elements_of(sources, encoder.rotation, i, p);
#pragma unroll
            for (int g = 0; g < kSpans; ++g) {
                limit_sums(sources.sum_limit, p[g]);
                scale_and_add(sources.factor, overflow_bits(sources.dtype), sources.residual,
                              i + g * kWarpElems, sources.count, p[g]);
            }
        }
#pragma unroll
        for (int g = 0; g < kSpans; ++g) {
            y[g] = p[g];
        }
        if constexpr (Variant::kRotated) {
            if (sources.residual != nullptr) {
                encoder.rotation.forward_within(encoder.shape.unrotate, p, y);
            } else {
                overflow_rotated(i, p, y);  // p is for a residual
            }
        }
    }

  private:
    // y of the groups becomes infinite of which the user's type would round an element to infinity.
    // x holds nothing.
    __device__ __forceinline__ void overflow_rotated(int64_t i,
                                                     Eight (&x)[kSpans],
                                                     Eight (&y)[kSpans]) const {
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
        const uint32_t near = overflow < kInfinityBits ? overflow - (1u << 23) : kInfinityBits;
        if (!__any_sync(0xFFFFFFFFu, most >= near)) {
            return;
        }
        // Looked for in smaller numbers, as a limit may be above the largest fp32.
        constexpr float kSmaller = 0x1p-10f;
        const uint32_t smaller =
            limit.most == kNoSumLimit
                ? overflow_bits(sources.dtype) - (10u << 23)
                : __float_as_uint(__fmul_rn(
                      __fmul_rn(__fmul_rn(kSmaller, limit.most), limit.overflow), sources.factor));
        const float unit = __fmul_rn(encoder.shape.unrotate, kSmaller);
        if (Rotation::leaves(y)) {
            const SetAside sums(y);
            sum_parts(sources, i, y);
            Rotation::scale_spans(y, __fmul_rn(sources.factor, kSmaller));
#pragma unroll
            for (int g = 0; g < kSpans; ++g) {
                x[g] = y[g];
                Rotation::limit_wholes(y[g], __fdiv_rn(1.0f, unit));
            }
            sums.bring_back(y);
            sums.bring_back(x, unit);
        } else {
#pragma unroll
            for (int g = 0; g < kSpans; ++g) {
                x[g] = y[g];
            }
            Rotation::scale_spans(x, unit);
        }
        encoder.rotation.backward(x);
        uint32_t largest[kSpans] = {largest_of(x[0]), largest_of(x[1])};
        share_largest(largest, encoder.shape.rotate);
        const uint32_t from = min(smaller, kInfinityBits);
#pragma unroll
        for (int g = 0; g < kSpans; ++g) {
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                y[g].v[k] = largest[g] >= from ? __uint_as_float(kInfinityBits) : y[g].v[k];
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
                      encoder};
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
    const Rotation rotation = Rotation::of(sources.codec.shape);
    work.walk(thread_index() / kWarpThreads, thread_total() / kWarpThreads, kUnitElems,
              [&](int64_t, int64_t unit, int64_t count) {
                  const int64_t i = first_of_spans(unit);
                  Eight x[kSpans];
                  sum_elements_of(sources, rotation, i, x);
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
