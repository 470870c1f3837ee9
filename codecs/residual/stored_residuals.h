// A run of stored residuals as host bodies read and write it (load_store.h, step_ahead.h).
#pragma once

#include <cstdint>

#include "codecs/base/device.h"
#include "codecs/residual/load_store.h"
#include "codecs/residual/residual_math.h"

namespace slimwire {

struct StoredView {
    ResidualType type;
    float* floats;     // of the run's first element
    uint16_t* halves;  // of either kind: bf16 values, or the scales of the run's blocks
    int8_t* codes;

    static StoredView of(const StoredResiduals& stored) {
        auto* bytes = device_view_as<uint8_t>(stored.bytes);
        StoredView store{stored.type, nullptr, nullptr, nullptr};
        switch (stored.type) {
            case ResidualType::kFloat32:
                store.floats = reinterpret_cast<float*>(bytes) + stored.first;
                break;
            case ResidualType::kBfloat16:
                store.halves = reinterpret_cast<uint16_t*>(bytes) + stored.first;
                break;
            case ResidualType::kInt8:
                store.codes = reinterpret_cast<int8_t*>(bytes) + stored.first;
                store.halves = reinterpret_cast<uint16_t*>(bytes + stored.elems) +
                               stored.first / kResidualBlock;
                break;
        }
        return store;
    }
    [[nodiscard]] float value(int64_t i) const {
        switch (type) {
            case ResidualType::kFloat32:
                return floats[i];
            case ResidualType::kBfloat16:
                return of_bfloat16_residual(halves[i]);
            case ResidualType::kInt8:
                return of_residual_code(codes[i], halves[i / kResidualBlock]);
        }
        return 0;
    }
};

}  // namespace slimwire
