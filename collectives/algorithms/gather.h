// One-shot all-reduce: every rank encodes its whole contribution once, the encodings are
// all-gathered, and every rank decodes and adds all of them in rank order. Values are quantised
// once instead of twice, and there is one exchange instead of two; but a rank receives N - 1 whole
// messages, so it pays for few ranks and strong codecs. Every rank adds the same bytes in the same
// order, so results are bit-identical.
//
// Bytes a rank gives to the transport, S = total slot bytes of the whole message: (N-1) S.
#pragma once

#include "collectives/algorithms/exchange.h"

namespace slimwire {

struct GatherMap {
    GatherMap(const Layout& layout, DType dtype, int ranks);
    ScratchMap scratch;
    uint64_t slots;  // area of a slot for each rank
    uint64_t raw;    // the sum of a slice's raw part
    uint64_t workspace;
};

// `layout` is make_layout() for one rank.
[[nodiscard]] ExchangeSizes gather_sizes(const Layout& layout,
                                         const CallSignature& signature,
                                         const PlanShape& shape);
[[nodiscard]] uint64_t gather_wire_bytes(const Layout& layout, int ranks) noexcept;

class Gather : public SlicedExchange {
  public:
    explicit Gather(const ExchangeContext& context);

  protected:
    [[nodiscard]] char* slot(int slice, int source) const noexcept;
    [[nodiscard]] float factor() const noexcept;  // before encoding; after the sum of raw elements
    // Where a piece lies in the program's buffers, and the run that its operations take.
    [[nodiscard]] const char* contribution(const Piece& piece) const noexcept;
    [[nodiscard]] char* result(const Piece& piece) const noexcept;
    [[nodiscard]] Run run_of(int slice, const Piece& piece) const noexcept;
    virtual Status encode_piece(int slice, const Piece& piece);
    virtual Status decode_piece(int slice, const Piece& piece);

  private:
    Status encode(int slice) override;
    Status send(int hop, int slice) override;
    Status decode(int slice) override;

    GatherMap map_;
};

// The same for EF21 (codecs/residual/estimate.h): a rank encodes what its contribution differs by
// from its estimate, and all ranks' copy of the sum's estimate takes up all that was sent, in rank
// order. Residuals of a tensor: own estimates, shared estimates. Pieces that feed nothing are as
// ever.
class EstimatedGather final : public Gather {
  public:
    explicit EstimatedGather(const ExchangeContext& context) : Gather(context) {}

  private:
    Status encode_piece(int slice, const Piece& piece) override;
    Status decode_piece(int slice, const Piece& piece) override;
};

}  // namespace slimwire
