// What exchanges with EF21 share (codecs/residual/estimate.h): encoding a difference, and handing
// out an estimate that took up what was sent; and the direct reduce-scatter with it.
#include <limits>

#include "codecs/ops/sum_rows.h"
#include "codecs/residual/estimate.h"
#include "collectives/algorithms/direct.h"
#include "collectives/plan/plan.h"

namespace slimwire {

uint32_t* SlicedExchange::marks() const noexcept {
    return reinterpret_cast<uint32_t*>(context_.scratch + context_.plan.scratch.marks_offset);
}

Status SlicedExchange::encode_difference(const Piece& piece,
                                         const RandomKey& random,
                                         const void* input,
                                         const float* estimate,
                                         void* output,
                                         const Run& run,
                                         float factor) {
    auto* const window =
        reinterpret_cast<float*>(context_.scratch + context_.plan.scratch.staging_offset);
    const PreMulScalar* const scalar = context_.scalar;
    SLIMWIRE_TRY(
        enqueue(context_.api,
                DifferenceArgs{.input = input,
                               .estimate = estimate,
                               .output = window,
                               .scale_ptr = scalar == nullptr ? nullptr : scalar->device,
                               .count = run.count,
                               .scale = scalar == nullptr ? factor : factor * scalar->value,
                               .dtype = context_.plan.signature.dtype},
                context_.work));
    EncodeArgs args = encode_args(piece, random, output, run);
    args.input = window;
    return enqueue_encoding(piece.codec, args, {0, 0, false});
}

Status SlicedExchange::take_up(
    const Piece& piece, const void* input, const Run& run, bool of_sums, float* estimate) {
    const float overflow = sum_of_means(context_, 1, false, &piece.codec).sum_limit.overflow;
    return decode_run(piece, input, estimate, run, true, 1.0f,
                      {std::numeric_limits<float>::max(), of_sums ? overflow : kNoSumLimit});
}

Status SlicedExchange::deliver_estimate(const CodecSpec& codec,
                                        float* estimate,
                                        float* own,
                                        void* output,
                                        int64_t count,
                                        int64_t chunk_elems) {
    const DeviceApi& api = context_.api;
    const auto chunks = static_cast<size_t>((count + chunk_elems - 1) / chunk_elems);
    SLIMWIRE_TRY(
        clear_on_device(api, marks(), chunks * sizeof(uint32_t), context_.work, "marks of chunks"));
    SLIMWIRE_TRY(enqueue(
        api,
        MarkArgs{
            .estimate = estimate, .marks = marks(), .count = count, .chunk_elems = chunk_elems},
        context_.work));
    return enqueue(api,
                   SettleArgs{.estimate = estimate,
                              .own = own,
                              .output = output,
                              .marks = marks(),
                              .count = count,
                              .chunk_elems = chunk_elems,
                              .dtype = context_.plan.signature.dtype,
                              .sum_limit = sum_of_means(context_, 1, false, &codec).sum_limit},
                   context_.work);
}

namespace {

// EF21 (codecs/residual/estimate.h) over the direct reduce-scatter: the two ends of every block
// that crosses the wire have the same estimate of it. The sender encodes what its block differs by,
// both add what that decodes as, and where that left a value which is not finite both begin the
// piece of the block anew from zero, without a word: they add the same bytes to the same numbers.
// The result is the sum of the estimates in the order of the ranks, in fp32, rounded once.
//
// Estimates of a tensor, fp32, in blocks of `count`: the N blocks given, then the N blocks got. A
// rank without them would be an error.
class EstimatedScatter final : public Direct {
  public:
    explicit EstimatedScatter(const ExchangeContext& context) : Direct(context) {}

  private:
    [[nodiscard]] float* given(int block) const noexcept;
    [[nodiscard]] float* received(int source) const noexcept;
    Status encode_blocks(int slice, int first, int last, int base) override;
    Status decode_sum(int slice) override;
    // Adds what `blocks` slots from `slots` on hold to the estimates of as many blocks.
    Status take_up(int slice, const Piece& piece, const char* slots, float* estimate, int blocks);
    // Begins chunks that hold a value which is not finite anew from zero.
    Status settle(const Piece& piece, float* estimate, int blocks);
};

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

}  // namespace

Exchange* make_estimated_scatter(const ExchangeContext& context, ExchangeRoom* room) {
    return room->emplace<EstimatedScatter>(context);
}

}  // namespace slimwire
