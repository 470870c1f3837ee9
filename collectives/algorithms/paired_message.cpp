#include "collectives/algorithms/paired_message.h"

#include <cstddef>

#include "collectives/plan/plan.h"

namespace slimwire {

CodecSpec paired_codec(const CodecSpec& said) {
    CodecSpec codec = parse_codec("topk").value();
    codec.params.fraction = said.params.fraction;
    codec.params.target = said.params.target;
    return codec;
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

PairedMessage::PairedMessage(const ExchangeContext& context)
    : SlicedExchange(context, 1, context.alone), frame_(masked_frame(context.plan)) {
    const DirectMap map(context.plan.layout, context.plan.signature, context.state.shape.ranks);
    slot_ = context.scratch + map.send;
    workspace_ = context.scratch + map.workspace;
}

bool PairedMessage::answers() const noexcept {
    return context_.plan.signature.direction == Direction::kBackward;
}

Status PairedMessage::copy(void* to, const void* from, int64_t bytes) {
    return cuda_status(context_.api,
                       context_.api.memcpy_async(to, from, static_cast<size_t>(bytes),
                                                 cudaMemcpyDeviceToDevice, context_.work),
                       "mask of a message");
}

Status PairedMessage::keep() {
    const PairUse* const pair = context_.pair;
    if (pair == nullptr) {
        return {};
    }
    if (pair->kept != nullptr) {
        SLIMWIRE_TRY(copy(pair->kept, slot_, frame_.mask_bytes()));
    }
    return pair->sample == nullptr
               ? Status()
               : context_.state.objects.copies.to_host(
                     context_.api, slot_ + frame_.trailer + offsetof(MaskTrailer, misses),
                     pair->sample, context_.work);
}

Status PairedMessage::encode_forward() {
    const Piece& piece = slice_at(0).pieces[0];
    SLIMWIRE_TRY(encode_run(piece, random_of(0, piece, 0), context_.call.send, {0, 0, false}, slot_,
                            {piece.count, piece.chunk_elems, slice_at(0).slot_bytes}));
    char* const trailer = slot_ + frame_.trailer;
    SLIMWIRE_TRY(cuda_status(
        context_.api, context_.api.memset_async(trailer, 0, sizeof(MaskTrailer), context_.work),
        "trailer of a message"));
    if (context_.pair != nullptr && context_.pair->misses != nullptr) {
        SLIMWIRE_TRY(
            copy(trailer + offsetof(MaskTrailer, misses), context_.pair->misses, sizeof(uint32_t)));
    }
    return keep();
}

Status PairedMessage::encode_answer() {
    const Piece& piece = slice_at(0).pieces[0];
    SLIMWIRE_TRY(cuda_status(
        context_.api,
        context_.api.memset_async(slot_ + frame_.mask_bytes(), 0,
                                  static_cast<size_t>(frame_.bytes - frame_.mask_bytes()),
                                  context_.work),
        "answer to a message"));
    const bool known = context_.pair != nullptr && context_.pair->answered != nullptr;
    GatherMaskedArgs args{};
    args.mask = known ? context_.pair->answered : nullptr;
    args.input = context_.call.send;
    args.frame = slot_;
    args.count = piece.count;
    args.params = piece.codec.params;
    args.dtype = piece.dtype;
    args.number = known ? static_cast<uint32_t>(*context_.pair->place.answers) : kNoMask;
    return enqueue(context_.api, args, context_.work);
}

Status PairedMessage::encode(int) {
    if (context_.plan.signature.op == Op::kRecv) {
        return {};
    }
    return answers() ? encode_answer() : encode_forward();
}

Status PairedMessage::send(int, int) {
    const int64_t begin = answers() ? frame_.mask_bytes() : 0;
    const auto bytes = static_cast<size_t>(frame_.bytes - begin);
    const int peer = context_.plan.signature.root_or_peer;
    return context_.plan.signature.op == Op::kSend ? send_bytes(slot_ + begin, bytes, peer)
                                                   : receive_bytes(slot_ + begin, bytes, peer);
}

Status PairedMessage::decode(int) {
    if (context_.plan.signature.op == Op::kSend) {
        return {};
    }
    const Piece& piece = slice_at(0).pieces[0];
    if (!answers()) {
        SLIMWIRE_TRY(keep());
    } else if (context_.pair != nullptr) {
        JoinMaskedArgs args{};
        args.frame = slot_;
        args.count = piece.count;
        args.params = piece.codec.params;
        args.dtype = piece.dtype;
        context_.pair->masks->offer(context_.plan.signature, &args);
        if (args.misses == nullptr) {  // there was no room for it: this one counts for nobody
            args.misses =
                reinterpret_cast<uint32_t*>(slot_ + frame_.trailer + offsetof(MaskTrailer, zero));
        }
        SLIMWIRE_TRY(enqueue(context_.api, args, context_.work));
    }
    return decode_run(piece, slot_, context_.call.recv,
                      {piece.count, piece.chunk_elems, slice_at(0).slot_bytes}, false);
}

}  // namespace slimwire
