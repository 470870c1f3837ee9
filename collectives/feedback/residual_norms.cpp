// How much a tensor is owed, beside how large its gradient is, for the report: now and then a
// call's contribution is measured in front of it and its residuals behind it, and a later call
// hears what came of that. Nobody waits for it.
//
// Of sums. Residuals stored as int8 are taken into the scratch run by run; of a store that takes
// more runs than kRuns so many are measured, evenly apart, and stand for all.
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "codecs/ops/measure.h"
#include "codecs/residual/load_store.h"
#include "collectives/feedback/call_hook.h"

namespace slimwire {
namespace {

// Where runs are taken to in the scratch, behind the measurement's own, and how long they may be.
constexpr uint64_t kRunOffset = (sizeof(MeasureWork) + 255) / 256 * 256;
int64_t run_elems(const Plan& plan) noexcept {
    const uint64_t room = plan.scratch.bytes > kRunOffset ? plan.scratch.bytes - kRunOffset : 0;
    return static_cast<int64_t>(room / sizeof(float)) / kResidualBlock * kResidualBlock;
}

bool readable(const Plan& plan) noexcept {
    const bool owes =
        plan.error_feedback == ErrorFeedback::kEf14 || plan.error_feedback == ErrorFeedback::kEma;
    return owes && reduces(plan.signature.op) && can_measure(plan.signature.dtype) &&
           plan.residual.elems > 0 &&
           (plan.residual.type == ResidualType::kInt8 ? run_elems(plan) > 0
                                                      : plan.scratch.bytes >= sizeof(MeasureWork));
}

// What a tensor was owed by a call of its: squared norms of what this rank gave and of its
// residuals behind it.
struct OwedSample {
    uint64_t call = 0;  // of the key
    uint32_t slot = 0, ordinal = 0;
    double gradient_square = 0, owed_square = 0;
};
// A key's, over its whole life: where there are too many, every second goes.
class OwedStats final : public FeatureStats {
  public:
    static constexpr size_t kRemembered = 64;

    // Room for all that will come, so that later calls allocate nothing.
    OwedStats() { kept_.reserve(kRemembered); }
    void add(const OwedSample& sample);
    void report(ReportFields* fields) const override;

  private:
    uint64_t samples_ = 0, stride_ = 1;
    std::vector<OwedSample> kept_;
};

class ResidualNorms final : public CallHook {
  public:
    static constexpr int64_t kRuns = 16;

    ResidualNorms() : CallHook(true) {}

    // Measures what the call gives, if its turn has come, and behind it what it left in its
    // residuals. What fails is not read.
    void before(const CallRun& run) noexcept override;
    void after(const CallRun& run) noexcept override;
    void made(const DeviceApi& api, Communicator* communicator) override {
        pinned_ = communicator->device_memory->pin(api, (1 + kRuns) * sizeof(Measured));
        found_ = pinned_.as<Measured>();
    }
    void release(const DeviceApi& api,
                 Communicator* communicator,
                 Retirement* left) noexcept override;

  private:
    void begin(const CallRun& run) noexcept;
    // Hands what has arrived to the statistics.
    void look(const DeviceApi& api, CommStats* stats) noexcept;
    bool measure(const DeviceApi& api,
                 const void* input,
                 int64_t count,
                 DType dtype,
                 float scale,
                 Measured* result,
                 char* scratch,
                 cudaStream_t stream) noexcept;

    bool measure_runs(const DeviceApi& api,
                      const Plan& plan,
                      const char* residual,
                      char* scratch,
                      cudaStream_t stream) noexcept;

