#include "tools/cli/bench/worker/bench_worker_data.h"

#include <cmath>
#include <cstring>

namespace slimwire::bench {
namespace {

uint32_t float_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

float bits_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

uint16_t to_bf16(float value) {
    const uint32_t bits = float_bits(value);
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Normal deviates need no infinities; values too small for a half's normal range become subnormal.
uint16_t to_f16(float value) {
    const auto sign = static_cast<uint16_t>(float_bits(value) >> 16 & 0x8000);
    const float magnitude = std::fabs(value);
    if (magnitude < 0x1p-14f) {
        return static_cast<uint16_t>(sign |
                                     static_cast<uint16_t>(std::nearbyint(magnitude * 0x1p24f)));
    }
    const uint32_t bits = float_bits(magnitude) - (112u << 23);
    return static_cast<uint16_t>(sign | ((bits + 0xfff + ((bits >> 13) & 1)) >> 13));
}

float from_f16(uint16_t half) {
    const uint32_t exponent = half >> 10 & 31;
    const float magnitude =
        exponent == 0    ? static_cast<float>(half & 0x3ff) * 0x1p-24f
        : exponent == 31 ? bits_float(0x7f800000u | static_cast<uint32_t>(half & 0x3ff) << 13)
                         : bits_float((static_cast<uint32_t>(half & 0x7fff) << 13) + (112u << 23));
    return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

}  // namespace

uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

float gaussian(uint64_t seed, int rank, size_t index) {
    const uint64_t pair = mix(mix(seed * 1000003 + static_cast<uint64_t>(rank)) + index / 2);
    // Box and Muller; the radius is never log(0).
    const float u = (static_cast<float>(pair >> 40) + 0.5f) * 0x1p-24f;
    const float angle = static_cast<float>(pair & 0xffffff) * (6.2831853f * 0x1p-24f);
    const float radius = std::sqrt(-2.0f * std::log(u));
    return radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

size_t element_bytes(Type type) {
    return type == Type::kF32 ? 4 : 2;
}

ncclDataType_t nccl_type(Type type) {
    switch (type) {
        case Type::kF32:
            return ncclFloat32;
        case Type::kF16:
            return ncclFloat16;
        case Type::kBf16:
            return ncclBfloat16;
    }
    return ncclFloat32;
}

void store(Type type, void* buffer, size_t index, float value) {
    if (type == Type::kF32) {
        static_cast<float*>(buffer)[index] = value;
    } else {
        static_cast<uint16_t*>(buffer)[index] = type == Type::kF16 ? to_f16(value) : to_bf16(value);
    }
}

float load(Type type, const void* buffer, size_t index) {
    if (type == Type::kF32) {
        return static_cast<const float*>(buffer)[index];
    }
    const uint16_t bits = static_cast<const uint16_t*>(buffer)[index];
    return type == Type::kF16 ? from_f16(bits) : bits_float(static_cast<uint32_t>(bits) << 16);
}

float rounded(Type type, float value) {
    uint16_t half;
    switch (type) {
        case Type::kF32:
            return value;
        case Type::kF16:
        case Type::kBf16:
            store(type, &half, 0, value);
            return load(type, &half, 0);
    }
    return value;
}

}  // namespace slimwire::bench
