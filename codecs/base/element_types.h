// Element types as C++ types with conversions to and from the type they are computed in, for the
// emulator and for tools. Conversions round to nearest even and are written so that compilers can
// vectorise loops over them. fp8 follows the CUDA conversions: values beyond the largest finite one
// become that one, NaN stays NaN.
#pragma once

#include <bit>
#include <cstdint>

#include "codecs/base/dtype.h"

namespace slimwire::element_types {

template <class T>
struct Plain {
    using Storage = T;
    using Compute = T;
    static Compute load(Storage x) noexcept { return x; }
    static Storage store(Compute x) noexcept { return x; }
};

struct Half {
    using Storage = uint16_t;
    using Compute = float;
    static float load(uint16_t h) noexcept {
        const uint32_t magnitude = h & 0x7fffu;
        const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
        // Moves the exponent by 112; exact for subnormals too.
        const uint32_t finite =
            std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112f);
        const uint32_t special = 0x7f800000u | (magnitude & 0x3ffu) << 13;
        return std::bit_cast<float>(sign | (magnitude >= 0x7c00u ? special : finite));
    }
    static uint16_t store(float f) noexcept {
        const uint32_t bits = std::bit_cast<uint32_t>(f);
        const uint32_t magnitude = bits & 0x7fffffffu;
        const uint32_t odd = magnitude >> 13 & 1u;
        const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + odd) >> 13;
        // Adding 0.5 lets the hardware round at the position of the subnormal's last bit.
        const uint32_t subnormal =
            std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
        const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
        uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
        result = magnitude >= 0x47800000u ? special : result;
        return static_cast<uint16_t>((bits >> 16 & 0x8000u) | result);
    }
};

struct Bfloat {
    using Storage = uint16_t;
    using Compute = float;
    static float load(uint16_t b) noexcept {
        return std::bit_cast<float>(static_cast<uint32_t>(b) << 16);
    }
    static uint16_t store(float f) noexcept {
        const uint32_t bits = std::bit_cast<uint32_t>(f);
        const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
        const uint32_t quiet = bits >> 16 | 0x40u;
        return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
    }
};

// E exponent bits, M mantissa bits, the largest finite magnitude's code, and whether the codes
// above it hold an infinity (e5m2) or only NaN (e4m3).
template <int E, int M, uint8_t kMaxCode, uint8_t kNanCode>
struct Float8 {
    using Storage = uint8_t;
    using Compute = float;
    static constexpr int kBias = (1 << (E - 1)) - 1;
    static float load(uint8_t code) noexcept {
        const uint32_t magnitude = code & 0x7fu;
        const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
        const float scale = std::bit_cast<float>(static_cast<uint32_t>(127 + 127 - kBias) << 23);
        const float finite = std::bit_cast<float>(magnitude << (23 - M)) * scale;
        uint32_t bits = std::bit_cast<uint32_t>(finite);
        if (magnitude > kMaxCode) {
            bits = kMaxCode == 0x7b && magnitude == 0x7c ? 0x7f800000u : 0x7fc00000u;
        }
        return std::bit_cast<float>(sign | bits);
    }
    static uint8_t store(float f) noexcept {
        const uint32_t bits = std::bit_cast<uint32_t>(f);
        const uint32_t magnitude = bits & 0x7fffffffu;
        const uint8_t sign = static_cast<uint8_t>(bits >> 24 & 0x80u);
        if (magnitude > 0x7f800000u) {
            return static_cast<uint8_t>(sign | kNanCode);
        }
        const uint32_t smallest_normal = static_cast<uint32_t>(128 - kBias) << 23;
        uint32_t code = 0;
        if (magnitude < smallest_normal) {
            // The unit of the subnormals is 2^(1 - bias - M); adding 2^23 units rounds to it.
            const uint32_t magic = static_cast<uint32_t>(127 + 1 - kBias - M + 23) << 23;
            code = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) +
                                           std::bit_cast<float>(magic)) -
                   magic;
        } else {
            const uint32_t odd = magnitude >> (23 - M) & 1u;
            code = (magnitude - (static_cast<uint32_t>(127 - kBias) << 23) +
                    ((1u << (22 - M)) - 1) + odd) >>
                   (23 - M);
        }
        return static_cast<uint8_t>(sign | (code > kMaxCode ? kMaxCode : code));
    }
};
using Float8E4M3 = Float8<4, 3, 0x7e, 0x7f>;
using Float8E5M2 = Float8<5, 2, 0x7b, 0x7f>;

// Calls visit(Element{}) with the element type of `type`.
template <class Visit>
void visit_element(DType type, Visit&& visit) {
    switch (type) {
        case DType::kInt8:
            return visit(Plain<int8_t>{});
        case DType::kUint8:
            return visit(Plain<uint8_t>{});
        case DType::kInt32:
            return visit(Plain<int32_t>{});
        case DType::kUint32:
            return visit(Plain<uint32_t>{});
        case DType::kInt64:
            return visit(Plain<int64_t>{});
        case DType::kUint64:
            return visit(Plain<uint64_t>{});
        case DType::kFloat16:
            return visit(Half{});
        case DType::kFloat32:
            return visit(Plain<float>{});
        case DType::kFloat64:
            return visit(Plain<double>{});
        case DType::kBfloat16:
            return visit(Bfloat{});
        case DType::kFloat8e4m3:
            return visit(Float8E4M3{});
        case DType::kFloat8e5m2:
            return visit(Float8E5M2{});
    }
}

}  // namespace slimwire::element_types
