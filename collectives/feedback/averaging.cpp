#include "collectives/feedback/averaging.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "codecs/ops/sum_rows.h"
#include "codecs/residual/load_store.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/feedback/call_hook.h"
#include "collectives/identity/tensor_slot.h"

namespace slimwire {
namespace {

// Slices' worth of elements in a part.
constexpr uint64_t kPartSlices = 4;

constexpr StateKind kRecord{4};

CallSignature facts_of(int64_t count) {
    return {Op::kAllReduce, DType::kFloat32, RedOp::kSum, 0, static_cast<uint64_t>(count)};
}

// The cheaper of one-shot and two-shot, whichever compresses; null where none does.
std::shared_ptr<const Plan> coded_part(const CodecSpec& codec,
                                       int64_t count,
                                       const PlanShape& shape,
                                       const Config& config,
                                       MakePlan make_plan) {
    Config own;
    own.settings = config.settings;
    own.settings.max_memory_bytes = 0;  // add_averaging() looks
    Rule rule;
    rule.name = "average";
    rule.action.codec = codec;
    rule.action.error_feedback = ErrorFeedback::kEf14;
    std::shared_ptr<const Plan> best;
    uint64_t least = 0;
    for (const Algorithm algorithm :
         {Algorithm::kGather, codec.reduces() ? Algorithm::kTwoShot : Algorithm::kSparse}) {
        rule.action.algorithm = algorithm;
        own.policy.rules = {rule};
        Plan made = make_plan(facts_of(count), shape, own, nullptr);
        const uint64_t bytes = made.compressed ? wire_bytes_of(made, shape, 0) : 0;
        if (made.compressed && (best == nullptr || bytes < least)) {
            least = bytes;
            best = std::make_shared<const Plan>(std::move(made));
        }
    }
    return best;
}

// Parts end where runs do, or whole blocks of stored residuals into one.
std::vector<Averaging::Part> cut(std::vector<ResidualRun> runs, int64_t most) {
    std::sort(runs.begin(), runs.end(),
              [](const ResidualRun& a, const ResidualRun& b) { return a.at < b.at; });
    std::vector<Averaging::Part> parts;
    int64_t begin = 0;
    const auto end_at = [&](int64_t end) {
        if (end > begin) {
            parts.push_back({begin, end, nullptr});
            begin = end;
        }
    };
    for (const ResidualRun& run : runs) {
        int64_t done = 0;
        while (run.at + run.count - begin > most) {
            const int64_t room = begin + most - (run.at + done);
            const int64_t blocks = std::max<int64_t>(0, room) / kResidualBlock * kResidualBlock;
            if (blocks == 0 && run.at + done > begin) {
                end_at(run.at + done);
                continue;
            }
            done = std::min(run.count, done + std::max<int64_t>(blocks, kResidualBlock));
            end_at(run.at + done);
        }
    }
    if (!runs.empty()) {
        end_at(runs.back().at + runs.back().count);
    }
    return parts;
}

std::string add_averaging(const PlanRequest& request, Plan* plan) {
    const auto& [action, shape, config] = std::tie(request.action, request.shape, request.config);
    if (action.count_of("average_every") == 0) {
        return {};
    }
    const bool owes =
        plan->error_feedback == ErrorFeedback::kEf14 || plan->error_feedback == ErrorFeedback::kEma;
    if (!owes || !reduces(plan->signature.op)) {
        return {};
    }
    if (plan->layout.intra.has_value()) {
        return "average_every has no form of hierarchical with intra_codec";
    }
    auto made = std::make_shared<Averaging>();
    made->every = action.count_of("average_every");
    const std::optional<CodecSpec> codec = action.codec_of("average_codec");
    made->padded = plan->algorithm == Algorithm::kHierarchical;
    made->divisor = made->padded ? shape.nodes->nodes() : shape.ranks;
    std::vector<ResidualRun> runs;
    for_residual_runs(*plan, shape, kEveryRank,
                      [&](const ResidualRun& run) { runs.push_back(run); });
    const auto most =
        static_cast<int64_t>(kPartSlices * config.settings.slice_bytes / sizeof(float));
    made->parts = cut(std::move(runs), most > 0 ? most : INT64_MAX);
    if (made->parts.empty()) {
        return {};
    }
    int64_t largest = 0;
    uint64_t exchange_bytes = 0, lost_bytes = 0;
    made->codec = "native";
    for (Averaging::Part& part : made->parts) {
        const int64_t count = part.end - part.begin;
        const Averaging::Part* const before = &part == made->parts.data() ? nullptr : &part - 1;
        largest = std::max(largest, count);
        if (codec.has_value() && !made->padded) {
            part.coded = before != nullptr && before->end - before->begin == count
                             ? before->coded
                             : coded_part(*codec, count, shape, config, request.make_plan);
        }
        if (part.coded != nullptr) {
            made->codec = codec->to_string();
            made->call.draws.any |= part.coded->draws.any;
            made->call.draws.alike |= part.coded->draws.alike;
            exchange_bytes = std::max(exchange_bytes, aligned(part.coded->scratch.bytes));
            lost_bytes = std::max(lost_bytes, aligned(part.coded->residual.bytes));
        }
    }
    made->staging_offset = exchange_bytes;
    made->lost_offset = exchange_bytes + aligned(static_cast<uint64_t>(largest) * sizeof(float));
    Plan& call = made->call;
    call.signature = facts_of(static_cast<int64_t>(made->elems()));
    call.compressed = true;
    call.rule = plan->rule;
    call.scratch.bytes = made->lost_offset + lost_bytes;
    call.draws.any |= plan->residual.type != ResidualType::kFloat32;
    call.draws.key = plan->draws.key;
    call.draws.key.tensor ^= 0x2545F491u;  // else it would draw what the tensor's own call draws
    plan->scratch.bytes = std::max(plan->scratch.bytes, call.scratch.bytes);
    if (std::string reason = why_no_scratch(plan->scratch.bytes, shape); !reason.empty()) {
        return reason + ", averaging included";
    }
    const uint64_t needed = shape.committed_bytes + plan->scratch.bytes + plan->tensor_bytes();
    if (exceeds(needed, config.settings)) {
        return std::to_string(needed) + " bytes of residuals and scratch, averaging included, " +
               "exceed SLIMWIRE_MAX_MEMORY of " + std::to_string(config.settings.max_memory_bytes);
    }
    plan->reason +=
        ", residuals averaged every " +
        (made->every == 1 ? std::string("call") : std::to_string(made->every) + " calls");
    if (made->codec != "native") {
        plan->reason += " by " + made->codec;
    } else if (codec.has_value()) {
        plan->reason += made->padded
                            ? " as they are, because hierarchical has no form of average_codec"
                            : " as they are, because " + codec->to_string() + " would send more";
    }
    plan->parts.push_back(std::move(made));
    return {};
}

}  // namespace

uint64_t averaging_wire_bytes(const Averaging& averaging,
                              const PlanShape& shape,
                              int rank) noexcept {
    uint64_t bytes = 0;
    for (const Averaging::Part& part : averaging.parts) {
        bytes += part.coded != nullptr
                     ? wire_bytes_of(*part.coded, shape, rank)
                     : native_wire_bytes(facts_of(part.end - part.begin), shape.ranks, rank);
    }
    return bytes;
}

namespace {

// Of a key whose residuals are averaged.
class AveragingStats final : public FeatureStats {
  public:
    explicit AveragingStats(uint64_t wire_bytes) noexcept : wire_bytes_(wire_bytes) {}
    // Once, behind a call of `key`, whose own this is. Wait-free.
    void count(CallStats* key) noexcept {
        key->count_control(wire_bytes_);
        times_.fetch_add(1, std::memory_order_relaxed);
    }
    void report(ReportFields* fields) const override {
        const uint64_t times = times_.load(std::memory_order_relaxed);
        fields->push_back({"averagings", times});
        fields->push_back({"averaging_wire_bytes", times * wire_bytes_});
    }
    [[nodiscard]] uint64_t mark() const noexcept override { return times_.load(); }

