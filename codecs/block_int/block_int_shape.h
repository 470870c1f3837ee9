// What the parameters of a block integer codec mean, and where the planes of an encoding lie; the
// one place for descriptor, host bodies and kernels. Bytes and rules: FORMAT.md, "Block integers".
// Read by objects of any instruction set and by kernels: nothing here may become a shared symbol.
#pragma once

#include <cstdint>

#include "codecs/args.h"
#include "codecs/threefry.h"

namespace slimwire {

struct BlockIntShape {
    int32_t bits;    // of a code
    int32_t block;   // elements that share a scale, power of two, 16..2048
    int32_t rotate;  // elements of one Hadamard rotation, 0 or 32..512
    int32_t unit;    // the larger of both: a chunk is completed to a multiple of it
    int32_t log2_block;
    int32_t scale_bytes;  // 2 or 4
    bool stochastic;
    uint32_t seed;   // of the rotation's signs
    float unrotate;  // 1 / rotate, which is exact; 1 without rotation
};

// Offsets of the planes in an encoding of one chunk; the codes stand at 0.
struct BlockIntLayout {
    int64_t padded;  // elements, completed to whole units
    int64_t blocks;
    int64_t scales;  // scale of block 0, 1, ...
    int64_t bytes;
};

SLIMWIRE_EVERYWHERE BlockIntShape block_int_shape(const CodecParams& params) {
    BlockIntShape shape = {};
    shape.bits = params.bits;
    shape.block = params.block;
    shape.rotate = params.rotate;
    shape.unit = params.rotate > params.block ? params.rotate : params.block;
    while (1 << shape.log2_block < shape.block) {
        ++shape.log2_block;
    }
    shape.scale_bytes = params.scale_type == static_cast<uint8_t>(ScaleType::kFloat32) ? 4 : 2;
    shape.stochastic = params.rounding == static_cast<uint8_t>(Rounding::kStochastic);
    shape.seed = params.seed;
    shape.unrotate = params.rotate != 0 ? 1.0f / static_cast<float>(params.rotate) : 1.0f;
    return shape;
}

SLIMWIRE_EVERYWHERE BlockIntLayout block_int_layout(const BlockIntShape& shape, int64_t count) {
    BlockIntLayout layout = {};
    layout.padded = (count + shape.unit - 1) & -int64_t{shape.unit};
    layout.blocks = layout.padded >> shape.log2_block;
    layout.scales = layout.padded / 8 * shape.bits;
    layout.bytes = layout.scales + layout.blocks * shape.scale_bytes;
    return layout;
}

}  // namespace slimwire
