// All-reduce by factors of low rank (PowerSGD: Vogels, Karimireddy, Jaggi 2019): what crosses the
// wire are P (rows x rank) and then Q (columns x rank) of every matrix of the message, in fp32,
// summed by the real all-reduce; elements of no matrix are summed beside P as they are. The result
// is the sum of P Q^T, equal on all ranks because the sums of the factors are.
//
//   phase 0   raw elements packed, Q from the state, P = M Q     all-reduce of P, and of raw ones
//   phase 1   P orthonormal, Q = M^T P                           all-reduce of Q
//   phase 2   sums out of range seen, result and residual from P and Q, Q becomes the state,
//             raw elements unpacked
//
// A tensor keeps: the state, equal on all ranks, then residuals of all elements (of no use those of
// raw ones) where the call has error feedback. In fp32 with ef14 they are what the operations read
// and write; else they are taken into the scratch for the call.
//
// A linear autoencoder (codec linear_ae) has the same phases with other products: its code Z = M Q,
// and S = M^T Z, which leads Q to the directions in which the sum varies most.
//
//   phase 0   raw elements packed, Q from the state, orthonormal, Z = M Q   all-reduce of Z, raw
//   phase 1   sums out of range seen, Z and Q balanced, S = M^T Z           all-reduce of S
//   phase 2   result and residual from Z and Q, S becomes the state, raw elements unpacked
//
// Bytes a rank gives to the transport: as for the native operation on both factors and the raw
// elements.
#include "collectives/algorithms/algorithm.h"
#include "collectives/plan/plan.h"

namespace slimwire {
namespace {

struct LowRankMap {
    LowRankMap(const Layout& layout, DType dtype);
    ScratchMap scratch;
    uint64_t left, right, next, work, raw;  // next: of an autoencoder, S
};

class LowRank : public Exchange {
  public:
    explicit LowRank(const ExchangeContext& context);

    [[nodiscard]] int phases() const noexcept override { return 3; }
    [[nodiscard]] bool exchanges(int phase) const noexcept override { return phase < 2; }
    Status kernels(int phase) override;
    Status exchange(int phase) override;
    Status finish(int) override { return {}; }

  private:
    // The operations of a phase on the factors; of the last one, that on the result, too.
    virtual Status products(int phase);
    // What the second phase sums.
    [[nodiscard]] virtual float* second() const noexcept { return at(map_.right); }

  protected:
    [[nodiscard]] const FactoredMessage& message() const noexcept {
        return *context_.plan.layout.factored;
    }
    [[nodiscard]] float* at(uint64_t offset) const noexcept {
        return reinterpret_cast<float*>(context_.scratch + offset);
    }
    [[nodiscard]] bool averages() const noexcept {
        return context_.plan.signature.redop == RedOp::kAvg;
    }
    [[nodiscard]] bool fed() const noexcept;
    [[nodiscard]] StoredResiduals stored() const noexcept;
    [[nodiscard]] LowRankArgs args() const noexcept;
    Status run(std::initializer_list<LowRankStep> steps);
    Status run(LowRankStep step, const LowRankLayout& layout, const LowRankArgs& args);
    Status load_residuals();
    Status store_residuals();
    Status sum(void* elements, int64_t count, DType dtype, bool average, const char* what);

    ExchangeContext context_;
    LowRankMap map_;
};

class Autoencoder final : public LowRank {
  public:
    using LowRank::LowRank;

