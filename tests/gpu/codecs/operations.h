// The operations beside the codecs on a real GPU (codecs/README.md): equal to their host bodies to
// the byte. As compare.h.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace slimwire::gpu {

// Compares sum_rows, move_ranges, measure, residuals in and out of their store, and EF21's
// estimates, each `rounds` times with sizes up to `most_elems`; a line in `failures` for every
// difference. Returns how many operations there are.
int compare_operations(int rounds,
                       int64_t most_elems,
                       uint64_t seed,
                       std::vector<std::string>* failures);

}  // namespace slimwire::gpu
