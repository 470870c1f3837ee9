// A run of stored residuals as kernels read it (load_store.cu, step_ahead.cu).
#pragma once

#include "codecs/gpu/elements.cuh"
#include "codecs/residual/load_store.h"
#include "codecs/residual/residual_math.h"

namespace slimwire {
namespace {

// Elements i, ..., i + 7 of the run of `count`; i is a multiple of eight.
__device__ __forceinline__ void load_stored(const StoredResiduals& stored,
                                            int64_t i,
                                            int64_t count,
                                            Eight& x) {
    const auto* bytes = static_cast<const uint8_t*>(stored.bytes);
    if (stored.type == ResidualType::kFloat32) {
        load_eight<Float32>(bytes + stored.first * 4, i, count, x);
    } else if (stored.type == ResidualType::kBfloat16) {
        load_eight<Bfloat16>(bytes + stored.first * 2, i, count, x);
    } else {
        uint2 codes = make_uint2(0, 0);
        uint16_t scale = 0;
        if (i < count) {
            const int64_t at = stored.first + i;
            codes = *reinterpret_cast<const uint2*>(bytes + at);
            scale = reinterpret_cast<const uint16_t*>(bytes + stored.elems)[at / kResidualBlock];
        }
        const uint32_t words[2] = {codes.x, codes.y};
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            const auto code = static_cast<int8_t>(words[k / 4] >> (8 * (k % 4)));
            x.v[k] = i + k < count ? of_residual_code(code, scale) : 0.0f;
        }
    }
}

}  // namespace
}  // namespace slimwire
