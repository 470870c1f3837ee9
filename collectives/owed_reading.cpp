#include "collectives/owed_reading.h"

#include <utility>

#include "codecs/measure.h"
#include "collectives/comm_state.h"

namespace slimwire {
namespace {

bool readable(const Plan& plan) noexcept {
    const bool owes =
        plan.error_feedback == ErrorFeedback::kEf14 || plan.error_feedback == ErrorFeedback::kEma;
    return owes && reduces(plan.facts.op) && can_measure(plan.facts.dtype) &&
           plan.residual_elems > 0 && plan.residual_type != ResidualType::kInt8 &&
           plan.scratch_bytes >= sizeof(MeasureWork);
}

}  // namespace

bool OwedReading::measure(const DeviceApi& api,
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

bool OwedReading::begin(const DeviceApi& api,
                        const CommState& state,
                        const Plan& plan,
                        const StepPlace& place,
                        const void* input,
                        float scale,
                        char* scratch,
                        cudaStream_t stream) noexcept {
    const uint64_t call = plan.stats->calls.load(std::memory_order_relaxed);
    if (call % kEvery != 0 || key_ != nullptr || !readable(plan)) {
        return false;
    }
    void* memory = nullptr;
    if (found_ == nullptr && !tolerate(api, api.host_alloc(&memory, 2 * sizeof(Measured), 0))) {
        return false;
    }
    found_ = found_ != nullptr ? found_ : static_cast<Measured*>(memory);
    if (end_ == nullptr &&
        !tolerate(api, api.event_create_with_flags(&end_, cudaEventDisableTiming))) {
        end_ = nullptr;
        return false;
    }
    const int blocks = plan.facts.op == Op::kReduceScatter ? state.shape.ranks : 1;
    const auto count = static_cast<int64_t>(plan.facts.count) * blocks;
    if (!measure(api, input, count, plan.facts.dtype, scale, found_, scratch, stream)) {
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

void OwedReading::end(const DeviceApi& api,
                      const Plan& plan,
                      const void* residual,
                      char* scratch,
                      cudaStream_t stream) noexcept {
    const DType dtype =
        plan.residual_type == ResidualType::kFloat32 ? DType::kFloat32 : DType::kBfloat16;
    ended_ = measure(api, static_cast<const char*>(residual) + plan.state_bytes,
                     static_cast<int64_t>(plan.residual_elems), dtype, 1.0f, found_ + 1, scratch,
                     stream) &&
             tolerate(api, api.event_record(end_, stream));
    key_ = ended_ ? key_ : nullptr;
}

void OwedReading::look(const DeviceApi& api, CommStats* stats) noexcept {
    if (key_ == nullptr || !ended_ || !tolerate(api, api.event_query(end_))) {
        return;
    }
    sample_.gradient_square = found_[0].square_sum;
    sample_.owed_square = found_[1].square_sum;
    const KeyStats& key = *std::exchange(key_, nullptr);
    if (stats != nullptr) {
        stats->update([&](CommStats& comm) { comm.owed[&key].add(sample_); });
    }
}

void OwedReading::release(const DeviceApi& api, CommStats* stats, bool lost) noexcept {
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
