#include "collectives/algorithms/paired_exchange.h"

#include <cstddef>
#include <string>

#include "collectives/plan/plan.h"

namespace slimwire {

CodecSpec paired_codec(const CodecSpec& said) {
    if (said.params.target == static_cast<uint8_t>(PairMode::kRuns)) {
        return said;
    }
    CodecSpec codec = parse_codec("topk").value();
    codec.params.fraction = said.params.fraction;
    codec.params.target = said.params.target;
    return codec;
}

std::string refuse_paired(const AlgorithmRequest& request) {
    const CallSignature& signature = request.signature;
    return reduces(signature.op) && signature.redop != RedOp::kSum
               ? request.action.codec->to_string() + " has no form of " +
                     std::string(redop_name(signature.redop)) + ", whose answer is not scaled"
               : std::string();
}

Layout paired_layout(const AlgorithmRequest& request) {
    const CallSignature& signature = request.signature;
    Layout layout = make_layout({{0, signature.count, paired_codec(*request.action.codec)}},
                                signature.dtype, 1, 0);
    for (int64_t* bytes :
         {&layout.slices[0].slot_bytes, &layout.max_slot_bytes, &layout.total_slot_bytes}) {
        *bytes += static_cast<int64_t>(sizeof(MaskTrailer));
    }
    return layout;
}

bool is_paired(const Layout& layout) noexcept {
    return layout.slices.size() == 1 && layout.slices[0].pieces.size() == 1 &&
           layout.slices[0].pieces[0].codec.pairs_masks();
}

uint64_t paired_wire_bytes(const Layout& layout, const CallSignature& signature) {
    const Piece& piece = layout.slices[0].pieces[0];
    const MaskedFrame frame = MaskedFrame::of(piece.codec.params, piece.dtype, piece.count);
    return static_cast<uint64_t>(
        frame.bytes - (signature.direction == Direction::kBackward ? frame.mask_bytes() : 0));
}

MaskedFrame masked_frame(const Plan& plan) {
    const Piece& piece = plan.layout.slices[0].pieces[0];
    return MaskedFrame::of(piece.codec.params, piece.dtype, piece.count);
}

PairedExchange::PairedExchange(const ExchangeContext& context)
    : SlicedExchange(context, 1, context.alone || !is_point_to_point(context.plan.signature.op)),
      frame_(masked_frame(context.plan)),
      map_(context.plan.layout, context.plan.signature, context.state.shape.ranks) {
    workspace_ = context.scratch + map_.workspace;
}

int PairedExchange::legs() const noexcept {
    return is_point_to_point(op()) ? 1 : 2 * ranks() - 1;
}

int PairedExchange::first_leg() const noexcept {
    return op() == Op::kAllToAll ? 1 : 0;
}

PairedExchange::Leg PairedExchange::leg(int index) const noexcept {
    const CallSignature& signature = context_.plan.signature;
    if (is_point_to_point(op())) {
        return {op() == Op::kSend, signature.root_or_peer, context_.pairs,
                context_.scratch + map_.send, 0};
    }
    const bool sends = index % 2 == 1 || index == 0;
    const int step = (index + 1) / 2;
    const int peer = (sends ? rank() + step : rank() + ranks() - step) % ranks();
    const bool comes = index > 0 && sends == (signature.direction == Direction::kBackward);
    const PairUse* const use =
        context_.pairs == nullptr ? nullptr : context_.pairs + 2 * peer + (comes ? 1 : 0);
    const uint64_t area = sends && index > 0 ? map_.send : map_.receive;
    char* const slot = context_.scratch + area + static_cast<size_t>(peer) * slot_bytes(0);
    const bool whole = op() == Op::kAllGather;
    return {sends, peer, use, slot, whole ? 0 : peer * static_cast<int64_t>(signature.count)};
}

bool PairedExchange::answers(const Leg& one) const noexcept {
    return one.use == nullptr ? context_.plan.signature.direction == Direction::kBackward
                              : one.use->backward;
}

Status PairedExchange::keep(const Leg& one) {
    return keep_forward(context_, one.use, one.slot, static_cast<uint64_t>(frame_.mask_bytes()),
                        one.slot + frame_.trailer);
}

Status PairedExchange::encode_forward(const Leg& one) {
    const Piece& piece = slice_at(0).pieces[0];
    if (op() == Op::kAllGather && !own(one)) {
        SLIMWIRE_TRY(copy_on_device(context_.api, one.slot, leg(0).slot,
                                    static_cast<size_t>(frame_.trailer), context_.work,
                                    "mask of a message"));
    } else {
        const char* const input =
            static_cast<const char*>(context_.call.send) + one.at * element_bytes();
        RandomKey random = random_of(0, piece, 0);
        if (one.use != nullptr && one.use->place.mark != 0) {  // one choice for all of the step
            random.step = static_cast<uint32_t>(one.use->first_of_step);
            random.step_ptr = nullptr;
        }
        SLIMWIRE_TRY(encode_run(piece, random, input, {0, 0, false}, one.slot,
                                {piece.count, piece.chunk_elems, slice_at(0).slot_bytes}));
    }
    SLIMWIRE_TRY(write_trailer(context_, one.use, one.slot + frame_.trailer, false));
    return keep(one);
}

Status PairedExchange::encode_answer(const Leg& one) {
    const Piece& piece = slice_at(0).pieces[0];
    SLIMWIRE_TRY(clear_on_device(context_.api, one.slot + frame_.mask_bytes(),
                                 static_cast<size_t>(frame_.bytes - frame_.mask_bytes()),
                                 context_.work, "answer to a message"));
    const bool known = one.use != nullptr && one.use->answered != nullptr;
    GatherMaskedArgs args{};
    args.mask = known ? one.use->answered : nullptr;
    args.input = static_cast<const char*>(context_.call.send) + one.at * element_bytes();
    args.frame = one.slot;
    args.count = piece.count;
    args.params = piece.codec.params;
    args.dtype = piece.dtype;
    args.number = known ? static_cast<uint32_t>(*one.use->place.answers) : kNoMask;
    return enqueue(context_.api, args, context_.work);
}

Status PairedExchange::encode(int) {
    for (int index = first_leg(); index < legs(); ++index) {
        const Leg one = leg(index);
        if (one.sends) {
            SLIMWIRE_TRY(answers(one) ? encode_answer(one) : encode_forward(one));
        }
    }
    return {};
}

Status PairedExchange::send(int, int) {
    for (int index = first_leg(); index < legs(); ++index) {
        const Leg one = leg(index);
        if (own(one)) {
            continue;
        }
        char* const from = one.slot + (answers(one) ? frame_.mask_bytes() : 0);
        const auto bytes = static_cast<size_t>(one.slot + frame_.bytes - from);
        SLIMWIRE_TRY(one.sends ? send_bytes(from, bytes, one.peer)
                               : receive_bytes(from, bytes, one.peer));
    }
    return {};
}

// Makes an encoding of what came, or was given to itself.
Status PairedExchange::join(const Leg& one) {
    if (!answers(one)) {
        return own(one) ? Status() : keep(one);
    }
    if (one.use == nullptr) {
        return {};
    }
    const Piece& piece = slice_at(0).pieces[0];
    JoinMaskedArgs args{};
    args.frame = one.slot;
    args.count = piece.count;
    args.params = piece.codec.params;
    args.dtype = piece.dtype;
    args.held = one.use->masks->offer(context_.plan.signature, args.numbers, args.masks);
    args.misses = one.use->misses;
    return enqueue(context_.api, args, context_.work);
}

Status PairedExchange::decode(int) {
    const Piece& piece = slice_at(0).pieces[0];
    const int64_t slot = slice_at(0).slot_bytes;
    if (op() == Op::kAllToAll) {
        SLIMWIRE_TRY(copy_own_block(context_));
    }
    for (int index = first_leg(); index < legs(); ++index) {
        const Leg one = leg(index);
        if (one.sends && !own(one)) {
            continue;
        }
        SLIMWIRE_TRY(join(one));
        if (op() != Op::kReduceScatter) {
            const int64_t at = is_point_to_point(op()) ? 0 : one.peer * piece.count;
            SLIMWIRE_TRY(decode_run(piece, one.slot,
                                    static_cast<char*>(context_.call.recv) + at * element_bytes(),
                                    {piece.count, piece.chunk_elems, slot}, false));
        }
    }
    return op() == Op::kReduceScatter ? sum_slots(piece, context_.scratch + map_.receive, slot,
                                                  ranks(), piece.count, context_.call.recv, {})
                                      : Status();
}

}  // namespace slimwire
