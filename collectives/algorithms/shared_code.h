// All-to-alls and the pair of all-gather and reduce-scatter by a linear autoencoder that learns
// with the network around it, as messages do (learned_code.h), but by one E and one D of all ranks:
// what a rank gives goes as the numbers of its rows, and ranks make rows of those that they get.
// Numbers of a sum are added, in the order of the ranks, before rows are made of them.
//
// A rank keeps the rows that it gave forward and the numbers that it got, until the answer comes.
// With the answer of the last one that waits ranks sum the gradients of both matrices and make a
// step: all have the same weights, and know them from no loaded state but one that all loaded.
//
// Kernels, one NCCL group, kernels, on the codec stream; of a last answer another group.
#pragma once

#include <string>

#include "collectives/algorithms/learned_code.h"

namespace slimwire {

[[nodiscard]] uint64_t shared_code_scratch(const Layout& layout,
                                           const CallSignature& signature,
                                           int ranks);
// What is kept of a collective forward: bytes, a multiple of 16.
[[nodiscard]] uint64_t shared_code_kept(const Plan& plan, int ranks) noexcept;

class SharedCode final : public Exchange {
  public:
    explicit SharedCode(const ExchangeContext& context);

    [[nodiscard]] int phases() const noexcept override { return steps() ? 2 : 1; }
    [[nodiscard]] bool exchanges(int) const noexcept override { return true; }
    Status kernels(int phase) override;
    Status exchange(int phase) override;
    Status finish(int phase) override;

  private:
    [[nodiscard]] Op op() const noexcept { return context_.plan.signature.op; }
    [[nodiscard]] int rank() const noexcept { return context_.state.rank; }
    [[nodiscard]] int ranks() const noexcept { return context_.state.shape.ranks; }
    [[nodiscard]] bool answers() const noexcept {
        return context_.plan.signature.direction == Direction::kBackward;
    }
    // Whether weights make a step behind this call.
    [[nodiscard]] bool steps() const noexcept {
        return answers() && context_.pairs != nullptr && context_.pairs->last;
    }
    [[nodiscard]] const FactoredMessage& message() const noexcept {
        return *context_.plan.layout.factored;
    }
    // What an all-to-all gives itself is copied.
    [[nodiscard]] bool copied(int block) const noexcept {
        return op() == Op::kAllToAll && block == rank();
    }
    [[nodiscard]] uint64_t block_bytes() const noexcept;
    [[nodiscard]] char* slot(int block, bool received) const noexcept;
    [[nodiscard]] char* raw_of(char* slot) const noexcept;
    // Of E, or D.
    [[nodiscard]] float* weights(bool encoder) const noexcept;
    [[nodiscard]] float* gradient(bool encoder) const noexcept;
    [[nodiscard]] LowRankArgs args_of(char* slot, bool encoder) const noexcept;
    Status run(LowRankStep step, const LowRankArgs& args);
    Status move_raw(void* buffer, char* slot, bool to_slot);
    Status encode(int block, char* slot);
    Status sum_slots();
    Status decode(char* slot, void* output);
    Status copy(void* to, const void* from, uint64_t bytes);
    // From blocks of rows and their numbers: one gradient more of E, or D.
    Status learn(bool encoder, const char* rows, const char* numbers);
    Status make_step(bool encoder);

    ExchangeContext context_;
};

}  // namespace slimwire
