// Two-shot all-reduce: encode, exchange the chunks all to all, decode-sum-encode the own chunk in
// one pass, all-gather, decode. Every value is quantised twice whatever the number of ranks, sums
// are taken in rank order in fp32, and every rank (the owner too) decodes the same bytes. A reduce
// sends the encoded sums to its root instead of to all. Where a codec does not reduce in one pass
// (exact top-k), the chunk is summed in the call's type, as NCCL does, and encoded again.
//
// Bytes a rank gives to the transport, S = total slot bytes: all-reduce 2 (N-1) S; reduce (N-1) S,
// and S more where it is not the root.
#pragma once

#include "collectives/algorithms/exchange.h"

namespace slimwire {

struct TwoShotMap {
    TwoShotMap(const Layout& layout, int ranks);
    ScratchMap scratch;
    uint64_t send, receive, gather;  // areas of one slot a rank
    uint64_t sum;                    // where the codec does not reduce: a chunk
    uint64_t workspace;
};

[[nodiscard]] ExchangeSizes two_shot_sizes(const Layout& layout,
                                           const CallSignature& signature,
                                           const PlanShape& shape);
[[nodiscard]] uint64_t two_shot_wire_bytes(const Layout& layout,
                                           const CallSignature& signature,
                                           int ranks,
                                           int rank) noexcept;

class TwoShot : public SlicedExchange {
  public:
    explicit TwoShot(const ExchangeContext& context);

  protected:
    enum class Area { kSend, kReceive, kGather };
    [[nodiscard]] char* area(Area which, int slice) const noexcept;
    // The server's residuals of a slice: they follow the worker's, chunk after chunk.
    [[nodiscard]] ResidualSpan server_residual(int slice) const noexcept;
    // Where a piece lies in the program's buffers, and the run that its operations take.
    [[nodiscard]] const char* contribution(const Piece& piece) const noexcept;
    [[nodiscard]] char* result(const Piece& piece) const noexcept;
    [[nodiscard]] Run run_of(int slice, const Piece& piece) const noexcept;
    virtual Status encode_piece(int slice, const Piece& piece);
    virtual Status decode_piece(int slice, const Piece& piece);

  private:
    [[nodiscard]] bool rooted() const noexcept;
    [[nodiscard]] bool delivers() const noexcept;  // whether this rank gets the result
    Status encode(int slice) override;
    Status place_own(int slice) override;
    Status between(int hop, int slice) override;
    Status send(int hop, int slice) override;
    Status decode(int slice) override;

    TwoShotMap map_;
};

// The same for EF21 (codecs/residual/estimate.h), both ways: a worker encodes what its contribution
// differs by from its estimate, which takes up what it sent; the sums of that, with what encoding
// them lost so far, are what every rank's copy of the shared estimate takes up, and that copy is
// the result. Residuals of a tensor: own estimates, server's residuals, shared estimates. They are
// equal, or fit each other, on all ranks, so a rank without them would be an error. Pieces that
// feed nothing are as ever.
class EstimatedTwoShot final : public TwoShot {
  public:
    explicit EstimatedTwoShot(const ExchangeContext& context) : TwoShot(context) {}

  private:
    Status encode_piece(int slice, const Piece& piece) override;
    Status decode_piece(int slice, const Piece& piece) override;
};

}  // namespace slimwire
