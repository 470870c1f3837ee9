// Messages of rows whose blocks go along columns (int8, int4, int2 with row=): as `direct`, but
// each block of the call is encoded from its columns, one after the other and each filled up with
// zeros to whole blocks of the codec. One slice; nothing is kept.
#include "codecs/ops/transpose.h"
#include "collectives/algorithms/direct.h"
#include "collectives/plan/plan.h"

namespace slimwire {
namespace {

class ColumnBlocks final : public Direct {
  public:
    using Direct::Direct;

  private:
    Status encode_blocks(int slice, int first, int last, int base) override;
    Status decode_blocks(int slice, int first, int last, int base) override;
    Status decode_sum(int slice) override;
    // Between rows of the call's elements and the columns in the workspace.
    Status transpose(const void* rows, void* to_rows);
};

}  // namespace

bool goes_by_columns(const CodecSpec& codec) noexcept {
    return codec.params.row > 0 && codec.params.bits > 0;
}

bool has_columns(const Layout& layout) noexcept {
    return layout.slices.size() == 1 && layout.slices[0].pieces.size() == 1 &&
           goes_by_columns(layout.slices[0].pieces[0].codec);
}

std::string refuse_columns(const AlgorithmRequest& request) {
    return request.action.error_feedback != ErrorFeedback::kNone
               ? request.action.codec->to_string() + " goes by columns, which have no residuals"
               : std::string();
}

Layout column_layout(const AlgorithmRequest& request) {
    const CallSignature& signature = request.signature;
    const CodecSpec& codec = *request.action.codec;
    const uint64_t row = codec.params.row;
    const auto granule = static_cast<uint64_t>(codec.granule(signature.dtype));
    const uint64_t rows = (signature.count + row - 1) / row;
    const uint64_t elems = (rows + granule - 1) / granule * granule * row;
    Layout layout = make_layout({{0, elems, codec}}, signature.dtype, 1, 0);
    // These codecs need none for themselves.
    layout.workspace_bytes = static_cast<int64_t>(elems * dtype_bytes(signature.dtype));
    return layout;
}

Status ColumnBlocks::transpose(const void* rows, void* to_rows) {
    const Piece& piece = slice_at(0).pieces[0];
    const auto row = static_cast<int64_t>(piece.codec.params.row);
    TransposeArgs args{};
    args.to_columns = rows != nullptr;
    args.input = args.to_columns ? rows : workspace_;
    args.output = args.to_columns ? workspace_ : to_rows;
    args.count = static_cast<int64_t>(context_.plan.signature.count);
    args.row = row;
    args.column = piece.count / row;
    args.dtype = piece.dtype;
    return enqueue(context_.api, args, context_.work);
}

Status ColumnBlocks::encode_blocks(int slice, int first, int last, int base) {
    const Piece& piece = slice_at(slice).pieces[0];
    const int64_t bytes = static_cast<int64_t>(context_.plan.signature.count) * element_bytes();
    for (int block = first; block < last; ++block) {
        SLIMWIRE_TRY(transpose(
            static_cast<const char*>(context_.call.send) + (block - base) * bytes, nullptr));
        SLIMWIRE_TRY(encode_run(piece, random_of(slice, piece, static_cast<uint32_t>(block)),
                                workspace_, {0, 0, false}, send_slot(slice, block),
                                run_of(slice, piece), average_of(context_).mean));
    }
    return {};
}

Status ColumnBlocks::decode_blocks(int slice, int first, int last, int base) {
    const Piece& piece = slice_at(slice).pieces[0];
    const int64_t bytes = static_cast<int64_t>(context_.plan.signature.count) * element_bytes();
    for (int block = first; block < last; ++block) {
        SLIMWIRE_TRY(
            decode_run(piece, receive_slot(slice, block), workspace_, run_of(slice, piece), false));
        SLIMWIRE_TRY(
            transpose(nullptr, static_cast<char*>(context_.call.recv) + (block - base) * bytes));
    }
    return {};
}

Status ColumnBlocks::decode_sum(int slice) {
    const Piece& piece = slice_at(slice).pieces[0];
    SLIMWIRE_TRY(sum_slots(piece, receive_slot(slice, 0), slice_at(slice).slot_bytes, ranks(),
                           piece.count, workspace_,
                           sum_of_means(context_, ranks(), piece.codec.sums(), &piece.codec)));
    return transpose(nullptr, context_.call.recv);
}

Exchange* make_column_blocks(const ExchangeContext& context, ExchangeRoom* room) {
    return room->emplace<ColumnBlocks>(context);
}

}  // namespace slimwire
