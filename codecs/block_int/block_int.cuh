// Kernels of the block integers; byte for byte the bodies of
// codecs/block_int/host/block_int_kernels.h. Plain ones know their rounding when they are compiled,
// those that rotate read it from the arguments. Instantiated by int8.cu, int4.cu, int2.cu.
#pragma once

#include "codecs/block_int/block_int_unit.cuh"
#include "codecs/block_int/launchers.h"

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
#pragma unroll
        for (int g = 0; g < kSpans; ++g) {
            source.eight(i + g * kWarpElems, p[g]);
            y[g] = p[g];
        }
        if constexpr (kRotated) {
            rotation.forward(y);
        }
    }
};

// The sum of eight decoded values over the sources, each of which ends at `most`.
template <int kBits, class Args>
__device__ __forceinline__ void sum_eight(const Args& args,
                                          const BlockIntShape& shape,
                                          const BlockIntLayout& layout,
                                          int64_t i,
                                          uint32_t most,
                                          Eight& sum) {
    const auto* from = static_cast<const uint8_t*>(args.input);
    decode_eight<kBits>(from, shape, layout, i, 1.0f, most, sum);
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
        sum.v[k] = __fmul_rn(args.input_scale, sum.v[k]);
    }
#pragma unroll 1
    for (int32_t s = 1; s < args.inputs; ++s) {
        from += args.input_stride;
        Eight x;
        decode_eight<kBits>(from, shape, layout, i, 1.0f, most, x);
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            sum.v[k] = __fmaf_rn(args.input_scale, x.v[k], sum.v[k]);
        }
    }
}

// The sum of encodings.
template <class Variant>
struct SumLoad {
    const DecodeReduceEncodeArgs& args;
    const Encoder& encoder;
    const float* residual;

    __device__ __forceinline__ uint32_t most() const { return max_bits(args.dtype); }
    __device__ __forceinline__ void load(int64_t i, Eight (&p)[kSpans], Eight (&y)[kSpans]) const {
        const BlockIntShape& shape = encoder.shape;
        const BlockIntLayout layout = block_int_layout(shape, args.count);
#pragma unroll
        for (int g = 0; g < kSpans; ++g) {
            sum_eight<Variant::kBits>(args, shape, layout, i + g * kWarpElems,
                                      Variant::kRotated ? kMaxFloat32Bits : most(), p[g]);
        }
        if constexpr (Variant::kRotated) {
            scale(p, residual == nullptr ? args.scale : shape.unrotate);
            if (residual != nullptr) {
                encoder.rotation.backward(p);
                finish(i, p, y);
                encoder.rotation.forward(y);
            } else {
#pragma unroll
                for (int g = 0; g < kSpans; ++g) {
                    y[g] = p[g];
                }
                overflow_rotated(y);
            }
        } else {
            finish(i, p, y);
        }
    }

