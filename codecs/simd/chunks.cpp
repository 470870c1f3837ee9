#include "codecs/simd/chunks.h"

#include "codecs/simd/single_elements.h"

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
    return scale * single_element(pointer, 0, dtype);
}

}  // namespace slimwire
