// Sums over a buffer in the order of kMeasureLanes (numeric.h), for host bodies that look at it
// once: measure.cpp, step_ahead.cpp.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "codecs/base/dtype.h"
#include "codecs/float16.h"
#include "codecs/numeric.h"

namespace slimwire {

inline float buffer_element(const uint8_t* buffer, int64_t i, DType dtype) noexcept {
    if (dtype == DType::kFloat32) {
        float value = 0;
        std::memcpy(&value, buffer + i * 4, sizeof value);
        return value;
    }
    uint16_t bits = 0;
    std::memcpy(&bits, buffer + i * 2, sizeof bits);
    return dtype == DType::kFloat16 ? float16_to_float(bits) : bfloat16_to_float(bits);
}

// The halves added, again and again; what is left is the sum.
inline double sum_in_pairs(double* values, int64_t count) noexcept {
    for (int64_t half = count / 2; half > 0; half /= 2) {
        for (int64_t i = 0; i < half; ++i) {
            values[i] += values[i + half];
        }
    }
    return values[0];
}

inline double sum_of_lanes(std::vector<double>* lanes) noexcept {
    double blocks[kMeasureBlocks];
    for (int block = 0; block < kMeasureBlocks; ++block) {
        blocks[block] =
            sum_in_pairs(lanes->data() + block * int64_t{kMeasureThreads}, kMeasureThreads);
    }
    return sum_in_pairs(blocks, kMeasureBlocks);
}

}  // namespace slimwire
