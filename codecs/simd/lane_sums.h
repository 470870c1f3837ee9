// Sums over a buffer in the order of kMeasureLanes (numeric.h), for host bodies that look at it
// once: measure.cpp, step_ahead.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "codecs/numeric.h"

namespace slimwire {

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
