// Kernels of the quantizers; byte for byte the bodies of
// codecs/quantizers/host/quantizer_kernels.h. A warp encodes a span of 256 elements (or one block,
// where blocks are larger; or two spans, where they draw), eight consecutive elements per thread.
// Blocks above 256 elements are read twice, or three times where their scale needs the largest
// magnitude before a sum, but from memory once.
#include "codecs/gpu/launchers.h"
#include "codecs/gpu/work.cuh"
#include "codecs/quantizers/quantizer_codes.cuh"
#include "codecs/quantizers/quantizer_scales.cuh"

namespace slimwire {
namespace {

// Thread blocks that must fit a multiprocessor while they encode, so that no register spills: those
// that may draw need room.
template <class Kind>
constexpr int quantizer_blocks() {
    const bool wide = Kind::kRule == QuantizerRule::kLevels && kResidentBlocks == 3;
    return wide ? 2 : resident_blocks(Kind::kRule != QuantizerRule::kSign);
}

// Elements that one warp encodes at a time.
__host__ __device__ inline int64_t quantizer_unit_elems(const CodecParams& params) {
    const int64_t spans = draws(params) ? 2 * kWarpElems : kWarpElems;
    return params.block > spans ? params.block : spans;
}

struct QuantizerOutput {
    uint8_t* bytes;
    float* scales;
    float* residual;

    // Codes, scale and residual of the eight p from element i on.
    template <class Kind>
    __device__ __forceinline__ void put(int64_t i,
                                        int64_t count,
                                        const QuantizerShape& shape,
                                        const QuantizerChoice& chosen,
                                        const EightBytes& random,
                                        Eight& p) const {
        uint32_t code[kPerThread];
        const float largest =
            Kind::kRule == QuantizerRule::kLevels ? __int2float_rn(shape.levels) : 1.0f;
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            const uint32_t drawn = shape.stochastic ? drawn_pair(random, k) : kQuantizerHalf;
            code[k] = quantizer_code<Kind>(p.v[k], chosen.inverse, largest, drawn);
            code[k] = chosen.poison ? 0 : code[k];
        }
        put_quantizer_codes<Kind>(bytes, i, code);
        if ((i & (shape.block - 1)) == 0) {
            scales[i >> shape.log2_block] =
                chosen.poison ? __uint_as_float(kNanScaleBits) : chosen.scale;
        }
        if (residual != nullptr && !chosen.poison) {
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                const uint32_t kept = code[k] & ((1u << Kind::kBits) - 1);
                p.v[k] = __fsub_rn(p.v[k], quantizer_value<Kind>(kept, chosen.scale));
            }
            store_eight<Float32>(reinterpret_cast<uint8_t*>(residual), i, count, p);
        }
    }
};

// Encodes the blocks of one span, or the one block of several rounds, from element `begin` of a
// chunk of `count`; one whole warp calls it. `bytes` and `other` are drawn where needed.
template <class Kind, class Source>
__device__ __forceinline__ void encode_quantizer_span(const Source& source,
                                                      const QuantizerShape& shape,
                                                      const DeviceRandom& random,
                                                      uint32_t chunk,
                                                      int64_t begin,
                                                      int64_t count,
                                                      const QuantizerOutput& output,
                                                      EightBytes& bytes,
                                                      EightBytes& other) {
    const int64_t first = begin + int64_t{threadIdx.x % kWarpThreads} * kPerThread;
    const int64_t left = count - (first & -int64_t{shape.block});
    QuantizerBlock<Source> block{
        source,
        first,
        shape.block > kWarpElems ? static_cast<int>(shape.block / kWarpElems) : 1,
        shape.block >= kWarpElems ? kWarpThreads : shape.block / kPerThread,
        static_cast<int32_t>(left < 1             ? 1
                             : left < shape.block ? left
                                                  : shape.block),
        {}};
    if (block.rounds == 1) {
        source.eight(first, block.p);
    }
    const QuantizerChoice chosen = choose_quantizer_scales<Kind>(block, shape);
    for (int round = 0; round < block.rounds; ++round) {
        const int64_t span = begin + int64_t{round} * kWarpElems;
        const int64_t i = first + int64_t{round} * kWarpElems;
        if (Kind::kRule != QuantizerRule::kSign && shape.stochastic) {
            if (span % (2 * kWarpElems) == 0) {
                draw_twice_eight(random, span, chunk, bytes, other);
            } else {
                bytes = other;
            }
        }
        if ((i & -int64_t{shape.block}) < count) {  // else no element of its block exists
            block.read(round);
            output.template put<Kind>(i, count, shape, chosen, bytes, block.p);
        }
    }
}