  private:
    // y of the groups becomes infinite of which the user's type would round an element to infinity.
    __device__ __forceinline__ void overflow_rotated(Eight (&y)[kSpans]) const {
        const uint32_t overflow = overflow_bits(args.dtype);
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
    __device__ static __forceinline__ uint32_t largest_of(const Eight& x) {
        uint32_t most = 0;
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            most = max(most, magnitude_of(x.v[k]));
        }
        return most;
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
    __device__ __forceinline__ void finish(int64_t i,
                                           Eight (&p)[kSpans],
                                           Eight (&y)[kSpans]) const {
#pragma unroll
        for (int g = 0; g < kSpans; ++g) {
            scale_and_add(args.scale, overflow_bits(args.dtype), residual, i + g * kWarpElems,
                          args.count, p[g]);
            y[g] = p[g];
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
    const SumLoad<Variant> source{args, encoder, residual};
    const int64_t unit_elems = unit_of(args.params);
    work.walk(thread_index() / kWarpThreads, thread_total() / kWarpThreads, unit_elems,
              [&](int64_t, int64_t unit, int64_t count) {
                  encode_unit<Variant>(encoder, source, 0, unit * unit_elems, count,
                                       static_cast<uint8_t*>(args.output), residual);
              });
}

template <int kBits, class Element>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    block_int_decode_kernel(DecodeArgs args, Work work) {
    const BlockIntShape shape = block_int_shape(args.params);
    work.walk(
        thread_index(), thread_total(), kPerThread,
        [&](int64_t chunk, int64_t unit, int64_t count) {
            Eight x;
            decode_eight<kBits>(static_cast<const uint8_t*>(args.input) + chunk * args.slot_bytes,
                                shape, block_int_layout(shape, count), unit * kPerThread, 1.0f,
                                Element::kMaxBits, x);
            deliver<Element>(
                static_cast<uint8_t*>(args.output) + chunk * work.chunk_elems * Element::kBytes,
                unit * kPerThread, count, args.accumulate, x);
        });
}

// With rotation: a warp takes two spans.
template <int kBits, class Element>
__global__ void __launch_bounds__(kThreads, 2)
    block_int_decode_rotated_kernel(DecodeArgs args, Work work) {
    const BlockIntShape shape = block_int_shape(args.params);
    const Rotation rotation = Rotation::of(shape);
    work.walk(thread_index() / kWarpThreads, thread_total() / kWarpThreads, kUnitElems,
              [&](int64_t chunk, int64_t unit, int64_t count) {
                  const int64_t i =
                      unit * kUnitElems + int64_t{threadIdx.x % kWarpThreads} * kPerThread;
                  const BlockIntLayout layout = block_int_layout(shape, count);
                  Eight x[kSpans];
#pragma unroll
                  for (int g = 0; g < kSpans; ++g) {
                      decode_eight<kBits>(
                          static_cast<const uint8_t*>(args.input) + chunk * args.slot_bytes, shape,
                          layout, i + g * kWarpElems, shape.unrotate, kMaxFloat32Bits, x[g]);
                  }
                  rotation.backward(x);
#pragma unroll
                  for (int g = 0; g < kSpans; ++g) {
                      keep_within(Element::kMaxBits, x[g]);
                      deliver<Element>(static_cast<uint8_t*>(args.output) +
                                           chunk * work.chunk_elems * Element::kBytes,
                                       i + g * kWarpElems, count, args.accumulate, x[g]);
                  }
              });
}

template <int kBits>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    block_int_sum_kernel(DecodeReduceArgs args, Work work) {
    const BlockIntShape shape = block_int_shape(args.params);
    const BlockIntLayout layout = block_int_layout(shape, args.count);
    work.walk(thread_index(), thread_total(), kPerThread, [&](int64_t, int64_t unit, int64_t) {
        const int64_t i = unit * kPerThread;
        Eight x;
        sum_eight<kBits>(args, shape, layout, i, max_bits(args.dtype), x);
        scale_and_add(args.scale, kInfinityBits, nullptr, i, args.count, x);
        deliver(args.dtype, static_cast<uint8_t*>(args.output), i, args.count, false, x);
    });
}

// With rotation.
template <int kBits>
__global__ void __launch_bounds__(kThreads, 2)
    block_int_sum_rotated_kernel(DecodeReduceArgs args, Work work) {
    const BlockIntShape shape = block_int_shape(args.params);
    const BlockIntLayout layout = block_int_layout(shape, args.count);
    const Rotation rotation = Rotation::of(shape);
    work.walk(
        thread_index() / kWarpThreads, thread_total() / kWarpThreads, kUnitElems,
        [&](int64_t, int64_t unit, int64_t count) {
            const int64_t i = unit * kUnitElems + int64_t{threadIdx.x % kWarpThreads} * kPerThread;
            Eight x[kSpans];
#pragma unroll
            for (int g = 0; g < kSpans; ++g) {
                sum_eight<kBits>(args, shape, layout, i + g * kWarpElems, kMaxFloat32Bits, x[g]);
            }
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
                scale_and_add(args.scale, kInfinityBits, nullptr, at, count, x[g]);
                deliver(args.dtype, static_cast<uint8_t*>(args.output), at, count, false, x[g]);
            }
        });
}

}  // namespace

template <int kBits>
cudaError_t BlockIntCuda<kBits>::encode(const EncodeArgs& args, cudaStream_t stream) {
    if (args.count <= 0) {
        return cudaSuccess;
    }
    return with_variant<kBits>(args.params, args.residual, [&](auto variant) {
        using Variant = decltype(variant);
        const Work work = Work::of(args.count, args.chunk_elems, unit_of(args.params));
        return visit(args.dtype, [&](auto element) {
            return launch(block_int_encode_kernel<Variant, decltype(element)>, args, work,
                          threads_for(work, kWarpThreads), stream);
        });
    });
}

template <int kBits>
cudaError_t BlockIntCuda<kBits>::decode(const DecodeArgs& args, cudaStream_t stream) {
    if (args.count <= 0) {
        return cudaSuccess;
    }
    return visit(args.dtype, [&](auto element) {
        using Element = decltype(element);
        if (args.params.rotate == 0) {
            const Work work = Work::of(args.count, args.chunk_elems, kPerThread);
            return launch(block_int_decode_kernel<kBits, Element>, args, work, threads_for(work, 1),
                          stream);
        }
        const Work work = Work::of(args.count, args.chunk_elems, kUnitElems);
        return launch(block_int_decode_rotated_kernel<kBits, Element>, args, work,
                      threads_for(work, kWarpThreads), stream);
    });
}

template <int kBits>
cudaError_t BlockIntCuda<kBits>::reduce(const DecodeReduceEncodeArgs& args, cudaStream_t stream) {
    if (args.count <= 0 || args.inputs <= 0) {
        return cudaSuccess;
    }
    return with_variant<kBits>(args.params, args.residual, [&](auto variant) {
        using Variant = decltype(variant);
        const Work work = Work::of(args.count, args.count, unit_of(args.params));
        return launch(block_int_reduce_kernel<Variant>, args, work, threads_for(work, kWarpThreads),
                      stream);
    });
}

template <int kBits>
cudaError_t BlockIntCuda<kBits>::sum(const DecodeReduceArgs& args, cudaStream_t stream) {
    if (args.count <= 0 || args.inputs <= 0) {
        return cudaSuccess;
    }
    if (args.params.rotate == 0) {
        const Work work = Work::of(args.count, args.count, kPerThread);
        return launch(block_int_sum_kernel<kBits>, args, work, threads_for(work, 1), stream);
    }
    const Work work = Work::of(args.count, args.count, kUnitElems);
    return launch(block_int_sum_rotated_kernel<kBits>, args, work, threads_for(work, kWarpThreads),
                  stream);
}

}  // namespace slimwire
