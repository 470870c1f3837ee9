#include "tools/cli/bench/worker/bench_worker_data.h"

#include <cmath>

#include "codecs/float16.h"

namespace slimwire::bench {

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

size_t element_bytes(ncclDataType_t type) {
    return type == ncclFloat32 ? 4 : 2;
}

void store(ncclDataType_t type, void* buffer, size_t index, float value) {
    if (type == ncclFloat32) {
        static_cast<float*>(buffer)[index] = value;
    } else {
        static_cast<uint16_t*>(buffer)[index] =
            type == ncclFloat16 ? float_to_float16(value) : float_to_bfloat16(value);
    }
}

float load(ncclDataType_t type, const void* buffer, size_t index) {
    if (type == ncclFloat32) {
        return static_cast<const float*>(buffer)[index];
    }
    const uint16_t bits = static_cast<const uint16_t*>(buffer)[index];
    return type == ncclFloat16 ? float16_to_float(bits) : bfloat16_to_float(bits);
}

float rounded(ncclDataType_t type, float value) {
    if (type == ncclFloat32) {
        return value;
    }
    uint16_t half = 0;
    store(type, &half, 0, value);
    return load(type, &half, 0);
}

}  // namespace slimwire::bench
