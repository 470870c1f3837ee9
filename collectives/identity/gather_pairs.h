// Which all-gathers of a training step bring the parameters whose gradients which reduce-scatter
// takes: of sharded training (FSDP, ZeRO-3), where units of parameters are gathered in forward,
// gathered again in backward in the reverse order, and reduced there. Pure.
//
// Told by counts and order: among the calls of one count per rank, the k-th last gather of the
// forward pass belongs to the k-th reduce-scatter, and gathers of the backward pass come in the
// order of these. Where some units are kept for backward and do not come again, order leaves open
// which; then the address that a shard is sent from says it, or the units of that count have no
// pairs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace slimwire {

struct StepCall {
    uint64_t key = 0;    // differs between calls of a step, and is the same in every step
    uint64_t count = 0;  // elements of a rank
    bool scatter = false;
    const void* sent = nullptr;  // of a gather; may be another one in another step
    bool operator==(const StepCall& other) const noexcept {
        return key == other.key && count == other.count && scatter == other.scatter;
    }
};

struct GatherPair {
    uint64_t unit = 0;   // key of the reduce-scatter; 0: none
    bool first = false;  // of the unit's gathers in the step
    bool operator==(const GatherPair&) const = default;
};

// The pair of each call of a step; none for reduce-scatters.
[[nodiscard]] std::vector<GatherPair> pair_gathers(const std::vector<StepCall>& step);

// The steps of one communicator, call by call.
class GatherPairs {
  public:
    static constexpr size_t kMostCalls = 16384;  // of a step; longer ones have no pairs

    // The next gather or reduce-scatter, of this step. Pairs are known from the third step on,
    // where two before were alike up to their last reduce-scatter; a call that was not to come next
    // ends them for the rest of its step.
    GatherPair next(const StepCall& call, uint64_t step);
    // Calls were counted that never were made.
    void lose() noexcept;

    // What it learned, as numbers; a later process that goes on with them behind the last step has
    // the pairs of one that did not end. False, and nothing changed, where they are not such.
    [[nodiscard]] std::vector<uint64_t> save() const;
    bool go_on(std::span<const uint64_t> saved);

  private:
    void end_step();

    uint64_t step_ = 0;
    bool begun_ = false, follows_ = false;
    std::vector<StepCall> now_, last_, known_;
    std::vector<GatherPair> pairs_;  // of known_
};

}  // namespace slimwire
