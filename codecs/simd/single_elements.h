// Reading and writing one element at a time, for operations that are not worth vectors. NaN written
// is the canonical one.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

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

// Element i of a buffer that need not be aligned.
inline float single_element(const void* buffer, int64_t i, DType dtype) noexcept {
    float value = 0;
    visit_single(dtype, [&](auto element) {
        typename decltype(element)::Bits bits;
        std::memcpy(&bits, static_cast<const uint8_t*>(buffer) + i * sizeof(bits), sizeof(bits));
        value = element.get(bits);
    });
    return value;
}
inline void put_single_element(void* buffer, int64_t i, DType dtype, float value) noexcept {
    visit_single(dtype, [&](auto element) {
        const auto bits = element.put(value);
        std::memcpy(static_cast<uint8_t*>(buffer) + i * sizeof(bits), &bits, sizeof(bits));
    });
}

}  // namespace slimwire