  private:
    Status products(int phase) override;
    [[nodiscard]] float* second() const noexcept override { return at(map_.next); }
};

LowRankMap::LowRankMap(const Layout& layout, DType dtype) : scratch(layout) {
    const LowRankLayout& factors = layout.factored->factors;
    const auto floats = [&](int64_t elems) {
        return scratch.add_bytes(static_cast<uint64_t>(elems) * sizeof(float));
    };
    left = floats(factors.left_elems);
    right = floats(factors.right_elems);
    next = layout.factored->transposed.matrices.empty() ? right : floats(factors.right_elems);
    work = floats(factors.work_elems);
    raw = scratch.add_bytes(static_cast<uint64_t>(layout.factored->raw.chunk_elems) *
                            dtype_bytes(dtype));
}

uint64_t wire_bytes(const PlannedCall& call, int rank) {
    const auto& [layout, signature, shape] = call;
    const FactoredMessage& message = *layout.factored;
    CallSignature part = signature;
    part.count = static_cast<uint64_t>(message.raw.count);
    uint64_t bytes = native_wire_bytes(part, shape.ranks, rank);
    part.dtype = DType::kFloat32;
    for (const int64_t factor : {message.factors.left_elems, message.factors.right_elems}) {
        part.count = static_cast<uint64_t>(factor);
        bytes += native_wire_bytes(part, shape.ranks, rank);
    }
    return bytes;
}

ExchangeSizes sizes_of(const PlannedCall& call) {
    const auto& [layout, signature, shape] = call;
    const FactoredMessage& message = *layout.factored;
    ExchangeSizes sizes;
    sizes.wire_bytes = wire_bytes(call, kNeediestRank);
    sizes.node_wire_bytes = sizes.wire_bytes;  // as native ones do
    sizes.scratch_bytes = LowRankMap(layout, signature.dtype).scratch.bytes();
    sizes.residual_elems = signature.count;
    sizes.residual_runs = 1;
    sizes.largest_run = signature.count;
    sizes.state_elems = static_cast<uint64_t>(message.factors.state_elems(message.state_rank));
    return sizes;
}

LowRank::LowRank(const ExchangeContext& context)
    : context_(context), map_(context.plan.layout, context.plan.signature.dtype) {}

bool LowRank::fed() const noexcept {
    return context_.plan.error_feedback != ErrorFeedback::kNone;
}

StoredResiduals LowRank::stored() const noexcept {
    const Plan& plan = context_.plan;
    return {static_cast<char*>(context_.residual) + plan.residual.state_bytes,
            static_cast<int64_t>(plan.residual.elems), 0, plan.residual.type};
}

LowRankArgs LowRank::args() const noexcept {
    const Plan& plan = context_.plan;
    const CodecParams& params = message().codec.params;
    LowRankArgs args{};
    args.input = context_.call.send;
    args.output = context_.call.recv;
    args.residual = !fed()                 ? nullptr
                    : plan.residual.staged ? at(plan.scratch.staging_offset)
                                           : static_cast<float*>(stored().bytes);
    args.scale_ptr = context_.scalar == nullptr ? nullptr : context_.scalar->device;
    args.scale = context_.scalar == nullptr ? 1.0f : context_.scalar->value;
    args.left = at(map_.left);
    args.right = at(map_.right);
    args.state = static_cast<float*>(context_.residual);
    args.work = at(map_.work);
    args.dtype = plan.signature.dtype;
    choose_scales(message().factors, context_.state.shape.ranks, averages(), &args);
    args.rank = static_cast<int32_t>(params.kept);
    args.state_rank = message().state_rank;
    args.random = context_.random;
    args.random.seed += params.seed;
    return args;
}

Status LowRank::run(std::initializer_list<LowRankStep> steps) {
    for (const LowRankStep step : steps) {
        SLIMWIRE_TRY(run(step, message().factors, args()));
    }
    return {};
}

Status LowRank::run(LowRankStep step, const LowRankLayout& layout, const LowRankArgs& args) {
    return enqueue(context_.api, step, layout, args, context_.work);
}

Status LowRank::load_residuals() {
    const Plan& plan = context_.plan;
    return plan.residual.staged
               ? enqueue(context_.api,
                         LoadResidualArgs{.stored = stored(),
                                          .output = at(plan.scratch.staging_offset),
                                          .count = static_cast<int64_t>(plan.signature.count)},
                         context_.work)
               : Status();
}

Status LowRank::store_residuals() {
    const Plan& plan = context_.plan;
    if (!plan.residual.staged) {
        return {};
    }
    const bool average = plan.error_feedback == ErrorFeedback::kEma;
    StoreResidualArgs args{};
    args.stored = stored();
    args.input = at(plan.scratch.staging_offset);
    args.count = static_cast<int64_t>(plan.signature.count);
    args.keep = average ? kEmaKeep : 0.0f;
    args.take = average ? 1.0f - kEmaKeep : 1.0f;
    args.random = context_.random;
    args.random.step += context_.drawn_before;
    return enqueue(context_.api, args, context_.work);
}

Status LowRank::kernels(int phase) {
    const RawPart& raw = message().raw;
    const auto raw_bytes =
        raw.chunk_elems * static_cast<int64_t>(dtype_bytes(context_.plan.signature.dtype));
    char* const packed = context_.scratch + map_.raw;
    switch (phase) {
        case 0:
            SLIMWIRE_TRY(move_raw_part(context_, raw, const_cast<void*>(context_.call.send), packed,
                                       raw.chunk_elems, raw_bytes, true));
            SLIMWIRE_TRY(load_residuals());
            return products(0);
        case 1:
            return products(1);
        default:
            SLIMWIRE_TRY(products(2));
            SLIMWIRE_TRY(store_residuals());
            return move_raw_part(context_, raw, context_.call.recv, packed, raw.chunk_elems,
                                 raw_bytes, false);
    }
}

Status LowRank::products(int phase) {
    switch (phase) {
        case 0:
            return run({LowRankStep::kBegin, LowRankStep::kMultiplyRight});
        case 1:
            return run({LowRankStep::kOrthogonalise, LowRankStep::kMultiplyLeft});
        default:
            SLIMWIRE_TRY(averages() ? Status() : run({LowRankStep::kOverflow}));
            return run({LowRankStep::kRestore, LowRankStep::kKeep});
    }
}

Status Autoencoder::products(int phase) {
    LowRankArgs of_next = args();
    of_next.right = at(map_.next);
    LowRankArgs of_transposed = args();
    std::swap(of_transposed.left, of_transposed.right);
    switch (phase) {
        case 0:
            SLIMWIRE_TRY(run({LowRankStep::kBegin}));
            SLIMWIRE_TRY(run(LowRankStep::kOrthogonalise, message().transposed, of_transposed));
            return run({LowRankStep::kMultiplyRight});
        case 1:
            SLIMWIRE_TRY(averages()
                             ? Status()
                             : run(LowRankStep::kOverflow, message().transposed, of_transposed));
            SLIMWIRE_TRY(run({LowRankStep::kBalance}));
            return run(LowRankStep::kMultiplyLeft, message().factors, of_next);
        default:
            SLIMWIRE_TRY(run({LowRankStep::kRestore}));
            return run(LowRankStep::kKeep, message().factors, of_next);
    }
}

Status LowRank::sum(void* elements, int64_t count, DType dtype, bool average, const char* what) {
    return count == 0
               ? Status()
               : all_reduce(context_, elements, elements, static_cast<size_t>(count),
                            static_cast<ncclDataType_t>(dtype), average ? ncclAvg : ncclSum, what);
}

Status LowRank::exchange(int phase) {
    const LowRankLayout& factors = message().factors;
    if (phase > 0) {
        return sum(second(), factors.right_elems, DType::kFloat32, false,
                   "ncclAllReduce of right factors");
    }
    SLIMWIRE_TRY(sum(at(map_.left), factors.left_elems, DType::kFloat32, false,
                     "ncclAllReduce of left factors"));
    return sum(context_.scratch + map_.raw, message().raw.count, context_.plan.signature.dtype,
               averages(), "ncclAllReduce of raw elements");
}

Layout layout_of(const AlgorithmRequest& request, uint64_t) {
    return factored_layout(*request.action.codec, request.action.state_rank(),
                           {request.matrices.begin(), request.matrices.end()},
                           request.signature.count);
}

void residual_runs(const Plan& plan, const PlanShape&, int, const UseResidualRun& use) {
    use({0, 0, static_cast<int64_t>(plan.signature.count), 0});
}

std::vector<std::string> steps_of(const Plan&, const PlanShape&) {
    return {"left factors of all matrices", "sum them by NCCL's own all-reduce", "right factors",
            "sum them by NCCL's own all-reduce", "multiply"};
}

Exchange* make(const ExchangeContext& context, ExchangeRoom* room) {
    return autoencodes(context.plan.layout.factored->codec) ? room->emplace<Autoencoder>(context)
                                                            : room->emplace<LowRank>(context);
}

}  // namespace

extern constinit const AlgorithmDescriptor kLowRankAlgorithm{
    .draws_alike = true,
    .layout = layout_of,
    .sizes = sizes_of,
    .wire_bytes = wire_bytes,
    .residual_runs = residual_runs,
    .steps = steps_of,
    .make = make,
    .averages_sums = true,
};

}  // namespace slimwire
