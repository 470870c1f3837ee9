#include "collectives/algorithms/node_exchange.h"

#include "codecs/ops/move_ranges.h"
#include "codecs/ops/sum_rows.h"
#include "collectives/plan/plan.h"

namespace slimwire {

size_t row_bytes_of(const Layout& layout, DType dtype, int64_t elems) noexcept {
    const auto bytes =
        static_cast<size_t>(layout.intra ? layout.intra->encoded_bytes(dtype, elems)
                                         : elems * static_cast<int64_t>(dtype_bytes(dtype)));
    return (bytes + 15) / 16 * 16;
}

bool stages_rows(const Layout& layout, const CallSignature& signature) noexcept {
    return layout.intra.has_value() || signature.redop == RedOp::kPreMulSum;
}

Piece row_piece(const Layout& layout, const Piece& piece, int64_t elems) {
    Piece row = piece;
    row.codec = layout.intra.value_or(piece.codec);
    row.chunk_elems = elems;
    return row;
}

NodeExchange::NodeExchange(const ExchangeContext& context, int hops)
    : SlicedExchange(context, hops, true) {
    node_ = nodes().node_of(rank());
    local_ = nodes().local_of(rank());
    local_ranks_ = nodes().size_of(node_);
}

Status NodeExchange::stage_row(const Piece& row,
                               const RandomKey& random,
                               const void* input,
                               const ResidualSpan& span,
                               void* output,
                               int64_t count,
                               int64_t stride) {
    if (layout().intra) {
        return encode_run(row, random, input, span, output, {count, row.chunk_elems, stride},
                          average_of(context_).mean);
    }
    SumRowsArgs args{};
    args.input = input;
    args.output = output;
    args.count = count;
    args.rows = 1;
    args.scale = context_.scalar->value;
    args.scale_ptr = context_.scalar->device;
    args.input_dtype = args.output_dtype = signature().dtype;
    return enqueue(context_.api, args, context_.work);
}

Status NodeExchange::sum_rows(
    const Piece& row, const char* rows, int64_t stride, int64_t count, void* sum) {
    if (!layout().intra) {
        return sum_raw(rows, stride, local_ranks_, count, average_of(context_), sum);
    }
    for (int local = 0; local < local_ranks_; ++local) {
        SLIMWIRE_TRY(decode_run(row, rows + local * stride, sum, {count, row.chunk_elems, stride},
                                local > 0, 1.0f,
                                sum_of_means(context_, 1, false, &row.codec).sum_limit));
    }
    return {};
}

Status NodeExchange::encode_sum(const Piece& piece,
                                const RandomKey& random,
                                const void* sum,
                                const ResidualSpan& span,
                                void* output,
                                const Run& run) {
    EncodeArgs args = encode_args(piece, random, output, run);
    args.input = sum;
    return with_residual(span, run.count, [&](float* residual) {
        args.residual = residual;
        return enqueue_encoding(piece.codec, args, span);
    });
}

Status NodeExchange::sum_raw_rows(const RawPart& raw,
                                  const char* rows,
                                  int64_t stride,
                                  int64_t count,
                                  void* sum,
                                  char* slots,
                                  int64_t slot_bytes) {
    if (count == 0) {
        return {};
    }
    SLIMWIRE_TRY(sum_raw(rows, stride, local_ranks_, count, average_of(context_), sum));
    MoveRangesArgs args{};
    args.buffer = sum;
    args.chunks = slots;
    args.chunk_elems = raw.chunk_elems;
    args.chunk_bytes = slot_bytes;
    args.end = count;
    args.dtype = signature().dtype;
    args.to_chunks = true;
    args.ranges = 1;
    return enqueue(context_.api, args, context_.work);
}

}  // namespace slimwire
