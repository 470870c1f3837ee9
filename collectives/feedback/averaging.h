// Averaging of what ranks owe (SAEF: Xu, Huo, Huang, AAAI 2021): every so many compressed calls of
// a tensor its residuals e_i become their mean over the ranks, so that no rank owes for long what
// it alone has seen. As they are, by the real all-reduce; or by a codec C, as mean_j C(e_j) +
// (e_i - C(e_i)), of which the sum over the ranks is as it was.
//
// What ranks keep for a call's own contributions lies in the same place on all of them, but with a
// level inside nodes: there the ranks that own a column keep what its node's sum lost, and the mean
// is over the nodes. It goes through a vector of V elements, equal on all ranks: each puts its runs
// where they belong and zeros elsewhere. A vector is cut into parts, which bounds the scratch.
//
// averaging.cpp has the hook (call_hook.h), whose averaging is a call behind the tensor's own. What
// a plan keeps of it is here.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/plan/plan.h"

namespace slimwire {

struct Averaging final : PlanPart {
    struct Part {
        int64_t begin = 0, end = 0;  // of the vector
        // The all-reduce of it, in fp32 with a residual of its own; null: NCCL's.
        std::shared_ptr<const Plan> coded;
    };
    uint64_t every = 0;   // calls of a tensor
    int divisor = 1;      // of the sum: ranks, or nodes
    bool padded = false;  // a rank has runs for a part of the vector
    std::vector<Part> parts;
    // What runs: facts and scratch of these calls. Its counters are the tensor's plan's.
    Plan call;
    // In the scratch: the elements of a part, and what encoding them loses.
    uint64_t staging_offset = 0, lost_offset = 0;
    std::string codec;  // "native" as they are

    [[nodiscard]] uint64_t elems() const noexcept {
        return parts.empty() ? 0 : static_cast<uint64_t>(parts.back().end);
    }
};

// Bytes that this rank gives to the transport each time.
[[nodiscard]] uint64_t averaging_wire_bytes(const Averaging& averaging,
                                            const PlanShape& shape,
                                            int rank) noexcept;

}  // namespace slimwire