// Encodes the unit that starts at element `begin`.
template <class Kind, class Source>
__device__ __forceinline__ void encode_quantizer_unit(const Source& source,
                                                      const QuantizerShape& shape,
                                                      const DeviceRandom& random,
                                                      uint32_t chunk,
                                                      int64_t begin,
                                                      int64_t count,
                                                      uint8_t* encoding,
                                                      float* residual) {
    const QuantizerOutput output{
        encoding, reinterpret_cast<float*>(encoding + quantizer_layout<Kind>(shape, count).scales),
        residual};
    EightBytes bytes = {};
    EightBytes other = {};
    const int spans = shape.stochastic && shape.block <= kWarpElems ? 2 : 1;
#pragma unroll 1
    for (int s = 0; s < spans; ++s) {
        encode_quantizer_span<Kind>(source, shape, random, chunk, begin + s * kWarpElems, count,
                                    output, bytes, other);
    }
}

// Where p comes from when encodings are summed.
template <class Kind>
struct QuantizerSum {
    const uint8_t* input;
    const float* residual;
    int64_t input_stride;
    int64_t count;
    int32_t inputs;
    float factor;
    QuantizerShape shape;
    QuantizerLayout layout;

    __device__ __forceinline__ void eight(int64_t i, Eight& p) const {
        p = {};
        if (i >= count) {
            return;
        }
        const uint8_t* from = input;
        for (int32_t s = 0; s < inputs; ++s, from += input_stride) {
            Eight x;
            get_quantizer_values<Kind>(from, shape, layout, i, x);
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                p.v[k] = s == 0 ? x.v[k] : __fadd_rn(p.v[k], x.v[k]);
            }
        }
        scale_and_add(factor, residual, i, count, p);
    }
};

template <class Kind, class Element>
__global__ void __launch_bounds__(kThreads, quantizer_blocks<Kind>())
    quantizer_encode_kernel(EncodeArgs args, Work work) {
    const QuantizerShape shape = quantizer_shape(args.params);
    const float factor = encode_factor<Element>(args);
    const DeviceRandom random = DeviceRandom::of(args.random, RandomPurpose::kEncode);
    const int64_t unit_elems = quantizer_unit_elems(args.params);
    work.walk(thread_index() / kWarpThreads, thread_total() / kWarpThreads, unit_elems,
              [&](int64_t chunk, int64_t unit, int64_t count) {
                  const int64_t at = chunk * work.chunk_elems;
                  float* residual = args.residual != nullptr ? args.residual + at : nullptr;
                  const UserSource<Element> source{
                      static_cast<const uint8_t*>(args.input) + at * Element::kBytes, residual,
                      count, factor};
                  encode_quantizer_unit<Kind>(
                      source, shape, random, static_cast<uint32_t>(chunk), unit * unit_elems, count,
                      static_cast<uint8_t*>(args.output) + chunk * args.slot_bytes, residual);
              });
}

template <class Kind, class Element>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    quantizer_decode_kernel(DecodeArgs args, Work work) {
    const QuantizerShape shape = quantizer_shape(args.params);
    work.walk(thread_index(), thread_total(), kPerThread,
              [&](int64_t chunk, int64_t unit, int64_t count) {
                  const int64_t i = unit * kPerThread;
                  Eight x;
                  get_quantizer_values<Kind>(
                      static_cast<const uint8_t*>(args.input) + chunk * args.slot_bytes, shape,
                      quantizer_layout<Kind>(shape, count), i, x);
                  deliver<Element>(static_cast<uint8_t*>(args.output) +
                                       chunk * work.chunk_elems * Element::kBytes,
                                   i, count, args.accumulate, x);
              });
}

