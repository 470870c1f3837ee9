// Kernels of the block floats; byte for byte the bodies of
// codecs/block_float/host/block_float_kernels.h. A warp encodes a span of 256 elements (or one
// block, where blocks are larger; or two spans, where they draw or share a group's scale), eight
// consecutive elements per thread; a block's maximum is taken by shuffles among the lanes that
// share it. Blocks above 256 elements are read twice, the second time from cache.
#include "codecs/block_float/block_float_codes.cuh"
#include "codecs/block_float/block_float_scales.cuh"
#include "codecs/block_float/launchers.h"
#include "codecs/gpu/block_quantizer.cuh"

namespace slimwire {
namespace {

template <class Kind>
constexpr bool kHasGroups = Kind::kScale == BlockScale::kTwoLevels;

template <class Kind>
struct BlockFloatOutput {
    uint8_t* bytes;
    uint8_t* scales;
    float* residual;
    uint32_t most;  // of the user's type
    BlockFloatShape shape;

    // Whether the block of element i begins behind `count`.
    __device__ __forceinline__ bool behind(int64_t i, int64_t count) const {
        return (i & -int64_t{shape.block}) >= count;
    }
    // Codes, scale and residual of the eight p from element i on.
    template <bool kStochastic>
    __device__ __forceinline__ void put(int64_t i,
                                        int64_t count,
                                        const ChosenScale& scale,
                                        const EightBytes& random,
                                        Eight& p) const {
        uint8_t* codes = bytes + i / 8 * Kind::kBits;
        uint32_t code[kPerThread];
        float_codes<typename Kind::Format, kStochastic>(p, scale.inverse, random, code);
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            code[k] = scale.poison ? 0 : code[k];
        }
        put_codes<Kind::kBits>(codes, code);
        if ((i & (shape.block - 1)) == 0) {
            put_block_scale<Kind>(scales, i >> shape.log2_block, scale.stored, shape.scale_bytes);
        }
        if (residual != nullptr && !scale.poison) {
            Eight decoded;
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                const float value = float_of_code(code[k], typename Kind::Format{});
                decoded.v[k] = __fmul_rn(value, scale.scale);
            }
            keep_within(most, scale.scale, Kind::Format::kMax, decoded);
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                p.v[k] = __fsub_rn(p.v[k], decoded.v[k]);
            }
            store_eight<Float32>(reinterpret_cast<uint8_t*>(residual), i, count, p);
        }
    }
};

__device__ __forceinline__ uint32_t largest_of(const Eight& p, uint32_t magnitude) {
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
        magnitude = max(magnitude, magnitude_of(p.v[k]));
    }
    return magnitude;
}
__device__ __forceinline__ uint32_t largest_among(uint32_t magnitude, int lanes) {
    for (lanes /= 2; lanes > 0; lanes /= 2) {
        magnitude = max(magnitude, __shfl_xor_sync(0xFFFFFFFFu, magnitude, lanes));
    }
    return magnitude;
}

// Encodes the blocks of one span, or the one block of several rounds, from element `begin` of a
// chunk of `count`; one whole warp calls it. `first` and `other` are drawn where needed.
template <class Kind, bool kStochastic, class Source>
__device__ __forceinline__ void encode_span(const Source& source,
                                            const DeviceRandom& random,
                                            uint32_t chunk,
                                            int64_t begin,
                                            int64_t count,
                                            const BlockFloatOutput<Kind>& output,
                                            EightBytes& bytes,
                                            EightBytes& other) {
    const int block = output.shape.block;
    const int rounds = block > kWarpElems ? static_cast<int>(block / kWarpElems) : 1;
    const int64_t first = begin + int64_t{threadIdx.x % kWarpThreads} * kPerThread;
    Eight p;
    uint32_t magnitude = 0;
    for (int round = 0; round < rounds; ++round) {
        source.eight(first + round * kWarpElems, p);
        magnitude = largest_of(p, magnitude);
    }
    magnitude = largest_among(magnitude, block >= kWarpElems ? kWarpThreads : block / kPerThread);
    const ChosenScale scale = choose_scale<Kind>(magnitude, output.shape);
    for (int round = 0; round < rounds; ++round) {
        const int64_t i = first + round * kWarpElems;
        if constexpr (kStochastic) {
            if ((begin + round * kWarpElems) % (2 * kWarpElems) == 0) {
                draw_twice_eight(random, begin + round * kWarpElems, chunk, bytes, other);
            } else {
                bytes = other;
            }
        }
        if (output.behind(i, count)) {
            continue;
        }
        if (rounds > 1) {
            source.eight(i, p);
        }
        output.template put<kStochastic>(i, count, scale, bytes, p);
    }
}

