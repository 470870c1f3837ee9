// Messages, all-to-alls, all-gathers and reduce-scatters by factors of low rank: each block that a
// rank gives travels as P and Q of its matrices in fp32, which one step of the power iteration from
// drawn columns finds (low_rank.h), and the elements of no matrix as they are. Nothing is kept from
// call to call but of messages whose answers come: what arrives is P P^T X, and an answer to it is
// exact for P as it was: G^T P in the place of Q, and no P, which both ends hold (held_masks.h).
//
// Kernels, one NCCL group, kernels, on the codec stream. An all-gather's ranks all restore the same
// factors, the contributor too; the own block of an all-to-all is copied; a reduce-scatter restores
// all contributions, the own one too, and sums them in the order of the ranks.
#pragma once

#include "collectives/algorithms/algorithm.h"

namespace slimwire {

// What exchanges of matrices have alike, whose messages are factors and, behind them, the elements
// of no matrix as they are. On the codec stream.
class FactorExchange : public Exchange {
  public:
    explicit FactorExchange(const ExchangeContext& context) : context_(context) {}

    [[nodiscard]] bool exchanges(int) const noexcept override { return true; }

  protected:
    [[nodiscard]] Op op() const noexcept { return context_.plan.signature.op; }
    [[nodiscard]] int rank() const noexcept { return context_.state.rank; }
    [[nodiscard]] int ranks() const noexcept { return context_.state.shape.ranks; }
    [[nodiscard]] bool answers() const noexcept {
        return context_.plan.signature.direction == Direction::kBackward;
    }
    // What an all-to-all gives itself is copied.
    [[nodiscard]] bool copied(int block) const noexcept {
        return op() == Op::kAllToAll && block == rank();
    }
    [[nodiscard]] uint64_t block_bytes() const noexcept;
    [[nodiscard]] const FactoredMessage& message() const noexcept {
        return *context_.plan.layout.factored;
    }
    // Of these factors, with sums of runs at `work` of the scratch and a result of `summed` ranks.
    [[nodiscard]] LowRankArgs factor_args(char* left,
                                          float* right,
                                          uint64_t work,
                                          int summed) const noexcept;
    Status run(LowRankStep step, const LowRankArgs& args);
    // The elements of no matrix, from a buffer of the call to `raw` and back.
    Status pack_raw(const void* buffer, char* raw);
    Status unpack_raw(const char* raw, void* buffer);
    Status send(const void* from, size_t bytes, int to) {
        return send_bytes(context_, from, bytes, to, context_.work);
    }
    Status receive(void* to, size_t bytes, int from) {
        return receive_bytes(context_, to, bytes, from, context_.work);
    }

    ExchangeContext context_;
};

// Whether the call goes so: by powersgd without residuals; of sums a plain one.
[[nodiscard]] bool factors_blocks(const AlgorithmRequest& request);
// With the bytes of a block's slot: P, Q, other elements.
[[nodiscard]] Layout factored_blocks_layout(const AlgorithmRequest& request);
// Bytes of a block on the wire, and of its P.
[[nodiscard]] uint64_t factored_blocks_wire(const Layout& layout, const CallSignature& signature);
[[nodiscard]] uint64_t factored_blocks_kept(const Layout& layout) noexcept;
[[nodiscard]] uint64_t factored_blocks_scratch(const Layout& layout,
                                               const CallSignature& signature,
                                               int ranks);

class FactoredBlocks final : public FactorExchange {
  public:
    using FactorExchange::FactorExchange;

    [[nodiscard]] int phases() const noexcept override { return 1; }
    Status kernels(int phase) override;
    Status exchange(int phase) override;
    Status finish(int phase) override;

  private:
    [[nodiscard]] char* slot(int block, bool received) const noexcept;
    [[nodiscard]] LowRankArgs args_of(char* slot) const noexcept;
    [[nodiscard]] char* raw_of(char* slot) const noexcept;
    [[nodiscard]] char* trailer_of(char* slot) const noexcept;
    Status encode(int block, char* slot);
    Status encode_answer(LowRankArgs args);
    Status decode(char* slot, void* output);
    Status sum_contributions();
};

}  // namespace slimwire
