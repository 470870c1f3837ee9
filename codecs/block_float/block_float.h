// The family of block floats: fp8e4m3, fp8e5m2, mxfp4 and nvfp4. The elements of a block
// share one scale; an element is a float of 8 or 4 bits, value = float * scale. Layout and
// numerics: FORMAT.md. block_float.cpp has the descriptors, block_float.cu the kernels, and
// block_float_shape.h says what members differ in.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "codecs/block_float/block_float_shape.h"
#include "codecs/block_float/host/table.h"
#include "codecs/block_float/launchers.h"
#include "codecs/numeric.h"
#include "codecs/simd/block_codec.h"

namespace slimwire {

// Keys of a member, by its scale.
[[nodiscard]] std::span<const SpecKey* const> block_float_keys(BlockScale scale) noexcept;
// Parses them; stochastic rounding needs scales that cut nothing off.
Status parse_block_float(const char* codec,
                         BlockScale scale,
                         const CodecParams& defaults,
                         std::string_view text,
                         CodecParams* params);

// Everything a member's descriptor needs.
template <class Kind,
          uint16_t kDefaultBlock,
          ChunkKernels<BlockFloatShape> BlockFloatTable::*kBodies,
          const char* const* kNameOf>
struct BlockFloat
    : BlockCodec<BlockFloat<Kind, kDefaultBlock, kBodies, kNameOf>, BlockFloatCuda<Kind>> {
    using Format = typename Kind::Format;
    static constexpr const char* kName = *kNameOf;
    static constexpr CodecParams kDefaults = {.block = kDefaultBlock, .bits = Kind::kBits};

    static Status parse(std::string_view text, CodecParams* params) {
        return parse_block_float(kName, Kind::kScale, kDefaults, text, params);
    }
    static std::string print(const CodecParams& params) {
        return print_spec_keys(kName, block_float_keys(Kind::kScale), kDefaults, params);
    }
    static BlockFloatShape shape(const CodecParams& params) {
        return block_float_shape<Kind>(params);
    }
    static const ChunkKernels<BlockFloatShape>& bodies(const CodecParams&) {
        return host_table<BlockFloatTable>().*kBodies;
    }
    static CodecTraits traits(const CodecParams& params, DType dtype) {
        return {.poison_elems = granule(params, dtype),
                .smallest_error = smallest_error(shape(params).stochastic)};
    }
    static int64_t encoded_bytes(const CodecParams& params, DType, int64_t count) {
        return block_float_layout<Kind>(shape(params), count).bytes;
    }
    static int64_t granule(const CodecParams& params, DType) {
        return Kind::kScale == BlockScale::kTwoLevels ? kScaleGroup : params.block;
    }

    // As a part of the largest magnitude of the unit: half the step between the largest values, or
    // the step, with the scale as large as it is rounded to; or what a standard scale cuts off.
    static double block_error_bound(const CodecParams& params, DType) {
        const BlockFloatShape s = shape(params);
        const double steps = s.stochastic ? 1.0 : 0.5;
        const double largest_step = std::ldexp(1.0, Format::kMaxExponent - Format::kFractionBits);
        if constexpr (Kind::kScale == BlockScale::kBinary) {
            return steps * largest_step / double{Format::kMax} *
                   (s.scale_bytes == 4 ? 1.0 : 1.0 + 0x1p-7) * (1.0 + 0x1p-16);
        } else if constexpr (Kind::kScale == BlockScale::kPowerOfTwo) {
            const double rounding = steps * std::ldexp(1.0, -Format::kFractionBits);
            const double cut = 1.0 - double{Format::kMax} / std::ldexp(2.0, Format::kMaxExponent);
            return s.scale_up ? rounding : std::max(rounding, cut);
        } else {  // e4m3 rounds by 1/16, or up by 1/8
            return steps * largest_step / double{Format::kMax} *
                   (s.scale_up ? 1.0 + 1.0 / 8 : 1.0 + 1.0 / 16) * (1.0 + 0x1p-16);
        }
    }

  private:
    // Where the scale is the smallest there is: the step between the largest values, or half of it;
    // for a power of two, which codes reach below, the smallest step; for two levels, what a block
    // may lose under the smallest fp32.
    static double smallest_error(bool stochastic) {
        const double steps = stochastic ? 1.0 : 0.5;
        if constexpr (Kind::kScale == BlockScale::kBinary) {
            return steps * std::ldexp(1.0, Format::kMaxExponent - Format::kFractionBits - 126);
        } else if constexpr (Kind::kScale == BlockScale::kPowerOfTwo) {
            const int normal = static_cast<int>(Format::kMinNormalBits >> 23) - 127;
            return steps * std::ldexp(1.0, normal - Format::kFractionBits - 127);
        } else {
            return 0x1p-124;
        }
    }
};

// The parameters' part of a grammar line.
#define SLIMWIRE_FP8_GRAMMAR                                                     \
    ":block=16..2048 (power of two, default 64),scale=bf16|fp32 (default bf16)," \
    "rounding=nearest|stochastic (default nearest)"
#define SLIMWIRE_MX_GRAMMAR                                                             \
    ":scale=floor|ceil (default floor, as the OCP's conversion does),rounding=nearest|" \
    "stochastic (default nearest; stochastic needs scale=ceil)"

}  // namespace slimwire
