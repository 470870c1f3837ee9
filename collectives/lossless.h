// Exact operations with a lossless codec of fixed slots (palette:slot=F): what direct sends, and
// the gathering half of an all-reduce, whose sums NCCL makes. Data that does not fit its slots on
// some rank is sent again as it is: every rank learns it from the largest of all ranks' overflow
// words, which it waits for once. So these calls block the host until the exchange has run, are
// native under stream capture, and exist for operations that all ranks of the communicator take
// part in: the two ends of a message may group it differently, and then one would wait for the
// other's second message before it sends its own first.
//
// After kMaxOverflows overflows a kind of call goes out as it is at once. All ranks count them
// alike.
//
// Bytes a rank gives to the transport: those of direct and an all-reduce of one 32-bit word; before
// them, for an all-reduce, a native reduce-scatter of as many whole chunks as there are, and an
// all-reduce of the few elements that are left. The raw message on top after an overflow.
#pragma once

#include "collectives/direct.h"

namespace slimwire {

inline constexpr uint32_t kMaxOverflows = 8;

// The all-gather that carries what an operation compresses: of its chunks, for an all-reduce.
[[nodiscard]] CallFacts lossless_facts(const CallFacts& facts, int ranks) noexcept;
// `layout` is direct's, of lossless_facts().
[[nodiscard]] ExchangeSizes lossless_sizes(const Layout& layout,
                                           const CallFacts& facts,
                                           const PlanShape& shape);
[[nodiscard]] uint64_t lossless_wire_bytes(const Layout& layout,
                                           const CallFacts& facts,
                                           int ranks,
                                           int rank) noexcept;

class Lossless final : public Exchange {
  public:
    explicit Lossless(const ExchangeContext& context);
    [[nodiscard]] int phases() const noexcept override;
    [[nodiscard]] bool exchanges(int phase) const noexcept override;
    Status kernels(int phase) override;
    Status exchange(int phase) override;
    Status finish(int phase) override;
    [[nodiscard]] Course course() const noexcept override;

  private:
    [[nodiscard]] bool sums() const noexcept { return context_.plan.facts.op == Op::kAllReduce; }
    // A phase of direct's exchange, which begins after the sums.
    [[nodiscard]] int inner_phase(int phase) const noexcept { return phase - (sums() ? 1 : 0); }
    [[nodiscard]] bool agrees(int inner) const noexcept;
    Status sum_chunks();
    Status send_raw();

    ExchangeContext context_;
    uint32_t* overflow_;  // device word: whether an encoding of this rank, later of any, overflowed
    char* chunk_;         // this rank's sums, in an all-reduce
    CollectiveCall half_;  // the call that direct carries
    Direct direct_;
    bool given_up_;
    bool overflowed_ = false;
};

}  // namespace slimwire
