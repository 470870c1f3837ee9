// Kernels of the block integers; byte for byte the bodies of codecs/host/block_int_kernels.h. Plain
// ones know their rounding when they are compiled, those with extras read it from the arguments. A
// thread holds two spans, or four where a rotation of 1024 asks for it. Instantiated by int8.cu,
// int6.cu, int4.cu, int2.cu.
#pragma once

#include "codecs/block_int_unit.cuh"
#include "codecs/cuda/launchers.h"

namespace slimwire {
namespace {

// What an encoding kernel was compiled for. Without extras and draws also whether there may be a
// residual, which takes registers.
template <int kBitsOf, int kRoundsOf, Extras kExtrasOf, bool kStochasticOf, bool kResidualOf>
struct Variant {
    static constexpr int kBits = kBitsOf;
    static constexpr int kRounds = kRoundsOf;
    static constexpr Extras kExtras = kExtrasOf;
    static constexpr bool kStochastic = kStochasticOf;
    static constexpr bool kResidual = kResidualOf;
    // Thread blocks that must fit a multiprocessor, so that no register spills: two spans, and p
    // beside what a rotation makes of it, take room.
    static constexpr int kBlocks = kExtras == Extras::kAll || kRounds == 4       ? 1
                                   : kExtras == Extras::kRotation || kResidualOf ? 2
                                                                                 : 3;
};

// Calls run(Variant{}) with the one that does what the arguments ask for.
template <int kBits, class Run>
cudaError_t with_variant(const CodecParams& params, const float* residual, Run run) {
    constexpr Extras kNone = Extras::kNone;
    const bool wide = params.rotate > 2 * kWarpElems;
    if (params.spike != 0) {
        return wide ? run(Variant<kBits, 4, Extras::kAll, false, true>{})
                    : run(Variant<kBits, 2, Extras::kAll, false, true>{});
    }
    if (params.rotate != 0) {
        return wide ? run(Variant<kBits, 4, Extras::kRotation, false, true>{})
                    : run(Variant<kBits, 2, Extras::kRotation, false, true>{});
    }
    if (draws(params)) {
        return run(Variant<kBits, 2, kNone, true, true>{});
    }
    return residual != nullptr ? run(Variant<kBits, 2, kNone, false, true>{})
                               : run(Variant<kBits, 2, kNone, false, false>{});
}

template <int kRounds>
__device__ __forceinline__ Encoder<kRounds> encoder_of(const CodecParams& params,
                                                       DType dtype,
                                                       const RandomKey& random,
                                                       RandomPurpose purpose,
                                                       Extras extras) {
    Encoder<kRounds> encoder;
    encoder.shape = block_int_shape(params, dtype);
    if (extras != Extras::kNone) {
        encoder.rotation = Rotation<kRounds>::of(encoder.shape);
    }
    encoder.random = DeviceRandom::of(random, purpose);
    return encoder;
}

// The user's elements.
template <int kRounds, Extras kExtras, class Element>
struct ElementLoad {
    UserSource<Element> source;
    const Rotation<kRounds>& rotation;

    __device__ __forceinline__ void load(int64_t i,
                                         Eight (&p)[kRounds],
                                         Eight (&y)[kRounds]) const {
#pragma unroll
        for (int g = 0; g < kRounds; ++g) {
            source.eight(i + g * kWarpElems, p[g]);
            y[g] = p[g];
        }
        if constexpr (kExtras != Extras::kNone) {
            if (rotation.rotate != 0) {
                rotation.forward(y);
            }
        }
    }
};

// The sum of eight decoded values over the sources.
template <int kBits, Extras kExtras, class Args>
__device__ __forceinline__ void sum_eight(const Args& args,
                                          const BlockIntShape& shape,
                                          const BlockIntLayout& layout,
                                          int64_t i,
                                          Eight& sum) {
    const auto* from = static_cast<const uint8_t*>(args.input);
    decode_eight<kBits, kExtras>(from, shape, layout, i, 1.0f, sum);
#pragma unroll 1
    for (int32_t s = 1; s < args.inputs; ++s) {
        from += args.input_stride;
        Eight x;
        decode_eight<kBits, kExtras>(from, shape, layout, i, 1.0f, x);
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            sum.v[k] = __fadd_rn(sum.v[k], x.v[k]);
        }
    }
}

// The sum of encodings.
template <class Variant>
struct SumLoad {
    static constexpr int kRounds = Variant::kRounds;
    const DecodeReduceEncodeArgs& args;
    const Encoder<kRounds>& encoder;
    const float* residual;

    __device__ __forceinline__ void load(int64_t i,
                                         Eight (&p)[kRounds],
                                         Eight (&y)[kRounds]) const {
        const BlockIntShape& shape = encoder.shape;
        const BlockIntLayout layout = block_int_layout(shape, args.count);
#pragma unroll
        for (int g = 0; g < kRounds; ++g) {
            sum_eight<Variant::kBits, Variant::kExtras>(args, shape, layout, i + g * kWarpElems,
                                                        p[g]);
        }
        if constexpr (Variant::kExtras != Extras::kNone) {
            if (shape.rotate != 0) {
                scale(p, residual == nullptr ? args.scale : shape.unrotate);
                if (residual != nullptr) {
                    encoder.rotation.backward(p);
                    finish(i, p, y);
                    encoder.rotation.forward(y);
                } else {
#pragma unroll
                    for (int g = 0; g < kRounds; ++g) {
                        y[g] = p[g];
                    }
                }
                return;
            }
        }
        finish(i, p, y);
    }

