#include "collectives/feedback/step_ahead.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>

#include "codecs/base/device_scope.h"
#include "codecs/residual/step_ahead.h"
#include "collectives/algorithms/exchange.h"
#include "collectives/call/log.h"
#include "collectives/call/training.h"
#include "collectives/communicator/graph_memory.h"
#include "collectives/communicator/rank_identities.h"
#include "collectives/identity/tensor_slot.h"

namespace slimwire {
namespace {

class PreviewStats final : public FeatureStats {
  public:
    // Gathers that were moved by residuals of the key's calls, and how far the optimizer moves a
    // parameter for a reduced gradient of 1, as estimated for the tensor gathered last; 0: unknown.
    std::atomic<uint64_t> previews{0};
    std::atomic<double> step_size{0};

    void report(ReportFields* fields) const override {
        fields->push_back({"previews", previews.load()});
        fields->push_back({"step_size", step_size.load()});
    }
    [[nodiscard]] uint64_t mark() const noexcept override { return previews.load(); }
};

bool is_float(DType dtype) noexcept {
    return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBfloat16;
}

// Of this rank's own configuration; 0: not known, and then nothing moves.
float told_step(const StepAheadRule& rule) noexcept {
    if (rule.step_size > 0) {
        return static_cast<float>(rule.step_size);
    }
    const Training& training = training_state();
    const double rate = training.learning_rate.load(std::memory_order_relaxed);
    const double scale = training.loss_scale.load(std::memory_order_relaxed);
    if (std::isnan(rate)) {
        return 0;
    }
    return static_cast<float>(std::isnan(scale) ? rate : rate / scale);
}

bool has_event(const DeviceApi& api, cudaEvent_t* event) {
    return *event != nullptr ||
           tolerate(api, api.event_create_with_flags(event, cudaEventDisableTiming));
}

// Elements `first` to `last` of what the unit's calls sum, of which element 0 would be at
// shift.parameters, less what is owed.
Status move(const DeviceApi& api,
            const Communicator& state,
            const Plan& plan,
            void* residual,
            const ShiftArgs& shift,
            int64_t first,
            int64_t last,
            cudaStream_t stream) {
    Status status;
    ResidualRun joined;  // `first`: where it is stored
    const auto flush = [&] {
        if (status.ok() && joined.count > 0) {
            ShiftArgs args = shift;
            args.stored = {static_cast<char*>(residual) + plan.residual.state_bytes,
                           static_cast<int64_t>(plan.residual.elems), joined.first,
                           plan.residual.type};
            args.parameters = static_cast<char*>(shift.parameters) +
                              joined.at * static_cast<int64_t>(dtype_bytes(shift.dtype));
            args.count = joined.count;
            status = enqueue(api, args, stream);
        }
    };
    for_residual_runs(plan, state.shape, state.rank, [&](const ResidualRun& run) {
        const int64_t at = std::max(run.at, first);
        const int64_t count = std::min(run.at + run.count, last) - at;
        const int64_t begin = stored_begin(plan.residual.type, run.first, run.index) + at - run.at;
        if (count <= 0) {
            return;
        }
        if (joined.at + joined.count == at && joined.first + joined.count == begin) {
            joined.count += count;
            return;
        }
        flush();
        joined = {begin, 0, count, at};
    });
    flush();
    return status;
}

// All that was gathered; in place but for this rank's block, which is what it sent, and may be the
// parameters themselves.
Status move_gathered(const DeviceApi& api,
                     const Communicator& state,
                     void* residual,
                     float scale,
                     const StepAhead::Pending& pending) {
    const CollectiveCall& call = pending.call;
    const auto count = static_cast<int64_t>(call.signature.count);
    const int64_t own = state.rank * count, all = state.shape.ranks * count;
    const bool in_place =
        call.send == static_cast<char*>(call.recv) +
                         own * static_cast<int64_t>(dtype_bytes(call.signature.dtype));
    ShiftArgs shift{};
    shift.parameters = call.recv;
    shift.step = pending.unit->step;
    shift.scale = scale;
    shift.dtype = call.signature.dtype;
    const Plan& plan = *pending.unit->plan;
    SLIMWIRE_TRY(move(api, state, plan, residual, shift, 0, in_place ? own : all, call.stream));
    return in_place ? move(api, state, plan, residual, shift, own + count, all, call.stream)
                    : Status();
}

// Before what the unit owes changes.
Status wait_for_readers(const DeviceApi& api, StepAhead::Unit* unit, cudaStream_t stream) {
    unit->owes = false;
    return std::exchange(unit->read, false)
               ? cuda_status(api, api.stream_wait_event(stream, unit->moved, 0),
                             "wait for step_ahead")
               : Status();
}

// Before what it owes is read, on `stream`; other readers first.
Status wait_for_owed(const DeviceApi& api, const StepAhead::Unit& unit, cudaStream_t stream) {
    SLIMWIRE_TRY(
        cuda_status(api, api.stream_wait_event(stream, unit.owed, 0), "wait for what is owed"));
    return unit.read ? cuda_status(api, api.stream_wait_event(stream, unit.moved, 0),
                                   "wait for the step_ahead before")
                     : Status();
}

Status was_read(const DeviceApi& api, StepAhead::Unit* unit, cudaStream_t stream) {
    ++unit->stats->feature<PreviewStats>()->previews;
    unit->read = true;
    return cuda_status(api, api.event_record(unit->moved, stream), "event of step_ahead");
}

// Room for so many bytes of a parameter; false where there is none.
bool keep_room(const DeviceApi& api, Communicator* state, uint64_t bytes, StepAhead::Kept* kept) {
    if (kept->bytes >= bytes) {
        return true;
    }
    if (kept->copy != nullptr) {
        state->memory->give_back(state->device, std::exchange(kept->bytes, 0));
        Retirement outgrown(state->device_memory, api, state->device);
        outgrown.after(kept->returned);
        outgrown.add(std::exchange(kept->copy, nullptr));
    }
    if (!has_event(api, &kept->returned) || !state->memory->reserve(state->device, bytes)) {
        return false;
    }
    if (!tolerate(api, state->device_memory->allocate(api, state->device, bytes, &kept->copy,
                                                      state->objects.home))) {
        state->memory->give_back(state->device, bytes);
        return false;
    }
    kept->bytes = bytes;
    return true;
}

}  // namespace

std::optional<StepAheadRule> step_ahead_rule(const Action& action) {
    const Value* said = action.find("step_ahead");
    if (said == nullptr) {
        return std::nullopt;
    }
    StepAheadRule rule;
    rule.gain_ppm = static_cast<uint32_t>(said->find("gain")->real() * 1e6 + 0.5);
    rule.step_size = said->find("step_size")->real();
    rule.told = said->find("step_size")->word() == "told";
    return rule;
}

// Room for two copies of the shard; none where the budget has no more, and then the step is
// unknown.
Status StepAhead::make_memory(const DeviceApi& api, Communicator* state, Unit* unit) {
    if (unit->memory != nullptr || unit->no_room) {
        return {};
    }
    const CallSignature& signature = unit->plan->signature;
    // The parameters may be of a wider type than the gradients.
    const uint64_t shard = aligned(signature.count * sizeof(float));
    const uint64_t fixed = aligned(sizeof(StepSize)) + aligned(sizeof(StepSizeWork));
    unit->bytes = fixed + 2 * shard;
    const bool granted = state->memory->reserve(state->device, unit->bytes);
    if (!granted ||
        !tolerate(api, state->device_memory->allocate(api, state->device, unit->bytes,
                                                      &unit->memory, state->objects.home))) {
        state->memory->give_back(state->device, granted ? unit->bytes : 0);
        unit->no_room = true;
        log_once(LogLevel::kWarn, "no room for step_ahead",
                 "'step_ahead' goes without the size of steps: " + std::to_string(unit->bytes) +
                     " bytes more than " + (granted ? "the device" : "SLIMWIRE_MAX_MEMORY") +
                     " has left");
        return {};
    }
    auto* bytes = static_cast<char*>(unit->memory);
    unit->step = reinterpret_cast<StepSize*>(bytes);
    unit->work = reinterpret_cast<StepSizeWork*>(bytes + aligned(sizeof(StepSize)));
    unit->before = bytes + fixed;
    unit->reduced = bytes + fixed + shard;
    return {};
}

void StepAhead::made(const DeviceApi& api, Communicator* communicator) {
    shown_ = communicator->device_memory->pin(api, kShown * sizeof(StepSize));
}

void StepAhead::add_stats(const Plan& plan, const Communicator&, CallStats* stats) {
    if (plan.part<SteppedAhead>() != nullptr) {
        stats->features.push_back(std::make_unique<PreviewStats>());
    }
}

void StepAhead::undo(Communicator*, uint64_t self, uint64_t) noexcept {
    StepAhead& own = *pointer_of<StepAhead>(self);
    own.waiting_.clear();
    own.pairs_.lose();
}

void StepAhead::wait(const CallSite& site, Unit* unit, bool first) {
    waiting_.push_back({unit, site.call, first});
    site.note(undo, word_of(this));
}

void StepAhead::uncount(Communicator*, uint64_t progress, uint64_t) noexcept {
    --pointer_of<Progress>(progress)->replicated_calls;
}

uint64_t StepAhead::unit_key(const CallSignature& signature, uint32_t ordinal) noexcept {
    return std::max<uint64_t>(1, mix_key(call_signature(signature), ordinal));
}

void StepAhead::show(Unit* unit) {
    if (shown_.memory != nullptr && taken_ < kShown) {
        unit->shown = shown_.as<StepSize>() + taken_++;
        *unit->shown = {};
    }
}

Status StepAhead::follow(const CallSite& site, const PlanEntry* entry) {
    const CollectiveCall& call = site.call;
    const PlanEntry* const asks =
        entry != nullptr && entry->plan->part<SteppedAhead>() != nullptr ? entry : nullptr;
    if (call.signature.op == Op::kAllReduce && asks != nullptr) {
        Unit& unit = follow_sum(site.communicator, call, site.place, *asks);
        SLIMWIRE_TRY(wait_for_readers(site.api, &unit, call.stream));
        wait(site, &unit, false);
        return {};
    }
    const bool scatters = call.signature.op == Op::kReduceScatter;
    if ((!scatters && call.signature.op != Op::kAllGather) || site.place.path != kMarkedPath) {
        return {};
    }
    const uint64_t key = unit_key(call.signature, site.place.ordinal);
    const GatherPair pair = pairs_.next({key, call.signature.count, scatters, call.send},
                                        training_state().marks.load(std::memory_order_relaxed));
    if (!scatters) {
        const auto unit = pair.unit != 0 && is_float(call.signature.dtype) ? units_.find(pair.unit)
                                                                           : units_.end();
        if (unit != units_.end() && unit->second.plan != nullptr) {
            wait(site, &unit->second, pair.first);
        }
        return {};
    }
    if (asks == nullptr) {
        return {};
    }
    ++site.progress.replicated_calls;
    site.note(uncount, word_of(&site.progress));
    Unit& unit = units_[key];
    SLIMWIRE_TRY(wait_for_readers(site.api, &unit, call.stream));
    unit.plan = asks->plan.get();
    unit.stats = asks->stats;
    unit.tensor = identify(site.communicator.state_key, call, true, site.place);
    wait(site, &unit, false);
    return {};
}

Status StepAhead::launched(const DeviceApi& api, Communicator* state, ResidualStore* residuals) {
    Status status;
    for (const Pending& pending : std::exchange(waiting_, {})) {
        status = status.ok() ? finish(api, state, residuals, pending) : status;
    }
    return status;
}

// Behind the first gather of a step: how far the step before moved this rank's shard.
Status StepAhead::find_step(const DeviceApi& api, Communicator* state, const Pending& pending) {
    Unit& unit = *pending.unit;
    const CollectiveCall& call = pending.call;
    const bool begins = unit.memory == nullptr;
    SLIMWIRE_TRY(make_memory(api, state, &unit));
    if (unit.memory == nullptr) {
        return {};
    }
    if (begins) {
        show(&unit);
        SLIMWIRE_TRY(
            clear_on_device(api, unit.step, sizeof(StepSize), call.stream, "size of a step"));
    }
    const bool known = unit.has_before && unit.has_reduced && unit.dtype == call.signature.dtype;
    SLIMWIRE_TRY(
        enqueue(api,
                StepSizeArgs{call.send, unit.before, known ? unit.reduced : nullptr, unit.work,
                             unit.step, static_cast<int64_t>(call.signature.count),
                             call.signature.dtype, unit.plan->signature.dtype},
                call.stream));
    unit.dtype = call.signature.dtype;
    unit.has_before = true;
    unit.has_reduced = false;
    if (known && unit.shown != nullptr) {
        // Read by the next such call, a step later, and by nothing that must have it.
        unit.stats->feature<PreviewStats>()->step_size = unit.shown->mean;
        SLIMWIRE_TRY(cuda_status(api,
                                 api.memcpy_async(unit.shown, unit.step, sizeof(StepSize),
                                                  cudaMemcpyDeviceToHost, call.stream),
                                 "size of a step"));
    }
    return {};
}

Status StepAhead::finish(const DeviceApi& api,
                         Communicator* state,
                         ResidualStore* residuals,
                         const Pending& pending) {
    Unit& unit = *pending.unit;
    const CollectiveCall& call = pending.call;
    // A replay would not know which step it is in.
    SLIMWIRE_TRY_ASSIGN(const bool captured, capturing(api, call.stream));
    if (captured) {
        return {};
    }
    const DeviceScope scope(api, state->device);
    if (!has_event(api, &unit.owed) || !has_event(api, &unit.moved)) {
        log_once(LogLevel::kWarn, "no events for step_ahead",
                 "'step_ahead' has no events for a tensor, whose gathers are not moved until then");
        return {};
    }
    const StepAheadRule& rule = unit.plan->part<SteppedAhead>()->rule;
    const bool estimates = rule.step_size == 0 && !rule.told;
    if (!unit.loaded.empty()) {
        SLIMWIRE_TRY(take_up(api, state, residuals, call.stream, &unit));
    }
    if (call.signature.op != Op::kAllGather) {
        if (unit.memory != nullptr) {
            SLIMWIRE_TRY(copy_on_device(api, unit.reduced, call.recv,
                                        call.signature.count * dtype_bytes(call.signature.dtype),
                                        call.stream, "reduced gradients of step_ahead"));
            unit.has_reduced = true;
        }
        SLIMWIRE_TRY(
            cuda_status(api, api.event_record(unit.owed, call.stream), "event of step_ahead"));
        unit.owes = true;
        return {};
    }
    if (!unit.owes) {
        return {};
    }
    SLIMWIRE_TRY(wait_for_owed(api, unit, call.stream));
    if (estimates && pending.first) {
        SLIMWIRE_TRY(find_step(api, state, pending));
    }
    const float step = estimates ? 1.0f : told_step(rule);
    void* const residual = residuals->find(unit.tensor);
    if (residual != nullptr && step > 0 && (!estimates || unit.step != nullptr)) {
        const float gain =
            static_cast<float>(rule.gain_ppm) * 1e-6f * static_cast<float>(state->shape.ranks);
        SLIMWIRE_TRY(move_gathered(api, *state, residual, gain * step, pending));
        return was_read(api, &unit, call.stream);
    }
    unit.read = true;
    return cuda_status(api, api.event_record(unit.moved, call.stream), "event of step_ahead");
}

StepAhead::Unit& StepAhead::follow_sum(const Communicator& state,
                                       const CollectiveCall& call,
                                       const StepPosition& place,
                                       const PlanEntry& entry) {
    const Plan& plan = *entry.plan;
    const auto* const begin = static_cast<const char*>(call.recv);
    const char* const end = begin + plan.signature.count * dtype_bytes(plan.signature.dtype);
    // Buffers that are no more, where this one lies.
    auto at = sums_.lower_bound(begin);
    if (at != sums_.begin() && std::prev(at)->second->end > begin) {
        --at;
    }
    while (at != sums_.end() && at->first < end) {
        if (at->first == begin && at->second->end == end) {
            break;
        }
        retired_.push_back(std::move(at->second));
        at = sums_.erase(at);
    }
    std::unique_ptr<Unit>& unit = sums_[begin];
    if (unit == nullptr) {
        unit = std::make_unique<Unit>();
    }
    unit->end = end;
    unit->plan = &plan;
    unit->stats = entry.stats;
    unit->tensor = identify(state.state_key, call, true, place);
    return *unit;
}

Result<bool> StepAhead::move_parameter(const DeviceApi& api,
                                       Communicator* state,
                                       const ResidualStore& residuals,
                                       const ParameterMove& what,
                                       cudaStream_t stream) {
    const auto* const gradient = static_cast<const char*>(what.gradient);
    auto at = sums_.upper_bound(gradient);
    if (at == sums_.begin()) {
        return false;
    }
    --at;
    Unit& unit = *at->second;
    if (gradient >= unit.end || !unit.owes) {
        return false;
    }
    const Plan& plan = *unit.plan;
    const size_t width = dtype_bytes(plan.signature.dtype);
    const auto offset = static_cast<uint64_t>(gradient - at->first);
    if (offset % width != 0 || what.count > plan.signature.count - offset / width) {
        return Status(Code::kInvalidArgument,
                      std::to_string(what.count) + " elements from byte " + std::to_string(offset) +
                          " on of an all-reduce of " + std::to_string(plan.signature.count) + " " +
                          dtype_name(plan.signature.dtype));
    }
    void* const residual = residuals.find(unit.tensor);
    const StepAheadRule& rule = plan.part<SteppedAhead>()->rule;
    const float scale = told_step(rule) * static_cast<float>(rule.gain_ppm) * 1e-6f *
                        static_cast<float>(state->shape.ranks);
    if (residual == nullptr || !(scale > 0)) {
        return false;
    }
    const uint64_t bytes = what.count * dtype_bytes(what.dtype);
    const DeviceScope scope(api, state->device);
    Kept& kept = kept_[what.parameter];
    if (kept.moved_bytes != 0) {
        return Status(Code::kInvalidArgument, "the parameter is ahead already");
    }
    if (!keep_room(api, state, bytes, &kept)) {
        return false;
    }
    SLIMWIRE_TRY(wait_for_owed(api, unit, stream));
    SLIMWIRE_TRY(
        copy_on_device(api, kept.copy, what.parameter, bytes, stream, "keeping a parameter"));
    kept.moved_bytes = bytes;
    const auto first = static_cast<int64_t>(offset / width);
    const auto elems = static_cast<int64_t>(what.count);
    const auto of_first = first * static_cast<int64_t>(dtype_bytes(what.dtype));
    ShiftArgs shift{};
    shift.parameters = static_cast<char*>(what.parameter) - of_first;
    shift.scale = scale;
    shift.dtype = what.dtype;
    SLIMWIRE_TRY(move(api, *state, plan, residual, shift, first, first + elems, stream));
    SLIMWIRE_TRY(was_read(api, &unit, stream));
    return true;
}

Result<bool> StepAhead::return_parameter(const DeviceApi& api,
                                         const Communicator& state,
                                         void* parameter,
                                         cudaStream_t stream) {
    const auto found = kept_.find(parameter);
    if (found == kept_.end() || found->second.moved_bytes == 0) {
        return false;
    }
    const DeviceScope scope(api, state.device);
    Kept& kept = found->second;
    const uint64_t bytes = std::exchange(kept.moved_bytes, 0);
    SLIMWIRE_TRY(copy_on_device(api, parameter, kept.copy, bytes, stream, "a kept parameter"));
    SLIMWIRE_TRY(cuda_status(api, api.event_record(kept.returned, stream), "a kept parameter"));
    return true;
}

void StepAhead::release(const DeviceApi& api, Communicator* state, Retirement* left) noexcept {
    const auto give = [&](void* memory, uint64_t bytes) {
        if (memory != nullptr) {
            state->memory->give_back(state->device, bytes);
            left->add(memory);
        }
    };
    const auto end = [&](Unit& unit) {
        for (cudaEvent_t event : {unit.owed, unit.moved}) {
            if (event != nullptr) {
                left->after(event);
                tolerate(api, api.event_destroy(event));
            }
        }
        give(unit.memory, unit.bytes);
    };
    for (auto& [key, unit] : units_) {
        end(unit);
    }
    for (auto& [address, unit] : sums_) {
        end(*unit);
    }
    for (const std::unique_ptr<Unit>& unit : retired_) {
        end(*unit);
    }
    for (auto& [parameter, kept] : kept_) {
        if (kept.returned != nullptr) {
            left->after(kept.returned);
            tolerate(api, api.event_destroy(kept.returned));
        }
        give(kept.copy, kept.bytes);
    }
    left->add(std::exchange(shown_, {}));
    units_.clear();
    sums_.clear();
    retired_.clear();
    kept_.clear();
}

namespace {

// Where every rank's own residuals lie by the elements of its buffer.
std::string add_step_ahead(const PlanRequest& request, Plan* plan) {
    const std::optional<StepAheadRule> rule = step_ahead_rule(request.action);
    if (!rule.has_value() || plan->residual.bytes == 0) {
        return {};
    }
    if (plan->algorithm != Algorithm::kHierarchical) {
        plan->parts.push_back(std::make_shared<const SteppedAhead>(*rule));
        plan->reason += plan->signature.op == Op::kReduceScatter
                            ? ", gathers stepped ahead"
                            : ", stepped ahead where it is asked";
    } else {
        plan->reason += std::string(", no step_ahead with ") + algorithm_name(plan->algorithm);
    }
    return {};
}

std::unique_ptr<CallHook> make_step_ahead(const Policy& policy) {
    return policy.uses("step_ahead") ? std::make_unique<StepAhead>() : nullptr;
}

}  // namespace

const HookKind kStepAheadHook{add_step_ahead, nullptr, true, make_step_ahead};

}  // namespace slimwire
