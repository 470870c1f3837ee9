// What THC draws, and its arithmetic of one element: the same on host and device. Rules: FORMAT.md,
// "Summable Hadamard levels". Nothing here may become a shared symbol.
#pragma once

#include <cstdint>

#include "codecs/args.h"
#include "codecs/thc_shape.h"

namespace slimwire {

SLIMWIRE_EVERYWHERE ThcDraw thc_draw(const RandomKey& random, uint32_t counted) {
    return {
        {{random.seed, random.tensor, 0, static_cast<uint32_t>(RandomPurpose::kSigns)}},
        {{random.seed, random.tensor, random.rank, static_cast<uint32_t>(RandomPurpose::kEncode)}},
        random.step + counted};
}
// Sign bits of elements 128 * part to 128 * part + 127 of a group, the lowest bit first.
SLIMWIRE_EVERYWHERE void thc_signs(const ThcDraw& draw,
                                   int64_t group,
                                   uint32_t part,
                                   uint32_t (&x)[4]) {
    x[0] = static_cast<uint32_t>(group);
    x[1] = static_cast<uint32_t>(static_cast<uint64_t>(group) >> 32);
    x[2] = draw.step;
    x[3] = part;
    threefry(x, draw.signs);
}
// What elements 4 * four to 4 * four + 3 of the message round by.
SLIMWIRE_EVERYWHERE void thc_rounding(const ThcDraw& draw, uint64_t four, uint32_t (&x)[4]) {
    x[0] = static_cast<uint32_t>(four);
    x[1] = static_cast<uint32_t>(four >> 32);
    x[2] = draw.step;
    x[3] = 0;
    threefry(x, draw.rounding);
}

SLIMWIRE_EVERYWHERE float thc_flip(float x, uint32_t word, uint32_t bit) {
    return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, x) ^ (word >> bit << 31));
}

// The level of y in a group that is finite and not of zeros. `steps`: levels / 2 / reach.
SLIMWIRE_EVERYWHERE uint32_t thc_level(float y, float steps, uint32_t levels, uint32_t drawn) {
    const float place = y * steps + static_cast<float>(levels) * 0.5f;
    const float within = place > 0.0f ? place : 0.0f;
    if (within >= static_cast<float>(levels)) {
        return levels;
    }
    const auto below = static_cast<uint32_t>(within);
    const float part = within - static_cast<float>(below);
    return below + (part > static_cast<float>(drawn >> 8) * 0x1p-24f ? 1u : 0u);
}

// What a sum of `ranks` levels stands for. `half_step`: reach / levels.
SLIMWIRE_EVERYWHERE float thc_value(int32_t sum, int32_t levels, int32_t ranks, float half_step) {
    return static_cast<float>(2 * sum - levels * ranks) * half_step;
}

}  // namespace slimwire