template <class Kind>
__global__ void __launch_bounds__(kThreads, quantizer_blocks<Kind>())
    quantizer_reduce_kernel(DecodeReduceEncodeArgs args, Work work) {
    const QuantizerShape shape = quantizer_shape(args.params);
    const DeviceRandom random = DeviceRandom::of(args.random, RandomPurpose::kReduce);
    const int64_t unit_elems = quantizer_unit_elems(args.params);
    const QuantizerSum<Kind> source{static_cast<const uint8_t*>(args.input),
                                    args.residual,
                                    args.input_stride,
                                    args.count,
                                    args.inputs,
                                    args.scale,
                                    shape,
                                    quantizer_layout<Kind>(shape, args.count)};
    work.walk(thread_index() / kWarpThreads, thread_total() / kWarpThreads, unit_elems,
              [&](int64_t, int64_t unit, int64_t count) {
                  encode_quantizer_unit<Kind>(source, shape, random, 0, unit * unit_elems, count,
                                              static_cast<uint8_t*>(args.output), args.residual);
              });
}

template <class Kind>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    quantizer_sum_kernel(DecodeReduceArgs args, Work work) {
    const QuantizerShape shape = quantizer_shape(args.params);
    const QuantizerSum<Kind> source{static_cast<const uint8_t*>(args.input),
                                    nullptr,
                                    args.input_stride,
                                    args.count,
                                    args.inputs,
                                    args.scale,
                                    shape,
                                    quantizer_layout<Kind>(shape, args.count)};
    work.walk(thread_index(), thread_total(), kPerThread, [&](int64_t, int64_t unit, int64_t) {
        Eight x;
        source.eight(unit * kPerThread, x);
        deliver(args.dtype, static_cast<uint8_t*>(args.output), unit * kPerThread, args.count,
                false, x);
    });
}

}  // namespace

template <class Kind>
cudaError_t QuantizerCuda<Kind>::encode(const EncodeArgs& args, cudaStream_t stream) {
    if (args.count <= 0) {
        return cudaSuccess;
    }
    const Work work = Work::of(args.count, args.chunk_elems, quantizer_unit_elems(args.params));
    return visit(args.dtype, [&](auto element) {
        return launch(quantizer_encode_kernel<Kind, decltype(element)>, args, work,
                      threads_for(work, kWarpThreads), stream);
    });
}

template <class Kind>
cudaError_t QuantizerCuda<Kind>::decode(const DecodeArgs& args, cudaStream_t stream) {
    if (args.count <= 0) {
        return cudaSuccess;
    }
    const Work work = Work::of(args.count, args.chunk_elems, kPerThread);
    return visit(args.dtype, [&](auto element) {
        return launch(quantizer_decode_kernel<Kind, decltype(element)>, args, work,
                      threads_for(work, 1), stream);
    });
}

template <class Kind>
cudaError_t QuantizerCuda<Kind>::reduce(const DecodeReduceEncodeArgs& args, cudaStream_t stream) {
    if (args.count <= 0 || args.inputs <= 0) {
        return cudaSuccess;
    }
    const Work work = Work::of(args.count, args.count, quantizer_unit_elems(args.params));
    return launch(quantizer_reduce_kernel<Kind>, args, work, threads_for(work, kWarpThreads),
                  stream);
}

template <class Kind>
cudaError_t QuantizerCuda<Kind>::sum(const DecodeReduceArgs& args, cudaStream_t stream) {
    if (args.count <= 0 || args.inputs <= 0) {
        return cudaSuccess;
    }
    const Work work = Work::of(args.count, args.count, kPerThread);
    return launch(quantizer_sum_kernel<Kind>, args, work, threads_for(work, 1), stream);
}

template struct QuantizerCuda<QuantizerSign>;
template struct QuantizerCuda<QuantizerLevels<2>>;
template struct QuantizerCuda<QuantizerLevels<4>>;
template struct QuantizerCuda<QuantizerLevels<6>>;
template struct QuantizerCuda<QuantizerLevels<8>>;
template struct QuantizerCuda<QuantizerPowers<8>>;
template struct QuantizerCuda<QuantizerPowers<4>>;

}  // namespace slimwire
