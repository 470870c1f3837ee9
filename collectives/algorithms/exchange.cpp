#include "collectives/algorithms/exchange.h"

#include <algorithm>
#include <bit>

#include "codecs/ops/move_ranges.h"
#include "codecs/ops/sum_rows.h"
#include "codecs/sparse/threshold_control.h"

namespace slimwire {
namespace {

float largest_of(DType dtype) noexcept {
    return std::bit_cast<float>(dtype == DType::kFloat32   ? kMaxFloat32Bits
                                : dtype == DType::kFloat16 ? kMaxFloat16Bits
                                                           : kMaxBfloat16Bits);
}

}  // namespace

Status copy_on_device(const DeviceApi& api,
                      void* to,
                      const void* from,
                      size_t bytes,
                      cudaStream_t stream,
                      const char* what) {
    return cuda_status(api, api.memcpy_async(to, from, bytes, cudaMemcpyDeviceToDevice, stream),
                       what);
}

Status clear_on_device(
    const DeviceApi& api, void* at, size_t bytes, cudaStream_t stream, const char* what) {
    return cuda_status(api, api.memset_async(at, 0, bytes, stream), what);
}

Status send_bytes(
    const ExchangeContext& context, const void* from, size_t bytes, int to, cudaStream_t stream) {
    return nccl_status(
        context.nccl,
        context.nccl.Send(from, bytes, ncclUint8, to, context.state.exchange_comm, stream),
        "ncclSend of encoded bytes");
}

Status receive_bytes(
    const ExchangeContext& context, void* to, size_t bytes, int from, cudaStream_t stream) {
    return nccl_status(
        context.nccl,
        context.nccl.Recv(to, bytes, ncclUint8, from, context.state.exchange_comm, stream),
        "ncclRecv of encoded bytes");
}

Status all_reduce(const ExchangeContext& context,
                  const void* from,
                  void* to,
                  size_t count,
                  ncclDataType_t type,
                  ncclRedOp_t op,
                  const char* what) {
    return nccl_status(context.nccl,
                       context.nccl.AllReduce(from, to, count, type, op,
                                              context.state.exchange_comm, context.work),
                       what);
}

Status Exchange::rehearse() {
    return {Code::kUnsupported, "an algorithm that encodes no contributions"};
}

int64_t stored_begin(ResidualType type, int64_t first, int64_t index) noexcept {
    // Rounded up, the begins of two runs may come nearer by less than a block.
    return type == ResidualType::kFloat32
               ? first
               : (first + kResidualBlock - 1) / kResidualBlock * kResidualBlock +
                     index * kResidualBlock;
}

uint64_t stored_elems(ResidualType type, uint64_t elems, uint64_t runs) noexcept {
    return static_cast<uint64_t>(
        stored_begin(type, static_cast<int64_t>(elems), static_cast<int64_t>(runs)));
}

namespace {

// A sum that is no average. Of the largest number a codec's roundings make more, by its bound where
// that says how far, at most twice it; those that lose half of what they are given, and so have no
// such bound, send the largest elements nearly as they are. Contributions are halved where their
// sum would not fit.
Average sum_by(const CodecSpec* codec, DType dtype, bool in_float32) noexcept {
    if (codec == nullptr || codec->traits(dtype).lossless) {
        return {};
    }
    constexpr double kMost = 1, kOfLargest = 0.0625;
    const double bound = codec->codec->block_error_bound(codec->params, dtype);
    const double lifted = codec->traits(dtype).needs_feedback ? kOfLargest : std::min(bound, kMost);
    const float divisor = in_float32 && dtype != DType::kFloat16 ? 2 : 1;
    return {.input_scale = 1 / divisor,
            .sum_scale = divisor,
            .sum_limit = {largest_of(dtype) / divisor, static_cast<float>(1 + lifted)}};
}

}  // namespace

Average average_of(const ExchangeContext& context,
                   bool in_float32,
                   const CodecSpec* codec) noexcept {
    const CallSignature& signature = context.plan.signature;
    if (signature.redop != RedOp::kAvg) {
        return sum_by(codec, signature.dtype, in_float32);
    }
    const auto ranks = static_cast<uint32_t>(context.state.shape.ranks);
    const bool fits = signature.dtype == DType::kFloat16 && in_float32;
    const auto divisor = static_cast<float>(fits ? 1 : std::bit_ceil(ranks));
    const float mean = 1.0f / static_cast<float>(ranks);
    const float scale = mean * divisor;
    // Rounded down, so that times `scale` it is no larger; what fits is exact, and rotations alone
    // lift sums above it.
    const bool wide = in_float32 && !fits;
    const float limit = largest_of(wide ? DType::kFloat32 : signature.dtype) / scale;
    return {.mean = mean,
            .input_scale = 1.0f / divisor,
            .sum_scale = scale,
            .sum_limit = {fits ? limit : limit * 0x1.fffffcp-1f}};
}

Average sum_of_means(const ExchangeContext& context,
                     int addends,
                     bool in_float32,
                     const CodecSpec* codec) noexcept {
    const CallSignature& signature = context.plan.signature;
    if (signature.redop != RedOp::kAvg) {
        return sum_by(codec, signature.dtype, in_float32);
    }
    const bool fits = signature.dtype == DType::kFloat16 || !in_float32;
    const auto divisor =
        static_cast<float>(fits ? 1 : std::bit_ceil(static_cast<uint32_t>(addends)));
    return {.input_scale = 1.0f / divisor,
            .sum_scale = divisor,
            .sum_limit = {largest_of(signature.dtype) / divisor}};
}

// As many launches as there are kMostMovedRanges.
Status move_raw_part(const ExchangeContext& context,
                     const RawPart& raw,
                     void* buffer,
                     char* chunks,
                     int64_t chunk_elems,
                     int64_t stride,
                     bool to_chunks) {
    for (size_t first = 0; first < raw.ranges.size(); first += kMostMovedRanges) {
        const size_t last = std::min(first + kMostMovedRanges, raw.ranges.size());
        MoveRangesArgs args{};
        args.buffer = buffer;
        args.chunks = chunks;
        args.chunk_elems = chunk_elems;
        args.chunk_bytes = stride;
        args.end = last < raw.ranges.size() ? raw.ranges[last].begin : raw.count;
        if (to_chunks && context.scalar != nullptr) {
            args.scale = context.scalar->value;
            args.scale_ptr = context.scalar->device;
        }
        args.dtype = context.plan.signature.dtype;
        args.to_chunks = to_chunks;
        args.ranges = static_cast<int32_t>(last - first);
        for (size_t i = first; i < last; ++i) {
            args.list[i - first] = {static_cast<int64_t>(raw.ranges[i].offset_elems),
                                    raw.ranges[i].begin};
        }
        SLIMWIRE_TRY(enqueue(context.api, args, context.work));
    }
    return {};
}

SlicedExchange::SlicedExchange(const ExchangeContext& context, int hops, bool overlapped)
    : context_(context), hops_(hops), overlapped_(overlapped) {
    wire_ = staged() ? context.state.objects.exchange_stream : context.work;
}

Status SlicedExchange::place_own(int) {
    return {};
}

Status SlicedExchange::between(int, int) {
    return {};
}

Status SlicedExchange::kernels(int phase) {
    const DeviceApi& api = context_.api;
    if (!overlapped_) {
        for (int slice = 0; slice < slices(); ++slice) {
            SLIMWIRE_TRY(encode(slice));
        }
        return {};
    }
    if (staged() && phase >= lag()) {
        SLIMWIRE_TRY(cuda_status(
            api, api.stream_wait_event(context_.work, context_.state.objects.done[phase % 2], 0),
            "wait for exchange"));
    }
    if (const int slice = slice_of(phase, hops_); slice >= 0) {
        SLIMWIRE_TRY(decode(slice));
    }
    for (int hop = hops_ - 1; hop > 0; --hop) {
        if (const int slice = slice_of(phase, hop); slice >= 0) {
            SLIMWIRE_TRY(between(hop, slice));
        }
    }
    if (phase < slices()) {
        SLIMWIRE_TRY(encode(phase));
    }
    if (!exchanges(phase)) {
        return {};
    }
    if (staged()) {
        const cudaEvent_t ready = context_.state.objects.ready[phase % 2];
        SLIMWIRE_TRY(cuda_status(api, api.event_record(ready, context_.work), "codec event"));
        SLIMWIRE_TRY(cuda_status(api, api.stream_wait_event(wire_, ready, 0), "wait for codec"));
    }
    return phase < slices() ? place_own(phase) : Status();
}

Status SlicedExchange::exchange(int phase) {
    if (!overlapped_) {
        for (int slice = 0; slice < slices(); ++slice) {
            SLIMWIRE_TRY(send(0, slice));
        }
        return {};
    }
    for (int hop = 0; hop < hops_; ++hop) {
        if (const int slice = slice_of(phase, hop); slice >= 0) {
            SLIMWIRE_TRY(send(hop, slice));
        }
    }
    return {};
}

Status SlicedExchange::finish(int phase) {
    const DeviceApi& api = context_.api;
    if (!overlapped_) {
        for (int slice = 0; slice < slices(); ++slice) {
            SLIMWIRE_TRY(decode(slice));
        }
        return {};
    }
    return staged() && exchanges(phase)
               ? cuda_status(api, api.event_record(context_.state.objects.done[phase % 2], wire_),
                             "exchange event")
               : Status();
}

Status SlicedExchange::rehearse() {
    for (int slice = 0; slice < slices(); ++slice) {
        SLIMWIRE_TRY(encode(slice));
    }
    return {};
}

StoredResiduals SlicedExchange::stored(const ResidualSpan& span) const noexcept {
    const Plan& plan = context_.plan;
    return {context_.residual, static_cast<int64_t>(plan.residual.elems),
            stored_begin(plan.residual.type, span.first, span.index), plan.residual.type};
}

Result<float*> SlicedExchange::load_residual(const ResidualSpan& span, int64_t count) {
    // One is enough, as of workspaces.
    auto* window =
        reinterpret_cast<float*>(context_.scratch + context_.plan.scratch.staging_offset);
    SLIMWIRE_TRY(enqueue(context_.api,
                         LoadResidualArgs{.stored = stored(span), .output = window, .count = count},
                         context_.work));
    return window;
}

Status SlicedExchange::store_residual(const ResidualSpan& span, int64_t count) {
    const bool average = context_.plan.error_feedback == ErrorFeedback::kEma;
    StoreResidualArgs args{};
    args.stored = stored(span);
    args.input =
        reinterpret_cast<const float*>(context_.scratch + context_.plan.scratch.staging_offset);
    args.count = count;
    args.keep = average ? kEmaKeep : 0.0f;
    args.take = average ? 1.0f - kEmaKeep : 1.0f;
    args.random = context_.random;
    return enqueue(context_.api, args, context_.work);
}

EncodeArgs SlicedExchange::encode_args(const Piece& piece,
                                       const RandomKey& random,
                                       void* output,
                                       const Run& run) const noexcept {
    EncodeArgs args{};
    args.output = output;
    args.count = run.count;
    args.chunk_elems = run.chunk_elems;
    args.slot_bytes = run.slot_bytes;
    args.params = piece.codec.params;
    args.dtype = piece.dtype;
    args.random = random;
    args.workspace = workspace_;
    return args;
}

Status SlicedExchange::enqueue_encoding(const CodecSpec& codec,
                                        EncodeArgs args,
                                        const ResidualSpan& span) {
    if (context_.plan.layout.threshold_bytes == 0 || !codec.traits(args.dtype).adapts_threshold) {
        return enqueue(context_.api, codec, args, context_.work);
    }
    const Plan& plan = context_.plan;
    const auto bytes = static_cast<size_t>(plan.layout.threshold_bytes);
    char* state = nullptr;
    if (plan.residual.has_thresholds && context_.residual != nullptr && span.has_residual) {
        state = static_cast<char*>(context_.residual) + plan.residual.thresholds_offset +
                static_cast<size_t>(span.index) * bytes;
    } else {
        state = static_cast<char*>(workspace_) + plan.layout.spare_threshold_offset;
        SLIMWIRE_TRY(
            clear_on_device(context_.api, state, bytes, context_.work, "thresholds of no tensor"));
    }
    const ThresholdArgs control{args, reinterpret_cast<ThresholdRun*>(state)};
    SLIMWIRE_TRY(enqueue(context_.api, ThresholdStep::kAdapt, control, context_.work));
    use_threshold(control.state, &args);
    SLIMWIRE_TRY(enqueue(context_.api, codec, args, context_.work));
    return enqueue(context_.api, ThresholdStep::kFinish, control, context_.work);
}

Status SlicedExchange::encode_run(const Piece& piece,
                                  const RandomKey& random,
                                  const void* input,
                                  const ResidualSpan& span,
                                  void* output,
                                  const Run& run,
                                  float factor) {
    EncodeArgs args = encode_args(piece, random, output, run);
    args.input = input;
    args.scale_ptr = context_.scalar == nullptr ? nullptr : context_.scalar->device;
    args.scale = context_.scalar == nullptr ? factor : factor * context_.scalar->value;
    SLIMWIRE_TRY(with_residual(span, run.count, [&](float* residual) {
        args.residual = residual;
        return enqueue_encoding(piece.codec, args, span);
    }));
    return context_.listener == nullptr ? Status() : context_.listener->encoded(piece.codec, args);
}

Status SlicedExchange::decode_run(const Piece& piece,
                                  const void* input,
                                  void* output,
                                  const Run& run,
                                  bool accumulate,
                                  float scale,
                                  SumLimit sum_limit) {
    DecodeArgs args{};
    args.input = input;
    args.output = output;
    args.count = run.count;
    args.chunk_elems = run.chunk_elems;
    args.slot_bytes = run.slot_bytes;
    args.params = piece.codec.params;
    args.dtype = piece.dtype;
    args.accumulate = accumulate;
    args.scale = scale;
    args.sum_limit = sum_limit;
    args.workspace = workspace_;
    return enqueue(context_.api, piece.codec, args, context_.work);
}

Status SlicedExchange::sum_slots(const Piece& piece,
                                 const char* input,
                                 int64_t stride,
                                 int inputs,
                                 int64_t count,
                                 void* output,
                                 const Average& average) {
    if (piece.codec.sums()) {
        DecodeReduceArgs args{};
        args.input = input;
        args.output = output;
        args.input_stride = stride;
        args.count = count;
        args.inputs = inputs;
        args.scale = average.sum_scale;
        args.params = piece.codec.params;
        args.dtype = piece.dtype;
        args.input_scale = average.input_scale;
        args.sum_limit = average.sum_limit;
        args.workspace = workspace_;
        return enqueue(context_.api, piece.codec, args, context_.work);
    }
    for (int source = 0; source < inputs; ++source) {
        SLIMWIRE_TRY(decode_run(piece, input + source * stride, output,
                                {count, piece.chunk_elems, stride}, source > 0, average.input_scale,
                                average.sum_limit));
    }
    return {};
}

Status SlicedExchange::reduce_decoded(const Piece& piece,
                                      const DecodeReduceEncodeArgs& args,
                                      const ResidualSpan& span,
                                      void* sum) {
    SLIMWIRE_TRY(sum_slots(piece, static_cast<const char*>(args.input), args.input_stride,
                           args.inputs, args.count, sum,
                           {.input_scale = args.input_scale, .sum_limit = args.sum_limit}));
    EncodeArgs again{};
    again.input = sum;
    again.output = args.output;
    again.residual = args.residual;
    again.scale = args.scale;
    again.count = args.count;
    again.chunk_elems = piece.chunk_elems;
    again.slot_bytes = args.input_stride;
    again.params = args.params;
    again.dtype = args.dtype;
    again.random = args.random;
    // Else it would draw what the worker's own encoding drew.
    again.random.tensor ^= 0x5BD1E995u;
    again.workspace = args.workspace;
    return enqueue_encoding(piece.codec, again, span);
}

Status SlicedExchange::pack_raw(int slice, char* chunks, int64_t chunk_elems, int64_t stride) {
    return move_raw_part(context_, slice_at(slice).raw, const_cast<void*>(context_.call.send),
                         chunks, chunk_elems, stride, true);
}

Status SlicedExchange::unpack_raw(int slice,
                                  const char* chunks,
                                  int64_t chunk_elems,
                                  int64_t stride) {
    return move_raw_part(context_, slice_at(slice).raw, context_.call.recv,
                         const_cast<char*>(chunks), chunk_elems, stride, false);
}

Status SlicedExchange::sum_raw(const void* input,
                               int64_t stride,
                               int rows,
                               int64_t count,
                               const Average& average,
                               void* output) {
    if (count == 0) {
        return {};
    }
    SumRowsArgs args{};
    args.input = input;
    args.output = output;
    args.row_bytes = stride;
    args.count = count;
    args.rows = rows;
    args.scale = average.sum_scale;
    args.input_scale = average.input_scale;
    args.sum_limit = average.sum_limit;
    args.input_dtype = args.output_dtype = context_.plan.signature.dtype;
    return enqueue(context_.api, args, context_.work);
}

Status SlicedExchange::all_gather(char* all, size_t bytes, const char* what) {
    return nccl_status(
        context_.nccl,
        context_.nccl.AllGather(all + static_cast<size_t>(rank()) * bytes, all, bytes, ncclUint8,
                                context_.state.exchange_comm, wire_),
        what);
}

Status SlicedExchange::all_to_all(char* from, char* to, size_t bytes) {
    for (int step = 1; step < ranks(); ++step) {
        const int next = (rank() + step) % ranks();
        const int former = (rank() + ranks() - step) % ranks();
        SLIMWIRE_TRY(send_bytes(from + static_cast<size_t>(next) * bytes, bytes, next));
        SLIMWIRE_TRY(receive_bytes(to + static_cast<size_t>(former) * bytes, bytes, former));
    }
    return {};
}

}  // namespace slimwire
