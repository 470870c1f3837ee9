// What `slimwire bench collective` puts in, and what a rank should get, in float64. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "tools/cli/bench/worker/bench_worker_options.h"

namespace slimwire::bench {

// Of one rank; `count` is NCCL's argument.
struct Delivery {
    const Options& options;
    int rank, ranks;

    [[nodiscard]] size_t input_elems(size_t count) const;
    [[nodiscard]] size_t output_elems(size_t count) const;
    // Relative L2 error of the result, which stands in the options' type.
    [[nodiscard]] double relative_error(const std::vector<char>& result, size_t count) const;
    [[nodiscard]] bool alike_on_all_ranks() const;
};

}  // namespace slimwire::bench