    Pinned pinned_;
    Measured* found_ = nullptr;  // there: of the gradient, of the residuals' runs
    int64_t runs_ = 1;
    double part_ = 1;  // of the residuals that was measured
    cudaEvent_t end_ = nullptr;
    CallStats* key_ = nullptr;           // null: none is under way
    const CallRun* measured_ = nullptr;  // whose residuals are to be measured
    bool ended_ = false;                 // end_ was recorded
    OwedSample sample_;
};

void OwedStats::add(const OwedSample& sample) {
    if (samples_++ % stride_ != 0) {
        return;
    }
    if (kept_.size() == kRemembered) {
        for (size_t i = 0; i < kept_.size() / 2; ++i) {
            kept_[i] = kept_[2 * i];
        }
        kept_.resize(kept_.size() / 2);
        stride_ *= 2;
    }
    kept_.push_back(sample);
}

void OwedStats::report(ReportFields* fields) const {
    std::vector<ReportFields> samples;
    for (const OwedSample& sample : kept_) {
        samples.push_back({{"call", sample.call},
                           {"slot", sample.slot},
                           {"ordinal", sample.ordinal},
                           {"gradient_square", sample.gradient_square},
                           {"owed_square", sample.owed_square}});
    }
    if (!samples.empty()) {
        fields->push_back({"owed", std::move(samples)});
    }
}

bool ResidualNorms::measure(const DeviceApi& api,
                            const void* input,
                            int64_t count,
                            DType dtype,
                            float scale,
                            Measured* result,
                            char* scratch,
                            cudaStream_t stream) noexcept {
    if (!tolerate(api, api.memset_async(scratch, 0, sizeof(MeasureWork), stream))) {
        return false;
    }
    MeasureArgs args{};
    args.input = input;
    args.work = reinterpret_cast<MeasureWork*>(scratch);
    args.result = result;
    args.count = count;
    args.scale = scale;
    args.dtype = dtype;
    args.mark = 1;
    if (!enqueue(api, args, stream).ok()) {
        (void)api.get_last_error();  // no error of the program's
        return false;
    }
    return true;
}

void ResidualNorms::before(const CallRun& run) noexcept {
    if (measured_ == &run) {  // the call before ended in an error
        measured_ = nullptr;
        key_ = nullptr;
    }
    look(run.api, run.communicator.stats.get());
    const bool known = run.scalar == nullptr || run.scalar->device == nullptr;
    if (run.residual.buffer != nullptr && run.plan.compressed && known) {
        begin(run);
    }
}

void ResidualNorms::begin(const CallRun& run) noexcept {
    const DeviceApi& api = run.api;
    const Plan& plan = run.plan;
    const uint64_t call = run.stats->calls.load(std::memory_order_relaxed);
    if (key_ != nullptr || found_ == nullptr || !readable(plan)) {
        return;
    }
    if (end_ == nullptr &&
        !tolerate(api, api.event_create_with_flags(&end_, cudaEventDisableTiming))) {
        end_ = nullptr;
        return;
    }
    const int blocks = plan.signature.op == Op::kReduceScatter ? run.communicator.shape.ranks : 1;
    const auto count = static_cast<int64_t>(plan.signature.count) * blocks;
    const float scale = run.scalar != nullptr ? run.scalar->value : 1.0f;
    if (!measure(api, run.call.send, count, plan.signature.dtype, scale, found_, run.scratch,
                 run.work)) {
        return;
    }
    if (call == 0 && run.communicator.stats != nullptr) {
        (void)run.communicator.stats->feature<OwedStats>(run.stats);
    }
    sample_ = {call, run.place.slot, run.place.ordinal, 0, 0};
    key_ = run.stats;
    ended_ = false;
    measured_ = &run;
}

bool ResidualNorms::measure_runs(const DeviceApi& api,
                                 const Plan& plan,
                                 const char* residual,
                                 char* scratch,
                                 cudaStream_t stream) noexcept {
    const auto elems = static_cast<int64_t>(plan.residual.elems);
    const int64_t run = std::min(elems, run_elems(plan));
    const int64_t all = (elems + run - 1) / run;
    runs_ = std::min(all, kRuns);
    int64_t measured = 0;
    for (int64_t i = 0; i < runs_; ++i) {
        const int64_t even = runs_ == 1 ? 0 : (elems - run) / kResidualBlock * i / (runs_ - 1);
        const int64_t first = all <= kRuns ? i * run : even * kResidualBlock;
        const int64_t count = std::min(run, elems - first);
        auto* const taken = reinterpret_cast<float*>(scratch + kRunOffset);
        LoadResidualArgs take{};
        take.stored = {const_cast<char*>(residual), elems, first, ResidualType::kInt8};
        take.output = taken;
        take.count = count;
        if (!enqueue(api, take, stream).ok()) {
            (void)api.get_last_error();  // no error of the program's
            return false;
        }
        if (!measure(api, taken, count, DType::kFloat32, 1.0f, found_ + 1 + i, scratch, stream)) {
            return false;
        }
        measured += count;
    }
    part_ = static_cast<double>(measured) / static_cast<double>(elems);
    return true;
}

void ResidualNorms::after(const CallRun& run) noexcept {
    if (measured_ != &run) {
        return;
    }
    measured_ = nullptr;
    const DeviceApi& api = run.api;
    const Plan& plan = run.plan;
    const char* const stored =
        static_cast<const char*>(run.residual.buffer) + plan.residual.state_bytes;
    const DType dtype =
        plan.residual.type == ResidualType::kFloat32 ? DType::kFloat32 : DType::kBfloat16;
    runs_ = 1;
    part_ = 1;
    const bool measured = plan.residual.type == ResidualType::kInt8
                              ? measure_runs(api, plan, stored, run.scratch, run.work)
                              : measure(api, stored, static_cast<int64_t>(plan.residual.elems),
                                        dtype, 1.0f, found_ + 1, run.scratch, run.work);
    ended_ = measured && tolerate(api, api.event_record(end_, run.work));
    key_ = ended_ ? key_ : nullptr;
}

void ResidualNorms::look(const DeviceApi& api, CommStats* stats) noexcept {
    if (key_ == nullptr || !ended_ || !tolerate(api, api.event_query(end_))) {
        return;
    }
    sample_.gradient_square = found_[0].square_sum;
    sample_.owed_square = 0;
    for (int64_t i = 0; i < runs_; ++i) {
        sample_.owed_square += found_[1 + i].square_sum / part_;
    }
    CallStats* const key = std::exchange(key_, nullptr);
    if (stats != nullptr) {
        OwedStats& owed = stats->feature<OwedStats>(key);
        stats->update([&](CommStats&) { owed.add(sample_); });
    }
}

void ResidualNorms::release(const DeviceApi& api,
                            Communicator* communicator,
                            Retirement* left) noexcept {
    look(api, communicator->stats.get());
    key_ = nullptr;
    if (end_ != nullptr) {
        tolerate(api, api.event_destroy(std::exchange(end_, nullptr)));
    }
    left->add(std::exchange(pinned_, {}));
    found_ = nullptr;
}

std::unique_ptr<CallHook> make_residual_norms(const Policy&) {
    return std::make_unique<ResidualNorms>();
}

}  // namespace

const HookKind kResidualNormsHook{nullptr, nullptr, false, make_residual_norms};

}  // namespace slimwire
