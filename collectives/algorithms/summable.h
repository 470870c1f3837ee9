// All-reduce, reduce-scatter and reduce of a linear codec: what it encodes is elements of the
// call's type, and those of all ranks add up place by place, so the real NCCL operation sums the
// encodings themselves, with whatever algorithm and hardware NCCL has for it. Values are quantised
// once.
//
// Every rank must encode the same choice of elements: it is drawn from the codec's seed, the
// tensor, the chunk and the step (never the rank), and compressed collectives of a communicator are
// counted alike on all ranks.
//
// Bytes a rank gives to the transport: as for the native operation on the encoded values.
#pragma once

#include "collectives/algorithms/exchange.h"

namespace slimwire {

struct SummableMap {
    SummableMap(const Layout& layout, const CallSignature& signature, int ranks);
    ScratchMap scratch;
    int send_slots;
    uint64_t send, result;  // areas; the same for operations in place
    uint64_t workspace;
};

// `layout` is make_layout() for one rank: of the message, or of a block of a reduce-scatter.
[[nodiscard]] ExchangeSizes summable_sizes(const Layout& layout,
                                           const CallSignature& signature,
                                           const PlanShape& shape);
[[nodiscard]] uint64_t summable_wire_bytes(const Layout& layout,
                                           const CallSignature& signature,
                                           int ranks,
                                           int rank) noexcept;

class Summable final : public SlicedExchange {
  public:
    explicit Summable(const ExchangeContext& context);

  private:
    [[nodiscard]] Op op() const noexcept { return context_.plan.signature.op; }
    [[nodiscard]] char* send_slot(int slice, int block) const noexcept;
    [[nodiscard]] char* result_slot(int slice) const noexcept;
    Status encode(int slice) override;
    Status send(int hop, int slice) override;
    Status decode(int slice) override;

    SummableMap map_;
};

}  // namespace slimwire
