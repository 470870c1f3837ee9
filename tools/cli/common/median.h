// The middle of measured values: the mean of both where there are as many on each side, 0 of none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace slimwire::cli {

[[nodiscard]] inline double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const size_t n = values.size();
    return n == 0 ? 0 : (values[(n - 1) / 2] + values[n / 2]) / 2;
}

}  // namespace slimwire::cli
