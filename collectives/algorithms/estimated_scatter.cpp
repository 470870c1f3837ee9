#include "collectives/algorithms/estimated_scatter.h"

#include "codecs/ops/sum_rows.h"
#include "collectives/plan/plan.h"

namespace slimwire {

float* EstimatedScatter::given(int block) const noexcept {
    return estimates() + block * static_cast<int64_t>(context_.plan.signature.count);
}

float* EstimatedScatter::received(int source) const noexcept {
    return given(source) + static_cast<int64_t>(context_.plan.residual.shared_estimate);
}

Status EstimatedScatter::take_up(
    int slice, const Piece& piece, const char* slots, float* estimate, int blocks) {
    return SlicedExchange::take_up(
        piece, slots + piece.slot_offset,
        {blocks * piece.count, piece.chunk_elems, slice_at(slice).slot_bytes}, false, estimate);
}

Status EstimatedScatter::settle(const Piece& piece, float* estimate, int blocks) {
    return deliver_estimate(piece.codec, estimate, nullptr, nullptr, blocks * piece.count,
                            piece.chunk_elems);
}

Status EstimatedScatter::encode_blocks(int slice, int first, int last, int base) {
    const auto count = static_cast<int64_t>(context_.plan.signature.count);
    const bool whole = whole_blocks(slice);
    for (const Piece& piece : slice_at(slice).pieces) {
        const auto begin = static_cast<int64_t>(piece.offset_elems);
        for (int block = first; block < last; ++block) {
            float* const estimate = begin + given(block - base);
            SLIMWIRE_TRY(encode_difference(piece,
                                           random_of(slice, piece, static_cast<uint32_t>(block)),
                                           static_cast<const char*>(context_.call.send) +
                                               ((block - base) * count + begin) * element_bytes(),
                                           estimate, send_slot(slice, block) + piece.slot_offset,
                                           run_of(slice, piece), average_of(context_).mean));
            if (!whole) {
                SLIMWIRE_TRY(take_up(slice, piece, send_slot(slice, block), estimate, 1));
                SLIMWIRE_TRY(settle(piece, estimate, 1));
            }
        }
        if (whole && first < last) {
            float* const estimate = begin + given(first - base);
            SLIMWIRE_TRY(take_up(slice, piece, send_slot(slice, first), estimate, last - first));
            SLIMWIRE_TRY(settle(piece, estimate, last - first));
        }
    }
    return {};
}

Status EstimatedScatter::decode_sum(int slice) {
    const auto count = static_cast<int64_t>(context_.plan.signature.count);
    const int step = whole_blocks(slice) ? ranks() : 1;
    for (const Piece& piece : slice_at(slice).pieces) {
        const auto begin = static_cast<int64_t>(piece.offset_elems);
        for (int source = 0; source < ranks(); source += step) {
            SLIMWIRE_TRY(
                take_up(slice, piece, receive_slot(slice, source), begin + received(source), step));
        }
        const Average average = sum_of_means(context_, ranks(), true, &piece.codec);
        SLIMWIRE_TRY(enqueue(
            context_.api,
            SumRowsArgs{.input = begin + received(0),
                        .output = static_cast<char*>(context_.call.recv) + begin * element_bytes(),
                        .row_bytes = count * int64_t{sizeof(float)},
                        .count = piece.count,
                        .rows = ranks(),
                        .scale = average.sum_scale,
                        .input_dtype = DType::kFloat32,
                        .output_dtype = context_.plan.signature.dtype,
                        .input_scale = average.input_scale,
                        .sum_limit = average.sum_limit},
            context_.work));
        for (int source = 0; source < ranks(); source += step) {
            SLIMWIRE_TRY(settle(piece, begin + received(source), step));
        }
    }
    return {};
}

}  // namespace slimwire
