// Inputs of ranks whose sum is exact in fp32 in any order, so that a result says whether it went by
// a lossy codec.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace slimwire::test {

struct ExactInput {
    std::vector<float> given;  // by this rank
    std::vector<float> sum;    // of all ranks
};

// Multiples of 2^-10 of magnitude up to 1.
inline ExactInput exact_input(size_t count, int rank, int ranks) {
    ExactInput input;
    for (size_t i = 0; i < count; ++i) {
        double sum = 0;
        for (int r = 0; r < ranks; ++r) {
            const double value =
                std::floor(1024 * std::sin(0.37 * static_cast<double>(i) + r)) / 1024;
            sum += value;
            if (r == rank) {
                input.given.push_back(static_cast<float>(value));
            }
        }
        input.sum.push_back(static_cast<float>(sum));
    }
    return input;
}

}  // namespace slimwire::test
