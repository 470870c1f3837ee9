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
// Plan time: add_averaging(). A call of it: AveragingExchange, which rounds.cpp runs behind the
// tensor's own call as a call of its own.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/algorithms/algorithm.h"
#include "collectives/plan/plan.h"

namespace slimwire {

// Compressed calls of a tensor whose residuals are averaged now and then; equal on all ranks.
struct CountedTensor {
    uint64_t path = 0;  // of its place (StepPosition)
    uint64_t calls = 0;
};

struct Averaging {
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

// make_plan() of dispatch/planner.h.
using MakePlan = Plan (*)(const CallSignature& signature,
                          const PlanShape& shape,
                          const Config& config,
                          const ParameterRanges* parameters);

// Completes a plan whose rule asks for it; what cannot be is why the call is native.
std::string add_averaging(const Action& action,
                          const PlanShape& shape,
                          const Config& config,
                          MakePlan make_plan,
                          Plan* plan);

// Bytes that this rank gives to the transport each time.
[[nodiscard]] uint64_t averaging_wire_bytes(const Averaging& averaging,
                                            const PlanShape& shape,
                                            int rank) noexcept;

class AveragingExchange final : public Exchange {
  public:
    // `keeper`: the plan whose tensor's residuals are at context.residual, or of which this rank
    // has none for want of memory: then it gives zeros. `context.plan` is its averaging->call.
    // `room` outlives this.
    AveragingExchange(const ExchangeContext& context, const Plan& keeper, ExchangeRoom* room);

    [[nodiscard]] int phases() const noexcept override { return phases_; }
    [[nodiscard]] bool exchanges(int phase) const noexcept override {
        return inner_ == nullptr || inner_->exchanges(phase - first_phase_);
    }
    Status kernels(int phase) override;
    Status exchange(int phase) override;
    Status finish(int phase) override;

  private:
    [[nodiscard]] const Averaging::Part& part() const noexcept { return averaging_.parts[part_]; }
    [[nodiscard]] int64_t count() const noexcept { return part().end - part().begin; }
    [[nodiscard]] float* window() const noexcept {
        return reinterpret_cast<float*>(context_.scratch + averaging_.staging_offset);
    }
    [[nodiscard]] float* lost() const noexcept {
        return reinterpret_cast<float*>(context_.scratch + averaging_.lost_offset);
    }
    // Calls move(stored, elements of the window, count) for what this rank has of the part.
    Status for_stored(const std::function<Status(const StoredResiduals&, float*, int64_t)>& move);
    [[nodiscard]] Exchange* make_inner();
    Status take();
    Status add_lost();
    Status put();
    // output[i] = scale * (output[i] + other[i]), the latter if not null.
    Status sum(float* output, const float* other, int64_t count, float scale);

    ExchangeContext context_;
    const Plan& keeper_;
    const Averaging& averaging_;
    ExchangeRoom* room_;
    Exchange* inner_ = nullptr;  // of the part; null: NCCL's own
    size_t part_ = 0;
    int first_phase_ = 0;  // of the part
    int phases_ = 0;
};

}  // namespace slimwire
