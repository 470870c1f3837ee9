#include "collectives/estimated_direct.h"

#include "codecs/sum_rows.h"
#include "collectives/plan.h"

namespace slimwire {

void direct_estimates(const CallFacts& facts, uint64_t ranks, ExchangeSizes* sizes) noexcept {
    switch (facts.op) {
        case Op::kReduceScatter:
        case Op::kAllToAll:
            sizes->shared_begin = ranks * facts.count;
            sizes->estimate_elems = 2 * ranks * facts.count;
            return;
        case Op::kAllGather:
        case Op::kGather:
        case Op::kScatter:
            sizes->estimate_elems = ranks * facts.count;
            return;
        case Op::kBroadcast:
        case Op::kSend:
        case Op::kRecv:
            sizes->estimate_elems = facts.count;
            return;
        case Op::kAllReduce:
        case Op::kReduce:
            break;
    }
}

float* EstimatedDirect::given(int index) const noexcept {
    return estimates() + index * static_cast<int64_t>(context_.plan.facts.count);
}

float* EstimatedDirect::received(int index) const noexcept {
    return given(index) + static_cast<int64_t>(context_.plan.shared_estimate);
}

bool EstimatedDirect::gets_its_own() const noexcept {
    return op() == Op::kAllGather || op() == Op::kBroadcast;
}

Status EstimatedDirect::take_up(
    int slice, const Piece& piece, const char* slots, float* estimate, int blocks) {
    return decode_run(piece, slots + piece.slot_offset, estimate,
                      {blocks * piece.count, piece.chunk_elems, slice_at(slice).slot_bytes}, true);
}

Status EstimatedDirect::deliver(const Piece& piece, float* estimate, void* output, int blocks) {
    return deliver_estimate(estimate, nullptr, output, blocks * piece.count, piece.chunk_elems);
}

Status EstimatedDirect::encode_blocks(int slice, int first, int last, int base) {
    const auto count = static_cast<int64_t>(context_.plan.facts.count);
    const bool whole = whole_blocks(slice);
    for (const Piece& piece : slice_at(slice).pieces) {
        const auto begin = static_cast<int64_t>(piece.offset_elems);
        for (int block = first; block < last; ++block) {
            float* const estimate =
                begin + (op() == Op::kAllGather ? received(block) : given(block - base));
            SLIMWIRE_TRY(encode_difference(
                piece, random_of(slice, piece, static_cast<uint32_t>(block)),
                static_cast<const char*>(context_.call.send) +
                    ((block - base) * count + begin) * element_bytes(),
                estimate, send_slot(slice, block) + piece.slot_offset,
                {piece.count, piece.chunk_elems, slice_at(slice).slot_bytes}, factor()));
            if (!gets_its_own() && !whole) {
                SLIMWIRE_TRY(take_up(slice, piece, send_slot(slice, block), estimate, 1));
                SLIMWIRE_TRY(deliver(piece, estimate, nullptr, 1));
            }
        }
        if (!gets_its_own() && whole && first < last) {
            float* const estimate = begin + given(first - base);
            SLIMWIRE_TRY(take_up(slice, piece, send_slot(slice, first), estimate, last - first));
            SLIMWIRE_TRY(deliver(piece, estimate, nullptr, last - first));
        }
    }
    return {};
}

Status EstimatedDirect::decode_blocks(int slice, int first, int last, int base) {
    const auto count = static_cast<int64_t>(context_.plan.facts.count);
    const int step = whole_blocks(slice) ? last - first : 1;
    for (int block = first; block < last; block += step) {
        for (const Piece& piece : slice_at(slice).pieces) {
            const auto begin = static_cast<int64_t>(piece.offset_elems);
            float* const estimate = begin + received(block - base);
            SLIMWIRE_TRY(take_up(slice, piece, receive_slot(slice, block), estimate, step));
            SLIMWIRE_TRY(deliver(piece, estimate,
                                 static_cast<char*>(context_.call.recv) +
                                     ((block - base) * count + begin) * element_bytes(),
                                 step));
        }
    }
    return {};
}

Status EstimatedDirect::decode_sum(int slice) {
    const auto count = static_cast<int64_t>(context_.plan.facts.count);
    const int step = whole_blocks(slice) ? ranks() : 1;
    for (const Piece& piece : slice_at(slice).pieces) {
        const auto begin = static_cast<int64_t>(piece.offset_elems);
        for (int source = 0; source < ranks(); source += step) {
            SLIMWIRE_TRY(
                take_up(slice, piece, receive_slot(slice, source), begin + received(source), step));
        }
        SLIMWIRE_TRY(enqueue(
            context_.api,
            SumRowsArgs{.input = begin + received(0),
                        .output = static_cast<char*>(context_.call.recv) + begin * element_bytes(),
                        .row_bytes = count * int64_t{sizeof(float)},
                        .count = piece.count,
                        .rows = ranks(),
                        .scale = 1.0f,
                        .input_dtype = DType::kFloat32,
                        .output_dtype = context_.plan.facts.dtype},
            context_.work));
        for (int source = 0; source < ranks(); source += step) {
            SLIMWIRE_TRY(deliver(piece, begin + received(source), nullptr, step));
        }
    }
    return {};
}

}  // namespace slimwire
