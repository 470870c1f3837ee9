// Scales of block floats in kernels; the bodies of codecs/block_float/host/block_float_scales.h.
#pragma once

#include "codecs/block_float/block_float_codes.cuh"
#include "codecs/block_float/block_float_shape.h"
#include "codecs/gpu/block_quantizer.cuh"

namespace slimwire {
namespace {

struct ChosenScale {
    float scale;
    float inverse;
    uint32_t stored;  // a byte, or fp32 bits
    bool poison;
};

// For a block of this largest magnitude.
template <class Kind>
__device__ __forceinline__ ChosenScale choose_scale(uint32_t magnitude,
                                                    const BlockFloatShape& shape) {
    using Format = typename Kind::Format;
    const bool poison = magnitude >= kInfinityBits;
    if constexpr (Kind::kScale == BlockScale::kPowerOfTwo) {
        const uint32_t carry = shape.scale_up ? 0x7FFFFFu - (Format::kMaxBits & 0x7FFFFFu) : 0;
        const uint32_t exponent = Format::kMaxExponent;
        const uint32_t field = max((magnitude + carry) >> 23, exponent) - exponent;
        const uint32_t byte = min(field, 254u - exponent);
        return {__uint_as_float(byte != 0 ? byte << 23 : 0x00400000u),
                __uint_as_float((254u - byte) << 23), poison ? 0xFFu : byte, poison};
    } else {
        const bool empty = magnitude == 0;
        constexpr int kLargest = static_cast<int>(Format::kMax);
        uint32_t bits = __float_as_uint(divided_by<kLargest>(__uint_as_float(magnitude)));
        if (shape.scale_bytes == 2) {  // up to the next bf16
            bits = (bits + 0xFFFF) & 0xFFFF0000u;
        }
        const uint32_t cap = Format::kMaxScaleBits;
        bits = max(min(bits, cap), kMinScaleBits);
        const float scale = empty ? 0.0f : __uint_as_float(bits);
        return {scale, __frcp_rn(__uint_as_float(bits)),
                poison ? kNanScaleBits : __float_as_uint(scale), poison};
    }
}

// The fp32 of a group, and what takes magnitudes to codes of its blocks' scales.
struct GroupScale {
    float scale;
    float to_code;
    uint32_t stored;
    bool poison;
};
__device__ __forceinline__ GroupScale choose_group(uint32_t magnitude) {
    const bool poison = magnitude >= kInfinityBits;
    if (poison || magnitude == 0) {
        return {0.0f, 0.0f, poison ? kNanScaleBits : 0, poison};
    }
    uint32_t bits = __float_as_uint(__fdiv_rn(__uint_as_float(magnitude), kTwoLevelMax));
    const uint32_t cap = kMaxGroupScaleBits;
    const uint32_t least = kMinGroupScaleBits;
    bits = max(min(bits, cap), least);
    const float scale = __uint_as_float(bits);
    return {scale, __fdiv_rn(1.0f, __fmul_rn(6.0f, scale)), bits, false};
}
__device__ __forceinline__ ChosenScale choose_scale(const GroupScale& group,
                                                    uint32_t magnitude,
                                                    const BlockFloatShape& shape) {
    const float wanted = __fmul_rn(__uint_as_float(group.poison ? 0 : magnitude), group.to_code);
    uint32_t code = float_code<Fp8e4m3Format, false>(wanted, 0);
    if (shape.scale_up && float_of_code(code, Fp8e4m3Format{}) < wanted) {
        code = min(code + 1, 0x7Eu);
    }
    const float scale = __fmul_rn(float_of_code(code, Fp8e4m3Format{}), group.scale);
    return {scale, code != 0 ? __fdiv_rn(1.0f, scale) : 0.0f, code, group.poison};
}

template <class Kind>
__device__ __forceinline__ void put_block_scale(uint8_t* scales,
                                                int64_t b,
                                                uint32_t stored,
                                                int scale_bytes) {
    if constexpr (Kind::kScale != BlockScale::kBinary) {
        scales[b] = static_cast<uint8_t>(stored);
    } else {
        put_scale(scales, b, stored, scale_bytes);
    }
}

// The scale of a block as it lies in memory.
struct RawScale {
    uint32_t block;
    uint32_t group;  // of two levels
};
template <class Kind>
__device__ __forceinline__ void load_block_scale(const uint8_t* encoding,
                                                 const BlockFloatShape& shape,
                                                 const BlockFloatLayout& layout,
                                                 int64_t i,
                                                 RawScale& raw) {
    const uint8_t* scales = encoding + layout.scales;
    const int64_t b = i >> shape.log2_block;
    raw.block =
        Kind::kScale != BlockScale::kBinary ? scales[b] : load_scale(scales, b, shape.scale_bytes);
    if constexpr (Kind::kScale == BlockScale::kTwoLevels) {
        raw.group = reinterpret_cast<const uint32_t*>(encoding + layout.groups)[i / kScaleGroup];
    }
}
// Its value; NaN for poison.
template <class Kind>
__device__ __forceinline__ float block_scale(const RawScale& raw, const BlockFloatShape& shape) {
    uint32_t bits = raw.block;
    if constexpr (Kind::kScale == BlockScale::kPowerOfTwo) {
        bits = bits != 0 ? bits << 23 : 0x00400000u;
    } else if constexpr (Kind::kScale == BlockScale::kTwoLevels) {
        bits = __float_as_uint(
            __fmul_rn(float_of_code(raw.block, Fp8e4m3Format{}), __uint_as_float(raw.group)));
    } else if (shape.scale_bytes == 2) {
        bits <<= 16;
    }
    const bool poison = (bits & kMagnitudeMask) >= kInfinityBits;
    return __uint_as_float(poison ? kNanFloat32 : bits);
}

}  // namespace
}  // namespace slimwire
