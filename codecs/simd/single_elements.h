// Reading and writing one element at a time, for operations that are not worth vectors. NaN written
// is the canonical one.
#pragma once

#include <bit>
#include <cstdint>

#include "codecs/base/dtype.h"
#include "codecs/float16.h"
#include "codecs/numeric.h"

namespace slimwire {

struct SingleFloat32 {
    using Bits = float;
    static float get(float bits) noexcept { return bits; }
    static float put(float value) noexcept {
        return value != value ? std::bit_cast<float>(kNanFloat32) : value;
    }
};
struct SingleFloat16 {
    using Bits = uint16_t;
    static float get(uint16_t bits) noexcept { return float16_to_float(bits); }
    static uint16_t put(float value) noexcept { return float_to_float16(value); }
};
struct SingleBfloat16 {
    using Bits = uint16_t;
    static float get(uint16_t bits) noexcept { return bfloat16_to_float(bits); }
    static uint16_t put(float value) noexcept { return float_to_bfloat16(value); }
};

// Calls `run` with the one of the three types above that is `dtype`.
template <class Run>
void visit_single(DType dtype, const Run& run) {
    if (dtype == DType::kFloat32) {
        run(SingleFloat32{});
    } else if (dtype == DType::kFloat16) {
        run(SingleFloat16{});
    } else {
        run(SingleBfloat16{});
    }
}

}  // namespace slimwire
