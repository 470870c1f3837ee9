// What exchanges with EF21 share (codecs/residual/estimate.h): encoding a difference, and handing
// out an estimate that took up what was sent.
#include <limits>

#include "codecs/residual/estimate.h"
#include "collectives/algorithms/exchange.h"

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
    SLIMWIRE_TRY(cuda_status(api,
                             api.memset_async(marks(), 0, chunks * sizeof(uint32_t), context_.work),
                             "marks of chunks"));
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

}  // namespace slimwire
