// An algorithm is how the bytes of a compressed call travel: a constant descriptor of functions,
// at the end of the algorithm's own source. The table of all is made of policy/algorithms.def,
// which also says what the policy must know of each: its name and the operations that it carries.
// Pure, but for make().
#pragma once

#include <cstddef>
#include <functional>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "collectives/algorithms/exchange.h"
#include "collectives/state/residual_map.h"

namespace slimwire {

// A call that an algorithm may carry.
struct AlgorithmRequest {
    const CallSignature& signature;
    const PlanShape& shape;
    const Action& action;
    // Of the message; empty: all of it with the action's codec.
    std::span<const Segment> segments = {};
    // With a codec of low rank: what travels as factors.
    std::span<const MatrixShape> matrices = {};
};

// A call with the layout that its plan gives it.
struct PlannedCall {
    const Layout& layout;
    const CallSignature& signature;
    const PlanShape& shape;
};

// Room for an exchange of any algorithm, so that a call allocates nothing.
class ExchangeRoom {
  public:
    ExchangeRoom() = default;
    ExchangeRoom(const ExchangeRoom&) = delete;
    ExchangeRoom& operator=(const ExchangeRoom&) = delete;
    ~ExchangeRoom() { clear(); }

    // Makes an exchange in place of the one before.
    template <class Made>
    Exchange* emplace(const ExchangeContext& context) {
        static_assert(sizeof(Made) <= kBytes && alignof(Made) <= alignof(std::max_align_t));
        clear();
        exchange_ = new (bytes_) Made(context);
        return exchange_;
    }

  private:
    static constexpr size_t kBytes = 640;

    void clear() noexcept {
        if (exchange_ != nullptr) {
            exchange_->~Exchange();
            exchange_ = nullptr;
        }
    }

    alignas(std::max_align_t) std::byte bytes_[kBytes];
    Exchange* exchange_ = nullptr;
};

// A run of a tensor's residuals of its own contributions: where it lies in the store, as
// SlicedExchange::ResidualSpan says, and which elements they belong to, counted so that one
// element has one place on all ranks.
struct ResidualRun {
    int64_t first = 0, index = 0;
    int64_t count = 0;
    int64_t at = 0;
};
using UseResidualRun = std::function<void(const ResidualRun&)>;
using ResidualRuns = void(const Plan& plan,
                          const PlanShape& shape,
                          int rank,
                          const UseResidualRun& use);
inline constexpr int kEveryRank = -1;

std::string refuse_nothing(const AlgorithmRequest& request);
inline bool every_rank_encodes(const CallSignature&, int) {
    return true;
}

struct AlgorithmDescriptor {
    uint32_t segment_ops = 0;  // bit per Op whose messages may have parts that differ
    // The codec is applied to what a rank gives (Exchange::rehearse() does it), not to sums that
    // only the exchange makes.
    bool encodes_contributions = false;
    // The codec draws the same numbers on all ranks.
    bool draws_alike = false;
    // Why the algorithm cannot carry the call, whose operation it carries; empty when it can.
    std::string (*refuse)(const AlgorithmRequest& request) = refuse_nothing;
    // How the call's buffer is cut; of a call that is not refused.
    Layout (*layout)(const AlgorithmRequest& request, uint64_t slice_bytes);
    ExchangeSizes (*sizes)(const PlannedCall& call);
    // Bytes that a rank gives to the transport for one call.
    uint64_t (*wire_bytes)(const PlannedCall& call, int rank);
    // Whether a rank encodes, and so keeps residuals.
    bool (*encodes)(const CallSignature& signature, int rank) = every_rank_encodes;
    // Calls use(ResidualRun) for each run that `rank` has of a plan with ef14 or ema; kEveryRank:
    // for those of all ranks, each once.
    ResidualRuns* residual_runs;
    // What is done, in its order, for `slimwire explain`.
    std::vector<std::string> (*steps)(const Plan& plan, const PlanShape& shape);
    Exchange* (*make)(const ExchangeContext& context, ExchangeRoom* room);
    // The same of what encoding sums of all ranks lost, which `rank` keeps; null: nothing is lost.
    ResidualRuns* sum_runs = nullptr;
    // The same of what a codec inside nodes lost of `rank`'s own elements, beside the contributions
    // of its node; null: there is none.
    ResidualRuns* inner_runs = nullptr;
    // An average is made of the sum: residuals of contributions are not divided by the ranks yet.
    bool averages_sums = false;
};

// By Algorithm. Those of kAuto and kNative are of calls that NCCL carries itself, which have no
// exchange to make.
extern constinit const AlgorithmDescriptor* const kAlgorithmDescriptors[];
[[nodiscard]] inline const AlgorithmDescriptor& descriptor_of(Algorithm algorithm) noexcept {
    return *kAlgorithmDescriptors[static_cast<size_t>(algorithm)];
}

// The algorithms that a call may get, best first, when its rule says this: the one that it names,
// or the meaning of `auto` for the operation and the communicator.
std::vector<Algorithm> candidates(const AlgorithmRequest& request);
// Why an algorithm cannot carry the call; empty when it can.
std::string why_not(Algorithm algorithm, const AlgorithmRequest& request);

// Bytes that this rank gives to the transport for one call of a plan; 0 of a native one.
[[nodiscard]] uint64_t wire_bytes_of(const Plan& plan, const PlanShape& shape, int rank) noexcept;
// Whether this rank keeps a residual for calls of a plan with error feedback.
[[nodiscard]] inline bool keeps_residual(const Plan& plan, int rank) noexcept {
    return plan.replicated_state() ||
           ((plan.error_feedback != ErrorFeedback::kNone || plan.residual.has_thresholds) &&
            descriptor_of(plan.algorithm).encodes(plan.signature, rank));
}
// Whether the plan's codec is applied to contributions, and not to differences from an estimate.
[[nodiscard]] bool encodes_contributions(const Plan& plan) noexcept;

// AlgorithmDescriptor::residual_runs of a plan's algorithm.
void for_residual_runs(const Plan& plan,
                       const PlanShape& shape,
                       int rank,
                       const UseResidualRun& use);

// Where what `rank` keeps lies, and what it is to the optimizer.
[[nodiscard]] ResidualMap residual_map(const Plan& plan, const PlanShape& shape, int rank);

// Parts of descriptors.
// Whether all codecs of the message reduce in one pass.
[[nodiscard]] bool all_reduce_encodings(const AlgorithmRequest& request);
// The segments of the message, at least one; and the type that is encoded of those with residuals,
// empty: the call's.
[[nodiscard]] std::vector<Segment> segments_of(const AlgorithmRequest& request);
[[nodiscard]] std::optional<DType> residual_dtype_of(const AlgorithmRequest& request);
// The slice of one block, where the message is several of them; and make_layout() of one block.
[[nodiscard]] uint64_t block_slice_bytes(const AlgorithmRequest& request, uint64_t slice_bytes);
Layout block_layout(const AlgorithmRequest& request, uint64_t slice_bytes);
// Residuals that lie as the elements of the message do.
void message_runs(const Plan& plan, const PlanShape& shape, int rank, const UseResidualRun& use);
// Residuals in blocks of signature.count elements, each of all pieces: of the block that is number
// `at` of the message, the run in place `stored` of the store; and of all blocks of the message.
void block_run(const Plan& plan, int64_t stored, int64_t at, const UseResidualRun& use);
void block_runs(const Plan& plan, const PlanShape& shape, int rank, const UseResidualRun& use);

}  // namespace slimwire