  private:
    __device__ static __forceinline__ void scale(Eight (&x)[kRounds], float factor) {
#pragma unroll
        for (int g = 0; g < kRounds; ++g) {
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                x[g].v[k] = __fmul_rn(x[g].v[k], factor);
            }
        }
    }
    __device__ __forceinline__ void finish(int64_t i,
                                           Eight (&p)[kRounds],
                                           Eight (&y)[kRounds]) const {
#pragma unroll
        for (int g = 0; g < kRounds; ++g) {
            scale_and_add(args.scale, residual, i + g * kWarpElems, args.count, p[g]);
            y[g] = p[g];
        }
    }
};

template <class Variant, class Element>
__global__ void __launch_bounds__(kThreads, Variant::kBlocks)
    block_int_encode_kernel(EncodeArgs args, Work work) {
    constexpr int kRounds = Variant::kRounds;
    const float factor = encode_factor<Element>(args);
    const Encoder<kRounds> encoder = encoder_of<kRounds>(args.params, args.dtype, args.random,
                                                         RandomPurpose::kEncode, Variant::kExtras);
    const int64_t unit_elems = unit_of(args.params, kRounds);
    work.walk(thread_index() / kWarpThreads, thread_total() / kWarpThreads, unit_elems,
              [&](int64_t chunk, int64_t unit, int64_t count) {
                  const int64_t at = chunk * work.chunk_elems;
                  float* residual =
                      Variant::kResidual && args.residual != nullptr ? args.residual + at : nullptr;
                  const ElementLoad<kRounds, Variant::kExtras, Element> source{
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
    constexpr int kRounds = Variant::kRounds;
    const Encoder<kRounds> encoder = encoder_of<kRounds>(args.params, args.dtype, args.random,
                                                         RandomPurpose::kReduce, Variant::kExtras);
    float* residual = Variant::kResidual ? args.residual : nullptr;
    const SumLoad<Variant> source{args, encoder, residual};
    const int64_t unit_elems = unit_of(args.params, kRounds);
    work.walk(thread_index() / kWarpThreads, thread_total() / kWarpThreads, unit_elems,
              [&](int64_t, int64_t unit, int64_t count) {
                  encode_unit<Variant>(encoder, source, 0, unit * unit_elems, count,
                                       static_cast<uint8_t*>(args.output), residual);
              });
}

template <int kBits, class Element>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    block_int_decode_kernel(DecodeArgs args, Work work) {
    const BlockIntShape shape = block_int_shape(args.params, args.dtype);
    work.walk(thread_index(), thread_total(), kPerThread,
              [&](int64_t chunk, int64_t unit, int64_t count) {
                  Eight x;
                  decode_eight<kBits, Extras::kNone>(
                      static_cast<const uint8_t*>(args.input) + chunk * args.slot_bytes, shape,
                      block_int_layout(shape, count), unit * kPerThread, 1.0f, x);
                  deliver<Element>(static_cast<uint8_t*>(args.output) +
                                       chunk * work.chunk_elems * Element::kBytes,
                                   unit * kPerThread, count, args.accumulate, x);
              });
}

// With rotation or spikes: a warp takes kRounds spans.
template <int kBits, int kRounds, class Element>
__global__ void __launch_bounds__(kThreads, kRounds == 4 ? 1 : 2)
    block_int_decode_extras_kernel(DecodeArgs args, Work work) {
    const BlockIntShape shape = block_int_shape(args.params, args.dtype);
    const auto rotation = Rotation<kRounds>::of(shape);
    constexpr int64_t kUnitElems = kRounds * kWarpElems;
    work.walk(thread_index() / kWarpThreads, thread_total() / kWarpThreads, kUnitElems,
              [&](int64_t chunk, int64_t unit, int64_t count) {
                  const int64_t i =
                      unit * kUnitElems + int64_t{threadIdx.x % kWarpThreads} * kPerThread;
                  const BlockIntLayout layout = block_int_layout(shape, count);
                  Eight x[kRounds];
#pragma unroll
                  for (int g = 0; g < kRounds; ++g) {
                      decode_eight<kBits, Extras::kAll>(
                          static_cast<const uint8_t*>(args.input) + chunk * args.slot_bytes, shape,
                          layout, i + g * kWarpElems, shape.unrotate, x[g]);
                  }
                  if (shape.rotate != 0) {
                      rotation.backward(x);
                  }
#pragma unroll
                  for (int g = 0; g < kRounds; ++g) {
                      deliver<Element>(static_cast<uint8_t*>(args.output) +
                                           chunk * work.chunk_elems * Element::kBytes,
                                       i + g * kWarpElems, count, args.accumulate, x[g]);
                  }
              });
}

template <int kBits>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    block_int_sum_kernel(DecodeReduceArgs args, Work work) {
    const BlockIntShape shape = block_int_shape(args.params, args.dtype);
    const BlockIntLayout layout = block_int_layout(shape, args.count);
    work.walk(thread_index(), thread_total(), kPerThread, [&](int64_t, int64_t unit, int64_t) {
        const int64_t i = unit * kPerThread;
        Eight x;
        sum_eight<kBits, Extras::kNone>(args, shape, layout, i, x);
        scale_and_add(args.scale, nullptr, i, args.count, x);
        deliver(args.dtype, static_cast<uint8_t*>(args.output), i, args.count, false, x);
    });
}

// With rotation or spikes.
template <int kBits, int kRounds>
__global__ void __launch_bounds__(kThreads, kRounds == 4 ? 1 : 2)
    block_int_sum_extras_kernel(DecodeReduceArgs args, Work work) {
    const BlockIntShape shape = block_int_shape(args.params, args.dtype);
    const BlockIntLayout layout = block_int_layout(shape, args.count);
    const auto rotation = Rotation<kRounds>::of(shape);
    constexpr int64_t kUnitElems = kRounds * kWarpElems;
    work.walk(
        thread_index() / kWarpThreads, thread_total() / kWarpThreads, kUnitElems,
        [&](int64_t, int64_t unit, int64_t count) {
            const int64_t i = unit * kUnitElems + int64_t{threadIdx.x % kWarpThreads} * kPerThread;
            Eight x[kRounds];
#pragma unroll
            for (int g = 0; g < kRounds; ++g) {
                sum_eight<kBits, Extras::kAll>(args, shape, layout, i + g * kWarpElems, x[g]);
            }
            if (shape.rotate != 0) {
#pragma unroll
                for (int g = 0; g < kRounds; ++g) {
#pragma unroll
                    for (int k = 0; k < kPerThread; ++k) {
                        x[g].v[k] = __fmul_rn(x[g].v[k], shape.unrotate);
                    }
                }
                rotation.backward(x);
            }
#pragma unroll
            for (int g = 0; g < kRounds; ++g) {
                const int64_t at = i + g * kWarpElems;
                scale_and_add(args.scale, nullptr, at, count, x[g]);
                deliver(args.dtype, static_cast<uint8_t*>(args.output), at, count, false, x[g]);
            }
        });
}

bool has_extras(const CodecParams& params) {
    return params.rotate != 0 || params.spike != 0;
}
int rounds_of(const CodecParams& params) {
    return params.rotate > 2 * kWarpElems ? 4 : 2;
}

}  // namespace

template <int kBits>
cudaError_t BlockIntCuda<kBits>::encode(const EncodeArgs& args, cudaStream_t stream) {
    if (args.count <= 0) {
        return cudaSuccess;
    }
    return with_variant<kBits>(args.params, args.residual, [&](auto variant) {
        using Variant = decltype(variant);
        const Work work =
            Work::of(args.count, args.chunk_elems, unit_of(args.params, Variant::kRounds));
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
        if (!has_extras(args.params)) {
            const Work work = Work::of(args.count, args.chunk_elems, kPerThread);
            return launch(block_int_decode_kernel<kBits, Element>, args, work, threads_for(work, 1),
                          stream);
        }
        const int rounds = rounds_of(args.params);
        const Work work = Work::of(args.count, args.chunk_elems, rounds * kWarpElems);
        return launch(rounds == 4 ? block_int_decode_extras_kernel<kBits, 4, Element>
                                  : block_int_decode_extras_kernel<kBits, 2, Element>,
                      args, work, threads_for(work, kWarpThreads), stream);
    });
}

template <int kBits>
cudaError_t BlockIntCuda<kBits>::reduce(const DecodeReduceEncodeArgs& args, cudaStream_t stream) {
    if (args.count <= 0 || args.inputs <= 0) {
        return cudaSuccess;
    }
    return with_variant<kBits>(args.params, args.residual, [&](auto variant) {
        using Variant = decltype(variant);
        const Work work = Work::of(args.count, args.count, unit_of(args.params, Variant::kRounds));
        return launch(block_int_reduce_kernel<Variant>, args, work, threads_for(work, kWarpThreads),
                      stream);
    });
}

template <int kBits>
cudaError_t BlockIntCuda<kBits>::sum(const DecodeReduceArgs& args, cudaStream_t stream) {
    if (args.count <= 0 || args.inputs <= 0) {
        return cudaSuccess;
    }
    if (!has_extras(args.params)) {
        const Work work = Work::of(args.count, args.count, kPerThread);
        return launch(block_int_sum_kernel<kBits>, args, work, threads_for(work, 1), stream);
    }
    const int rounds = rounds_of(args.params);
    const Work work = Work::of(args.count, args.count, rounds * kWarpElems);
    return launch(
        rounds == 4 ? block_int_sum_extras_kernel<kBits, 4> : block_int_sum_extras_kernel<kBits, 2>,
        args, work, threads_for(work, kWarpThreads), stream);
}

}  // namespace slimwire
