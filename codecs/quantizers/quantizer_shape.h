// What the parameters of a quantizer mean, and where the planes of an encoding lie; the one
// place for descriptor, host bodies and kernels. Bytes and rules: FORMAT.md, "Quantizers".
// Read by objects of any instruction set and by kernels: nothing here may become a shared symbol.
#pragma once

#include <cstdint>

#include "codecs/args.h"
#include "codecs/threefry.h"

namespace slimwire {

// What a code says of an element. A code of 1 bit is the sign alone.
enum class QuantizerRule : uint8_t {
    kSign = 0,    // scale or -scale
    kLevels = 1,  // a two's complement integer times the scale
    kPowers = 2,  // a sign and a power of two, or zero, times the scale
};

// A member of the family and its width: what host bodies and kernels are compiled for.
template <QuantizerRule kRuleOf, int kBitsOf>
struct QuantizerKind {
    static constexpr QuantizerRule kRule = kRuleOf;
    static constexpr int kBits = kBitsOf;
    // Levels of powers: codes 1, 2, ... are 2^(1 - kTop), ..., 1/2, 1.
    static constexpr int kTop = (1 << (kBitsOf - 1)) - 1;
    // Values are at most this times the scale.
    static constexpr float kReach = kRuleOf == QuantizerRule::kLevels ? 1 << (kBitsOf - 1) : 1;
};
using QuantizerSign = QuantizerKind<QuantizerRule::kSign, 1>;
template <int kBits>
using QuantizerLevels = QuantizerKind<QuantizerRule::kLevels, kBits>;
template <int kBits>
using QuantizerPowers = QuantizerKind<QuantizerRule::kPowers, kBits>;

// Calls run(kind) with the one that has this rule and width; for descriptors and launchers.
template <QuantizerRule kRule, class Run>
auto with_quantizer_kind(int bits, Run run) {
    if constexpr (kRule == QuantizerRule::kSign) {
        return run(QuantizerSign{});
    } else if constexpr (kRule == QuantizerRule::kPowers) {
        return bits == 8 ? run(QuantizerPowers<8>{}) : run(QuantizerPowers<4>{});
    } else {
        return bits == 2   ? run(QuantizerLevels<2>{})
               : bits == 4 ? run(QuantizerLevels<4>{})
               : bits == 6 ? run(QuantizerLevels<6>{})
                           : run(QuantizerLevels<8>{});
    }
}

struct QuantizerShape {
    int32_t block;  // elements that share a scale, power of two, 16..2048
    int32_t log2_block;
    int32_t levels;  // largest code of QuantizerRule::kLevels
    QuantizerScale scale;
    bool stochastic;
};

// Offsets of the planes in an encoding of one chunk; the codes stand at 0.
struct QuantizerLayout {
    int64_t padded;  // elements, completed to whole blocks
    int64_t scales;  // fp32 of block 0, 1, ...
    int64_t bytes;
};

SLIMWIRE_EVERYWHERE QuantizerShape quantizer_shape(const CodecParams& params) {
    QuantizerShape shape = {};
    shape.block = params.block;
    while (1 << shape.log2_block < shape.block) {
        ++shape.log2_block;
    }
    shape.levels = params.levels;
    shape.scale = static_cast<QuantizerScale>(params.scale_type);
    shape.stochastic = params.rounding == static_cast<uint8_t>(Rounding::kStochastic);
    return shape;
}

template <class Kind>
SLIMWIRE_EVERYWHERE QuantizerLayout quantizer_layout(const QuantizerShape& shape, int64_t count) {
    QuantizerLayout layout = {};
    layout.padded = (count + shape.block - 1) & -int64_t{shape.block};
    layout.scales = layout.padded / 8 * Kind::kBits;
    layout.bytes = layout.scales + (layout.padded >> shape.log2_block) * 4;
    return layout;
}

// Sums of a block are those of this many lanes, element i belonging to lane i modulo it, which are
// then added in halves.
inline constexpr int kQuantizerLanes = 256;
// Mean magnitudes whose sum is not finite are taken of elements times this; back by its inverse.
inline constexpr float kQuantizerDown = 0x1p-12f;
inline constexpr float kQuantizerUp = 0x1p12f;
// Elements per standard deviation that QuantizerScale::kClip keeps.
inline constexpr float kQuantizerClip = 2.5f;
// Bits of a fraction that rounding compares with what an element draws.
inline constexpr int kQuantizerFraction = 17;
inline constexpr uint32_t kQuantizerHalf = 1u << (kQuantizerFraction - 1);
// The scales of levels end here, so that the largest code times the scale is finite.
inline constexpr uint32_t kQuantizerMostBits = 0x7F7F0000u;

}  // namespace slimwire