  private:
    const uint64_t wire_bytes_;  // that this rank gives to the transport each time
    std::atomic<uint64_t> times_{0};
};

class AveragingExchange final : public Exchange {
  public:
    // `keeper`: the plan whose tensor's residuals are at context.residual, or of which this rank
    // has none for want of memory: then it gives zeros. `context.plan` is averaging.call.
    AveragingExchange(const ExchangeContext& context,
                      const PlanEntry& keeper,
                      const Averaging& averaging,
                      ExchangeRoom* room);

    [[nodiscard]] int phases() const noexcept override { return phases_; }
    [[nodiscard]] bool exchanges(int phase) const noexcept override {
        return inner_ == nullptr || inner_->exchanges(phase - first_phase_);
    }
    Status kernels(int phase) override;
    Status exchange(int phase) override;
    Status finish(int phase) override;

  private:
    [[nodiscard]] const Averaging::Part& part() const noexcept { return averaging_.parts[part_]; }
    [[nodiscard]] int64_t count() const noexcept { return part().end - part().begin; }
    [[nodiscard]] float* window() const noexcept {
        return reinterpret_cast<float*>(context_.scratch + averaging_.staging_offset);
    }
    [[nodiscard]] float* lost() const noexcept {
        return reinterpret_cast<float*>(context_.scratch + averaging_.lost_offset);
    }
    // Calls move(stored, elements of the window, count) for what this rank has of the part.
    Status for_stored(const std::function<Status(const StoredResiduals&, float*, int64_t)>& move);
    [[nodiscard]] Exchange* make_inner();
    Status take();
    Status add_lost();
    Status put();
    // output[i] = scale * (output[i] + other[i]), the latter if not null.
    Status sum(float* output, const float* other, int64_t count, float scale);

