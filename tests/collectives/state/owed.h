// What saved residuals come to, added up apart from SavedJob.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "collectives/state/residual_map.h"

namespace slimwire::test {

// What the optimizer would still receive of each element, by what all ranks' tensors hold, added up
// apart from SavedJob; contributions and sums apart.
struct Owed {
    std::vector<double> given, sums;

    explicit Owed(size_t elems) : given(elems), sums(elems) {}
    void add(const ResidualMap& map, const std::byte* tensor) {
        for (const ResidualMap::Run& run : map.runs) {
            if (run.sums > 2) {
                continue;
            }
            std::vector<float> values(static_cast<size_t>(run.count));
            ASSERT_TRUE(read_run(
                            map,
                            [&](uint64_t offset, std::span<std::byte> out) {
                                std::copy_n(tensor + offset, out.size(), out.data());
                                return Status();
                            },
                            run, 0, values)
                            .ok());
            std::vector<double>& to = run.sums == 1 ? sums : given;
            for (size_t i = 0; i < values.size(); ++i) {
                const size_t at = static_cast<size_t>(run.at) + i;
                to.resize(std::max(to.size(), at + 1));
                to[at] += (run.sums == 1 ? 1 : map.unit) * double{values[i]};
            }
        }
    }
};

// What FSDP1 divides a sum of so many ranks by, from 1 on.
inline constexpr double kFsdpDivides[] = {1,   1,   1.5, 2, 2.5, 1.5, 3.5, 2,
                                          4.5, 2.5, 5.5, 3, 6.5, 3.5, 7.5, 4};
inline double divided_by(RedOp redop, SumUse use, int ranks) {
    return redop != RedOp::kSum || use == SumUse::kWhole ? 1
           : use == SumUse::kMean                        ? ranks
                                  : kFsdpDivides[static_cast<size_t>(ranks) - 1];
}

}  // namespace slimwire::test