// Encodes one group of two spans.
template <class Kind, bool kStochastic, class Source>
__device__ __forceinline__ void encode_group(const Source& source,
                                             const DeviceRandom& random,
                                             uint32_t chunk,
                                             int64_t begin,
                                             int64_t count,
                                             const BlockFloatOutput<Kind>& output) {
    static_assert(kScaleGroup == 2 * kWarpElems);
    const int64_t first = begin + int64_t{threadIdx.x % kWarpThreads} * kPerThread;
    Eight p[2];
    uint32_t magnitude[2];
#pragma unroll
    for (int g = 0; g < 2; ++g) {
        source.eight(first + g * kWarpElems, p[g]);
        magnitude[g] = largest_among(largest_of(p[g], 0), output.shape.block / kPerThread);
    }
    const GroupScale group =
        choose_group(largest_among(max(magnitude[0], magnitude[1]), kWarpThreads));
    EightBytes bytes[2] = {};
    if constexpr (kStochastic) {
        draw_twice_eight(random, begin, chunk, bytes[0], bytes[1]);
    }
    if (first == begin) {
        const BlockFloatLayout layout = block_float_layout<Kind>(output.shape, count);
        reinterpret_cast<uint32_t*>(output.bytes + layout.groups)[begin / kScaleGroup] =
            group.stored;
    }
#pragma unroll
    for (int g = 0; g < 2; ++g) {
        const int64_t i = first + g * kWarpElems;
        if (!output.behind(i, count)) {
            output.template put<kStochastic>(
                i, count, choose_scale(group, magnitude[g], output.shape), bytes[g], p[g]);
        }
    }
}

template <class KindOf, bool kStochastic>
struct BlockFloatCodec {
    using Kind = KindOf;
    using Layout = BlockFloatLayout;
    static constexpr int kUnitThreads = kWarpThreads;
    // A group takes two spans; what draws needs more registers where others have 80.
    static constexpr bool kWide = kHasGroups<Kind> || (kStochastic && kResidentBlocks == 3);
    static constexpr int kEncodeBlocks = kWide ? 2 : resident_blocks(kStochastic);
    static constexpr int kReduceBlocks = kEncodeBlocks;

    BlockFloatShape shape;

    __host__ __device__ static int64_t unit_elems(const CodecParams& params) {
        const int64_t spans = kHasGroups<Kind> || kStochastic ? 2 * kWarpElems : kWarpElems;
        return params.block > spans ? params.block : spans;
    }
    __device__ static __forceinline__ BlockFloatCodec of(const CodecParams& params) {
        return {block_float_shape<Kind>(params)};
    }
    __device__ __forceinline__ Layout layout(int64_t count) const {
        return block_float_layout<Kind>(shape, count);
    }

    template <class Source>
    __device__ __forceinline__ void encode(const Source& source,
                                           const DeviceRandom& random,
                                           uint32_t chunk,
                                           int64_t begin,
                                           int64_t count,
                                           uint8_t* encoding,
                                           float* residual) const {
        const BlockFloatOutput<Kind> output{encoding, encoding + layout(count).scales, residual,
                                            source.most(), shape};
        if constexpr (kHasGroups<Kind>) {
            encode_group<Kind, kStochastic>(source, random, chunk, begin, count, output);
        } else {
            EightBytes bytes = {};
            EightBytes other = {};
            encode_span<Kind, kStochastic>(source, random, chunk, begin, count, output, bytes,
                                           other);
            if (kStochastic && shape.block <= kWarpElems) {
                encode_span<Kind, kStochastic>(source, random, chunk, begin + kWarpElems, count,
                                               output, bytes, other);
            }
        }
    }

    __device__ __forceinline__ void get(
        const uint8_t* encoding, const Layout& layout, int64_t i, uint32_t most, Eight& x) const {
        uint32_t w[2];
        get_code_words<Kind::kBits>(encoding + i / 8 * Kind::kBits, w);
        const float scale = get_block_scale<Kind>(encoding, shape, layout, i);
        scale_values<typename Kind::Format>(w, scale, x);
        keep_within(most, scale, Kind::Format::kMax, x);
    }
};

template <class Kind>
using BlockFloatKernels = BlockQuantizer<BlockFloatCodec<Kind, false>, BlockFloatCodec<Kind, true>>;

}  // namespace

template <class Kind>
cudaError_t BlockFloatCuda<Kind>::encode(const EncodeArgs& args, cudaStream_t stream) {
    return BlockFloatKernels<Kind>::encode(args, stream);
}
template <class Kind>
cudaError_t BlockFloatCuda<Kind>::decode(const DecodeArgs& args, cudaStream_t stream) {
    return BlockFloatKernels<Kind>::decode(args, stream);
}
template <class Kind>
cudaError_t BlockFloatCuda<Kind>::reduce(const DecodeReduceEncodeArgs& args, cudaStream_t stream) {
    return BlockFloatKernels<Kind>::reduce(args, stream);
}
template <class Kind>
cudaError_t BlockFloatCuda<Kind>::sum(const DecodeReduceArgs& args, cudaStream_t stream) {
    return BlockFloatKernels<Kind>::sum(args, stream);
}

template struct BlockFloatCuda<Fp8e4m3>;
template struct BlockFloatCuda<Fp8e5m2>;
template struct BlockFloatCuda<MxFp4>;
template struct BlockFloatCuda<NvFp4>;

}  // namespace slimwire