    ExchangeContext context_;
    const Plan& keeper_;
    CallStats* stats_;  // of the keeper
    const Averaging& averaging_;
    ExchangeRoom* room_;
    Exchange* inner_ = nullptr;  // of the part; null: NCCL's own
    size_t part_ = 0;
    int first_phase_ = 0;  // of the part
    int phases_ = 0;
};

AveragingExchange::AveragingExchange(const ExchangeContext& context,
                                     const PlanEntry& keeper,
                                     const Averaging& averaging,
                                     ExchangeRoom* room)
    : context_(context),
      keeper_(*keeper.plan),
      stats_(keeper.stats),
      averaging_(averaging),
      room_(room) {
    for (; part_ < averaging_.parts.size(); ++part_) {
        const Exchange* const inner = make_inner();
        phases_ += inner != nullptr ? inner->phases() : 1;
    }
    part_ = 0;
    inner_ = make_inner();
}

Exchange* AveragingExchange::make_inner() {
    const Plan* const coded = part().coded.get();
    if (coded == nullptr) {
        return nullptr;
    }
    CollectiveCall call = context_.call;
    call.signature = coded->signature;
    call.nccl_dtype = ncclFloat32;
    call.nccl_op = ncclSum;
    call.send = call.recv = window();
    ExchangeContext inner{context_.api, context_.nccl, context_.state, *coded, call};
    inner.work = context_.work;
    inner.scratch = context_.scratch;
    inner.residual = lost();
    inner.random = context_.random;
    inner.drawn_before = context_.drawn_before;
    return descriptor_of(inner.plan.algorithm).make(inner, room_);
}

Status AveragingExchange::for_stored(
    const std::function<Status(const StoredResiduals&, float*, int64_t)>& move) {
    if (context_.residual == nullptr) {
        return {};
    }
    Status status;
    for_residual_runs(
        keeper_, context_.state.shape, context_.state.rank, [&](const ResidualRun& run) {
            const int64_t begin = std::max(run.at, part().begin);
            const int64_t end = std::min(run.at + run.count, part().end);
            if (!status.ok() || begin >= end) {
                return;
            }
            const StoredResiduals stored{
                static_cast<char*>(context_.residual) + keeper_.residual.state_bytes,
                static_cast<int64_t>(keeper_.residual.elems),
                stored_begin(keeper_.residual.type, run.first, run.index) + begin - run.at,
                keeper_.residual.type};
            status = move(stored, window() + (begin - part().begin), end - begin);
        });
    return status;
}

Status AveragingExchange::sum(float* output, const float* other, int64_t count, float scale) {
    SumRowsArgs args{};
    args.input = args.output = output;
    args.row_bytes = other != nullptr ? static_cast<int64_t>((other - output) * sizeof(float)) : 0;
    args.count = count;
    args.rows = other != nullptr ? 2 : 1;
    args.scale = scale;
    args.input_dtype = args.output_dtype = DType::kFloat32;
    return enqueue(context_.api, args, context_.work);
}

// Divided before they are added, so that no sum of finite residuals overflows.
Status AveragingExchange::take() {
    const DeviceApi& api = context_.api;
    if (averaging_.padded || context_.residual == nullptr) {
        SLIMWIRE_TRY(clear_on_device(api, window(), static_cast<size_t>(count()) * sizeof(float),
                                     context_.work, "residuals of other ranks"));
    }
    SLIMWIRE_TRY(for_stored([&](const StoredResiduals& stored, float* elems, int64_t count) {
        return enqueue(api, LoadResidualArgs{.stored = stored, .output = elems, .count = count},
                       context_.work);
    }));
    SLIMWIRE_TRY(sum(window(), nullptr, count(), 1.0f / static_cast<float>(averaging_.divisor)));
    return inner_ == nullptr ? Status()
                             : clear_on_device(api, lost(), part().coded->residual.bytes,
                                               context_.work, "what averaging loses");
}

// The encoding of a rank's own share lost so much of the mean, of which it has `divisor` shares; so
// did that of the sums for all ranks, by the owner of a chunk.
Status AveragingExchange::add_lost() {
    const Plan& coded = *part().coded;
    SLIMWIRE_TRY(sum(lost(), nullptr, static_cast<int64_t>(coded.residual.elems),
                     static_cast<float>(averaging_.divisor)));
    SLIMWIRE_TRY(sum(window(), lost(), count(), 1.0f));
    if (coded.algorithm == Algorithm::kGather) {
        return {};
    }
    const float* server = lost() + coded.layout.fed_elems();
    for (const Slice& slice : coded.layout.slices) {
        for (const Piece& piece : slice.pieces) {
            const int rank = context_.state.rank;
            const int64_t begin =
                static_cast<int64_t>(piece.offset_elems) + piece.chunk_begin(rank);
            if (piece.chunk_count(rank) > 0) {
                SLIMWIRE_TRY(sum(window() + begin, server, piece.chunk_count(rank), 1.0f));
            }
            server += piece.chunk_elems;
        }
    }
    return {};
}

Status AveragingExchange::put() {
    return for_stored([&](const StoredResiduals& stored, float* elems, int64_t count) {
        StoreResidualArgs args{};
        args.stored = stored;
        args.input = elems;
        args.count = count;
        args.keep = 0.0f;
        args.take = 1.0f;
        args.random = context_.random;
        args.random.step += context_.drawn_before;
        return enqueue(context_.api, args, context_.work);
    });
}

Status AveragingExchange::kernels(int phase) {
    if (phase == first_phase_) {
        SLIMWIRE_TRY(take());
    }
    return inner_ == nullptr ? Status() : inner_->kernels(phase - first_phase_);
}

Status AveragingExchange::exchange(int phase) {
    return inner_ != nullptr
               ? inner_->exchange(phase - first_phase_)
               : all_reduce(context_, window(), window(), static_cast<size_t>(count()), ncclFloat32,
                            ncclSum, "ncclAllReduce of residuals");
}

Status AveragingExchange::finish(int phase) {
    int last = first_phase_;
    if (inner_ != nullptr) {
        SLIMWIRE_TRY(inner_->finish(phase - first_phase_));
        last += inner_->phases() - 1;
    }
    if (phase < last) {
        return {};
    }
    if (inner_ != nullptr) {
        SLIMWIRE_TRY(add_lost());
    }
    SLIMWIRE_TRY(put());
    first_phase_ = last + 1;
    if (++part_ < averaging_.parts.size()) {
        inner_ = make_inner();
    } else {
        stats_->feature<AveragingStats>()->count(stats_);
    }
    return {};
}

class AveragingHook final : public CallHook {
  public:
    void add_stats(const Plan& plan, const Communicator& communicator, CallStats* stats) override {
        if (const auto* const averaging = plan.part<Averaging>()) {
            stats->features.push_back(std::make_unique<AveragingStats>(
                averaging_wire_bytes(*averaging, communicator.shape, communicator.rank)));
        }
    }
    const Plan* call_behind(const CallSite& site, const Plan* plan) override;
    std::unique_ptr<Exchange> exchange(const ExchangeContext& context,
                                       const PlanEntry* keeper,
                                       ExchangeRoom* room) override {
        return std::make_unique<AveragingExchange>(context, *keeper,
                                                   *keeper->plan->part<Averaging>(), room);
    }
    Status save(const Communicator& communicator,
                const ReadMemory&,
                const KeepRecord& keep) const override {
        for (const auto& [place, tensor] : tensors_) {
            RecordWriter record;
            record.put(tensor.calls);
            keep({communicator.checkpoint_key, place.plan->signature, tensor.path, place.ordinal},
                 kRecord, record.take());
        }
        return {};
    }

