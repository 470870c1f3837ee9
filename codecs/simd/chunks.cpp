#include "codecs/simd/chunks.h"

#include <cstring>

#include "codecs/float16.h"

namespace slimwire {

ChunkRandom chunk_random(const RandomKey& random, RandomPurpose purpose) noexcept {
    const auto* step = device_view_as<const uint32_t>(random.step_ptr);
    return {{{random.seed, random.tensor, random.rank, static_cast<uint32_t>(purpose)}},
            0,
            random.step + (step != nullptr ? *step : 0)};
}

float scale_factor(float scale, const void* scale_ptr, DType dtype) noexcept {
    const void* pointer = device_view(scale_ptr);
    if (pointer == nullptr) {
        return scale;
    }
    if (dtype == DType::kFloat32) {
        float value = 0;
        std::memcpy(&value, pointer, sizeof(value));
        return scale * value;
    }
    uint16_t half = 0;
    std::memcpy(&half, pointer, sizeof(half));
    return scale * (dtype == DType::kFloat16 ? float16_to_float(half) : bfloat16_to_float(half));
}

}  // namespace slimwire
