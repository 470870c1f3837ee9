// Kernels of the block floats; byte for byte the bodies of
// codecs/block_float/host/block_float_kernels.h. A warp encodes two spans of 256 elements, or one
// block where blocks are larger, eight consecutive elements of each span per thread; a block's
// maximum is taken by shuffles among the lanes that share it. Blocks above 512 elements are read
// twice, the second time from cache.
#include "codecs/block_float/block_float_codes.cuh"
#include "codecs/block_float/block_float_scales.cuh"
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
        using Format = typename Kind::Format;
        uint32_t w[2];
        float_words<Format, kStochastic>(p, scale.inverse, random, w);
        w[0] = scale.poison ? 0 : w[0];
        w[1] = scale.poison ? 0 : w[1];
        put_words<Kind::kBits>(bytes + i / 8 * Kind::kBits, w);
        if ((i & (shape.block - 1)) == 0) {
            put_block_scale<Kind>(scales, i >> shape.log2_block, scale.stored, shape.scale_bytes);
        }
        if (residual != nullptr && !scale.poison) {
            Eight decoded;
            RawCodes<Kind::kBits> codes;
            codes.v[0] = w[0];
            if constexpr (Kind::kBits == 8) {
                codes.v[1] = w[1];
            }
            code_words(codes, w);
            scale_values<Format>(w, scale.scale, decoded);
            keep_within(most, scale.scale, Format::kMax, decoded);
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                p.v[k] = __fsub_rn(p.v[k], decoded.v[k]);
            }
            store_eight<Float32>(reinterpret_cast<uint8_t*>(residual), i, count, p);
        }
    }
};

template <class KindOf, bool kStochastic>
struct BlockFloatCodec {
    using Kind = KindOf;
    using Layout = BlockFloatLayout;
    struct Codes {
        RawCodes<Kind::kBits> codes;
        RawScale scale;
    };
    static constexpr int kLoadBytes = Kind::kBits + (Kind::kScale == BlockScale::kBinary ? 4 : 1);
    static constexpr int kEncodeBlocks = kHasGroups<Kind> || kStochastic ? 2 : kSpanBlocks;
    static constexpr int kReduceBlocks = 2;

    BlockFloatShape shape;

    __host__ __device__ static int64_t unit_elems(const CodecParams& params) {
        return params.block > kUnitElems ? params.block : kUnitElems;
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
        const int steps = shape.block > kUnitElems ? static_cast<int>(shape.block / kUnitElems) : 1;
        const int64_t first = begin + int64_t{threadIdx.x % kWarpThreads} * kPerThread;
        Eight p[kSpans];
        uint32_t magnitude[kSpans] = {};
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            source.spans(first + step * kUnitElems, p);
#pragma unroll
            for (int g = 0; g < kSpans; ++g) {
                magnitude[g] = largest_of(p[g], magnitude[g]);
            }
        }
        share_largest(magnitude, shape.block);
        ChosenScale scale[kSpans];
        choose_scales(magnitude, count, begin, encoding, scale);
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            const int64_t here = first + step * kUnitElems;
            if (steps > 1) {
                source.spans(here, p);
            }
            EightBytes bytes[kSpans] = {};
            if constexpr (kStochastic) {
                draw_twice_eight(random, begin + step * kUnitElems, chunk, bytes[0], bytes[1]);
            }
#pragma unroll
            for (int g = 0; g < kSpans; ++g) {
                const int64_t i = here + g * kWarpElems;
                if (!output.behind(i, count)) {
                    output.template put<kStochastic>(i, count, scale[g], bytes[g], p[g]);
                }
            }
        }
    }

    __device__ __forceinline__ void load(const uint8_t* encoding,
                                         const Layout& layout,
                                         int64_t i,
                                         Codes& raw) const {
        load_codes(encoding + i / 8 * Kind::kBits, raw.codes);
        load_block_scale<Kind>(encoding, shape, layout, i, raw.scale);
    }
    __device__ __forceinline__ void values(const Codes& raw, uint32_t most, Eight& x) const {
        uint32_t w[2];
        code_words(raw.codes, w);
        const float scale = block_scale<Kind>(raw.scale, shape);
        scale_values<typename Kind::Format>(w, scale, x);
        keep_within(most, scale, Kind::Format::kMax, x);
    }

  private:
    // Of a unit's blocks, and the scale of the group where they share one.
    __device__ __forceinline__ void choose_scales(const uint32_t (&magnitude)[kSpans],
                                                  int64_t count,
                                                  int64_t begin,
                                                  uint8_t* encoding,
                                                  ChosenScale (&scale)[kSpans]) const {
        if constexpr (kHasGroups<Kind>) {
            static_assert(kScaleGroup == kUnitElems);
            uint32_t largest[kSpans] = {magnitude[0], magnitude[1]};
            share_largest(largest, kScaleGroup);
            const GroupScale group = choose_group(largest[0]);
            if (threadIdx.x % kWarpThreads == 0) {
                reinterpret_cast<uint32_t*>(encoding + layout(count).groups)[begin / kScaleGroup] =
                    group.stored;
            }
#pragma unroll
            for (int g = 0; g < kSpans; ++g) {
                scale[g] = choose_scale(group, magnitude[g], shape);
            }
        } else {
#pragma unroll
            for (int g = 0; g < kSpans; ++g) {
                scale[g] = choose_scale<Kind>(magnitude[g], shape);
            }
        }
    }
};

}  // namespace

template <class Kind>
struct BlockFloatKernels
    : BlockQuantizer<BlockFloatCodec<Kind, false>, BlockFloatCodec<Kind, true>> {};

template struct Launchers<BlockFloatKernels<Fp8e4m3>>;
template struct Launchers<BlockFloatKernels<Fp8e5m2>>;
template struct Launchers<BlockFloatKernels<MxFp4>>;
template struct Launchers<BlockFloatKernels<NvFp4>>;

}  // namespace slimwire
