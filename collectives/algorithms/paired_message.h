// A message between two stages by a codec with pair=mask: forward an encoding of topk and a trailer
// behind it, backward the values alone at the positions of the message that it answers
// (masked_values.h). Both ends keep those of messages forward (held_masks.h). A message without a
// direction goes as one forward, whose answer both have if it has one.
#pragma once

#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/direct.h"
#include "collectives/algorithms/held_masks.h"

namespace slimwire {

// The codec that such a message goes by: a threshold that is exact in every message is that of
// topk.
[[nodiscard]] CodecSpec paired_codec(const CodecSpec& said);
// One slice with room for the trailer.
[[nodiscard]] Layout paired_layout(const AlgorithmRequest& request);
// Bytes of a plan's message, whose codec is paired_codec()'s.
[[nodiscard]] uint64_t paired_wire_bytes(const Layout& layout, const CallSignature& signature);
[[nodiscard]] bool is_paired(const Layout& layout) noexcept;
// Of a message of the plan, which is a paired one.
[[nodiscard]] MaskedFrame masked_frame(const Plan& plan);

class PairedMessage final : public SlicedExchange {
  public:
    explicit PairedMessage(const ExchangeContext& context);

  protected:
    Status encode(int slice) override;
    Status send(int hop, int slice) override;
    Status decode(int slice) override;

  private:
    [[nodiscard]] bool answers() const noexcept;
    Status encode_forward();
    Status encode_answer();
    Status copy(void* to, const void* from, int64_t bytes);
    // Takes from a frame forward what both ends keep of it.
    Status keep();

    MaskedFrame frame_;
    char* slot_ = nullptr;
};

}  // namespace slimwire
