// A call by a codec with pair=mask: forward each rank gets an encoding of topk or randomk and a
// trailer behind it, backward the values alone at the positions of the message that it answers
// (masked_values.h). Both ends keep those of messages forward (held_masks.h). A call without a
// direction goes as one forward, whose answer both have if it has one.
//
// A collective is a message to each rank and one from each, every pair of ranks by masks of its
// own. An all-gather gives all ranks one mask, its answer is a reduce-scatter; a reduce-scatter
// gives each rank another one, its answer is an all-gather. What a rank gives itself goes the same
// way, but for an all-to-all, where it is copied.
#pragma once

#include <string>

#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/direct.h"
#include "collectives/algorithms/held_masks.h"

namespace slimwire {

// The codec that such a call goes by: that of a threshold, exact in every message, is topk.
[[nodiscard]] CodecSpec paired_codec(const CodecSpec& said);
// Why it cannot go so; empty where it can.
[[nodiscard]] std::string refuse_paired(const AlgorithmRequest& request);
// One slice with room for the trailer.
[[nodiscard]] Layout paired_layout(const AlgorithmRequest& request);
// Bytes of a message of a plan's call, whose codec is paired_codec()'s.
[[nodiscard]] uint64_t paired_wire_bytes(const Layout& layout, const CallSignature& signature);
[[nodiscard]] bool is_paired(const Layout& layout) noexcept;
// Of a message of the plan, which is a paired one.
[[nodiscard]] MaskedFrame masked_frame(const Plan& plan);

class PairedExchange final : public SlicedExchange {
  public:
    explicit PairedExchange(const ExchangeContext& context);

  protected:
    Status encode(int slice) override;
    Status send(int hop, int slice) override;
    Status decode(int slice) override;

  private:
    // A message of the call.
    struct Leg {
        bool sends = false;
        int peer = 0;
        const PairUse* use = nullptr;  // null in a rehearsal
        char* slot = nullptr;
        int64_t at = 0;  // the element of the buffer to send that it begins with
    };
    // Those of a collective: to itself, then to and from each other rank.
    [[nodiscard]] int legs() const noexcept;
    [[nodiscard]] int first_leg() const noexcept;
    [[nodiscard]] Leg leg(int index) const noexcept;
    [[nodiscard]] bool own(const Leg& one) const noexcept { return one.peer == rank(); }
    [[nodiscard]] bool answers(const Leg& one) const noexcept;
    Status encode_forward(const Leg& one);
    Status encode_answer(const Leg& one);
    Status join(const Leg& one);
    // Takes from a frame forward what both ends keep of it.
    Status keep(const Leg& one);

    [[nodiscard]] Op op() const noexcept { return context_.plan.signature.op; }

    MaskedFrame frame_;
    DirectMap map_;
};

}  // namespace slimwire
