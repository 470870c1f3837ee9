// Kernels of the quantizers; byte for byte the bodies of
// codecs/quantizers/host/quantizer_kernels.h. A warp encodes a span of 256 elements (or one block,
// where blocks are larger; or two spans, where they draw), eight consecutive elements per thread.
// Blocks above 256 elements are read twice, or three times where their scale needs the largest
// magnitude before a sum, but from memory once.
#include "codecs/gpu/block_quantizer.cuh"
#include "codecs/quantizers/quantizer_codes.cuh"
#include "codecs/quantizers/quantizer_scales.cuh"

namespace slimwire {
namespace {

struct QuantizerOutput {
    uint8_t* bytes;
    float* scales;
    float* residual;
    uint32_t most;  // of the user's type

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
        uint32_t w[2];
        pack_codes<Kind::kBits>(code, w);
        put_words<Kind::kBits>(bytes + i / 8 * Kind::kBits, w);
        if ((i & (shape.block - 1)) == 0) {
            scales[i >> shape.log2_block] =
                chosen.poison ? __uint_as_float(kNanScaleBits) : chosen.scale;
        }
        if (residual != nullptr && !chosen.poison) {
            Eight decoded;
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                const uint32_t kept = code[k] & ((1u << Kind::kBits) - 1);
                decoded.v[k] = quantizer_value<Kind>(kept, chosen.scale);
            }
            keep_within(most, chosen.scale, Kind::kReach, decoded);
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                p.v[k] = __fsub_rn(p.v[k], decoded.v[k]);
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

template <class Kind>
struct QuantizerCodec {
    using Layout = QuantizerLayout;
    using Codes = RawQuantizerCodes<Kind>;
    static constexpr int kLoadBytes = Kind::kBits + 4;
    // Those that may draw need room.
    static constexpr bool kWide = Kind::kRule == QuantizerRule::kLevels && kResidentBlocks == 3;
    static constexpr int kEncodeBlocks = kWide || Kind::kRule == QuantizerRule::kSign ? 2 : 3;
    static constexpr int kReduceBlocks = 2;

    QuantizerShape shape;

    __host__ __device__ static int64_t unit_elems(const CodecParams& params) {
        const int64_t spans = draws(params) ? 2 * kWarpElems : kWarpElems;
        return params.block > spans ? params.block : spans;
    }
    __device__ static __forceinline__ QuantizerCodec of(const CodecParams& params) {
        return {quantizer_shape(params)};
    }
    __device__ __forceinline__ Layout layout(int64_t count) const {
        return quantizer_layout<Kind>(shape, count);
    }

    template <class Source>
    __device__ __forceinline__ void encode(const Source& source,
                                           const DeviceRandom& random,
                                           uint32_t chunk,
                                           int64_t begin,
                                           int64_t count,
                                           uint8_t* encoding,
                                           float* residual) const {
        const QuantizerOutput output{encoding,
                                     reinterpret_cast<float*>(encoding + layout(count).scales),
                                     residual, source.most()};
        EightBytes bytes = {};
        EightBytes other = {};
        const int spans = shape.stochastic && shape.block <= kWarpElems ? 2 : 1;
#pragma unroll 1
        for (int s = 0; s < spans; ++s) {
            encode_quantizer_span<Kind>(source, shape, random, chunk, begin + s * kWarpElems, count,
                                        output, bytes, other);
        }
    }

    __device__ __forceinline__ void load(const uint8_t* encoding,
                                         const Layout& layout,
                                         int64_t i,
                                         Codes& raw) const {
        load_codes(encoding + i / 8 * Kind::kBits, raw.codes);
        raw.scale =
            reinterpret_cast<const uint32_t*>(encoding + layout.scales)[i >> shape.log2_block];
    }
    __device__ __forceinline__ void values(const Codes& raw, uint32_t most, Eight& x) const {
        quantizer_values(raw, most, x);
    }
};

// Calls run(launches) with those of this rule and width.
template <QuantizerRule kRule, class Run>
cudaError_t with_launches(const CodecParams& params, Run run) {
    return with_quantizer_kind<kRule>(params.bits, [&](auto kind) {
        using Codec = QuantizerCodec<decltype(kind)>;
        return run(BlockQuantizer<Codec, Codec>{});
    });
}

}  // namespace

template <QuantizerRule kRule>
struct QuantizerKernels {
    static cudaError_t encode(const EncodeArgs& args, cudaStream_t stream) {
        return with_launches<kRule>(args.params, [&](auto of) { return of.encode(args, stream); });
    }

    static cudaError_t decode(const DecodeArgs& args, cudaStream_t stream) {
        return with_launches<kRule>(args.params, [&](auto of) { return of.decode(args, stream); });
    }

    static cudaError_t reduce(const DecodeReduceEncodeArgs& args, cudaStream_t stream) {
        return with_launches<kRule>(args.params, [&](auto of) { return of.reduce(args, stream); });
    }

    static cudaError_t sum(const DecodeReduceArgs& args, cudaStream_t stream) {
        return with_launches<kRule>(args.params, [&](auto of) { return of.sum(args, stream); });
    }
};

template struct Launchers<QuantizerKernels<QuantizerRule::kSign>>;
template struct Launchers<QuantizerKernels<QuantizerRule::kLevels>>;
template struct Launchers<QuantizerKernels<QuantizerRule::kPowers>>;

}  // namespace slimwire