  private:
    // Compressed calls of a tensor; equal on all ranks.
    struct Counted {
        uint64_t path = 0;  // of its place (StepPosition)
        uint64_t calls = 0;
    };
    static void undo(Communicator*, uint64_t tensor, uint64_t progress) noexcept {
        --pointer_of<Counted>(tensor)->calls;
        --pointer_of<Progress>(progress)->replicated_calls;
    }

    std::map<PlaceKey, Counted> tensors_;
};

// Counts the call.
const Plan* AveragingHook::call_behind(const CallSite& site, const Plan* of) {
    const auto* const averaging = of == nullptr ? nullptr : of->part<Averaging>();
    if (averaging == nullptr) {
        return nullptr;
    }
    const Plan& plan = *of;
    const StepPosition& place = site.place;
    Counted& tensor = tensors_[{&plan, place.slot, place.ordinal}];
    if (tensor.path != place.path) {
        // Of another step: what the one before was owed is gone, too.
        const bool first = tensor.path == 0;
        tensor = {place.path, 0};
        if (first) {
            const std::vector<std::byte> loaded = site.progress.take(
                {site.communicator.checkpoint_key, plan.signature, place.path, place.ordinal},
                kRecord);
            (void)RecordReader(loaded).get(&tensor.calls);
        }
    }
    ++site.progress.replicated_calls;
    site.note(undo, word_of(&tensor), word_of(&site.progress));
    return ++tensor.calls % averaging->every == 0 ? &averaging->call : nullptr;
}

void forget_averaging(Action* action) {
    action->forget("average_every");
}

std::unique_ptr<CallHook> make_averaging(const Policy& policy) {
    return policy.uses("average_every") ? std::make_unique<AveragingHook>() : nullptr;
}

}  // namespace

const HookKind kAveragingHook{add_averaging, forget_averaging, false, make_averaging};

}  // namespace slimwire
