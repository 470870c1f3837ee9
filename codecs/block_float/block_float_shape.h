// What the parameters of a block float codec mean, and where the planes of an encoding lie; the one
// place for descriptor, host bodies and kernels. Bytes and rules: FORMAT.md, "Block floats" and
// "Block floats with scales of 8 bits". Read by objects of any instruction set and by kernels:
// nothing here may become a shared symbol.
#pragma once

#include <cstdint>

#include "codecs/args.h"
#include "codecs/numeric.h"
#include "codecs/threefry.h"

namespace slimwire {

enum class BlockScale : uint8_t {
    kBinary = 0,      // bf16 or fp32
    kPowerOfTwo = 1,  // one byte, E8M0 of the OCP's MX format
    kTwoLevels = 2,   // one byte, e4m3, times an fp32 for each group of kScaleGroup elements
};
inline constexpr int kScaleGroup = 512;

// A member of the family: what a code is and what a scale is.
template <class ElementFormat, BlockScale kScaleOf>
struct BlockFloatKind {
    using Format = ElementFormat;
    static constexpr BlockScale kScale = kScaleOf;
    static constexpr int kBits = Format::kBits;
};
using Fp8e4m3 = BlockFloatKind<Fp8e4m3Format, BlockScale::kBinary>;
using Fp8e5m2 = BlockFloatKind<Fp8e5m2Format, BlockScale::kBinary>;
using MxFp4 = BlockFloatKind<Fp4e2m1Format, BlockScale::kPowerOfTwo>;
using NvFp4 = BlockFloatKind<Fp4e2m1Format, BlockScale::kTwoLevels>;

struct BlockFloatShape {
    int32_t block;  // elements that share a scale, power of two, 16..2048
    int32_t log2_block;
    int32_t scale_bytes;  // of a block
    bool stochastic;
    bool scale_up;  // scales of 8 bits: so that no element exceeds the largest code
};

// Offsets of the planes in an encoding of one chunk; the codes stand at 0.
struct BlockFloatLayout {
    int64_t padded;  // elements, completed to whole blocks
    int64_t groups;  // fp32 of group 0, 1, ...
    int64_t scales;  // scale of block 0, 1, ...
    int64_t bytes;
};

template <class Kind>
SLIMWIRE_EVERYWHERE BlockFloatShape block_float_shape(const CodecParams& params) {
    BlockFloatShape shape = {};
    if (Kind::kScale == BlockScale::kBinary) {
        shape.block = params.block;
        while (1 << shape.log2_block < shape.block) {
            ++shape.log2_block;
        }
        shape.scale_bytes = params.scale_type == static_cast<uint8_t>(ScaleType::kFloat32) ? 4 : 2;
    } else {  // known when it is compiled
        shape.log2_block = Kind::kScale == BlockScale::kPowerOfTwo ? 5 : 4;
        shape.block = 1 << shape.log2_block;
        shape.scale_bytes = 1;
        shape.scale_up = params.scale_type == static_cast<uint8_t>(ScaleRule::kUp);
    }
    shape.stochastic = params.rounding == static_cast<uint8_t>(Rounding::kStochastic);
    return shape;
}

template <class Kind>
SLIMWIRE_EVERYWHERE BlockFloatLayout block_float_layout(const BlockFloatShape& shape,
                                                        int64_t count) {
    BlockFloatLayout layout = {};
    layout.padded = (count + shape.block - 1) & -int64_t{shape.block};
    layout.groups = layout.padded / 8 * Kind::kBits;
    layout.scales = layout.groups;
    if (Kind::kScale == BlockScale::kTwoLevels) {
        layout.scales += (layout.padded + kScaleGroup - 1) / kScaleGroup * 4;
    }
    layout.bytes = layout.scales + (layout.padded >> shape.log2_block) * shape.scale_bytes;
    return layout;
}

}  // namespace slimwire
