#include "collectives/feedback/residual_norms.h"

#include <algorithm>
#include <utility>

#include "codecs/ops/measure.h"
#include "codecs/residual/load_store.h"
#include "collectives/communicator/communicator.h"

namespace slimwire {
namespace {

// Where runs are taken to in the scratch, behind the measurement's own, and how long they may be.
constexpr uint64_t kRunOffset = (sizeof(MeasureWork) + 255) / 256 * 256;
int64_t run_elems(const Plan& plan) noexcept {
    const uint64_t room = plan.scratch_bytes > kRunOffset ? plan.scratch_bytes - kRunOffset : 0;
    return static_cast<int64_t>(room / sizeof(float)) / kResidualBlock * kResidualBlock;
}

bool readable(const Plan& plan) noexcept {
    const bool owes =
        plan.error_feedback == ErrorFeedback::kEf14 || plan.error_feedback == ErrorFeedback::kEma;
    return owes && reduces(plan.signature.op) && can_measure(plan.signature.dtype) &&
           plan.residual_elems > 0 &&
           (plan.residual_type == ResidualType::kInt8 ? run_elems(plan) > 0
                                                      : plan.scratch_bytes >= sizeof(MeasureWork));
}

}  // namespace

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

bool ResidualNorms::begin(const DeviceApi& api,
                          const Communicator& state,
                          const Plan& plan,
                          const StepPosition& place,
                          const void* input,
                          float scale,
                          char* scratch,
                          cudaStream_t stream) noexcept {
    const uint64_t call = plan.stats->calls.load(std::memory_order_relaxed);
    if (call % kEvery != 0 || key_ != nullptr || !readable(plan)) {
        return false;
    }
    void* memory = nullptr;
    constexpr size_t kRoom = 1 + kRuns;
    if (found_ == nullptr && !tolerate(api, api.host_alloc(&memory, kRoom * sizeof(Measured), 0))) {
        return false;
    }
    found_ = found_ != nullptr ? found_ : static_cast<Measured*>(memory);
    if (end_ == nullptr &&
        !tolerate(api, api.event_create_with_flags(&end_, cudaEventDisableTiming))) {
        end_ = nullptr;
        return false;
    }
    const int blocks = plan.signature.op == Op::kReduceScatter ? state.shape.ranks : 1;
    const auto count = static_cast<int64_t>(plan.signature.count) * blocks;
    if (!measure(api, input, count, plan.signature.dtype, scale, found_, scratch, stream)) {
        return false;
    }
    if (call == 0 && state.stats != nullptr) {
        // Room for all that will come, so that later calls allocate nothing.
        state.stats->update(
            [&](CommStats& comm) { comm.owed[plan.stats].kept.reserve(OwedTotals::kRemembered); });
    }
    sample_ = {call, place.slot, place.ordinal, 0, 0};
    key_ = plan.stats;
    ended_ = false;
    return true;
}

bool ResidualNorms::measure_runs(const DeviceApi& api,
                                 const Plan& plan,
                                 const char* residual,
                                 char* scratch,
                                 cudaStream_t stream) noexcept {
    const auto elems = static_cast<int64_t>(plan.residual_elems);
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

void ResidualNorms::end(const DeviceApi& api,
                        const Plan& plan,
                        const void* residual,
                        char* scratch,
                        cudaStream_t stream) noexcept {
    const char* const stored = static_cast<const char*>(residual) + plan.state_bytes;
    const DType dtype =
        plan.residual_type == ResidualType::kFloat32 ? DType::kFloat32 : DType::kBfloat16;
    runs_ = 1;
    part_ = 1;
    const bool measured = plan.residual_type == ResidualType::kInt8
                              ? measure_runs(api, plan, stored, scratch, stream)
                              : measure(api, stored, static_cast<int64_t>(plan.residual_elems),
                                        dtype, 1.0f, found_ + 1, scratch, stream);
    ended_ = measured && tolerate(api, api.event_record(end_, stream));
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
    const CallStats& key = *std::exchange(key_, nullptr);
    if (stats != nullptr) {
        stats->update([&](CommStats& comm) { comm.owed[&key].add(sample_); });
    }
}

void ResidualNorms::release(const DeviceApi& api, CommStats* stats, bool lost) noexcept {
    if (!lost) {
        look(api, stats);
    }
    key_ = nullptr;
    if (end_ != nullptr) {
        tolerate(api, api.event_destroy(std::exchange(end_, nullptr)));
    }
    Measured* const found = std::exchange(found_, nullptr);
    if (found != nullptr && !lost) {
        tolerate(api, api.free_host(found));
    }
}

}  // namespace slimwire
