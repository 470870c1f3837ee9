#include "collectives/adaptive/accordion.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "codecs/base/device_scope.h"
#include "codecs/base/own_stream.h"
#include "codecs/ops/sketch.h"
#include "collectives/call/training.h"
#include "collectives/communicator/communicator.h"

namespace slimwire {

std::optional<AccordionRule> accordion_rule(const Action& action) {
    const Value* said = action.find("accordion");
    if (said == nullptr) {
        return std::nullopt;
    }
    AccordionRule rule;
    rule.low = *said->find("low")->codec();
    rule.window = said->find("window")->count();
    rule.ratio_ppm = static_cast<uint32_t>(said->find("ratio")->real() * 1e6 + 0.5);
    rule.hysteresis = static_cast<uint32_t>(said->find("hysteresis")->count());
    for (const Value& drop : std::get<Value::List>(said->find("lr_drops")->held)) {
        rule.lr_drops.push_back(drop.count());
    }
    return rule;
}

bool AccordionControl::due() const noexcept {
    const uint64_t ended = calls_ / rule_->window;
    return ended > decided_ && calls_ - ended * rule_->window >= kLag;
}

AccordionDecision AccordionControl::decide(double energy, double buffers) noexcept {
    const uint64_t window = decided_++;
    // A window may have had fewer finite results than another: of the mean.
    const double square = buffers == 0 ? -1 : energy / buffers / buffers;
    const bool known = square >= 0 && square <= 1e300;  // false for NaN
    if (buffers > 0) {
        const double ratio = rule_->ratio_ppm * 1e-6;
        const double least = ratio < 1 ? (1 - ratio) * (1 - ratio) * before_ : -1;
        const bool quiet =
            known && before_ > 0 && square > least && square < (1 + ratio) * (1 + ratio) * before_;
        quiet_ = quiet ? quiet_ + 1 : 0;
        high_ = quiet_ >= rule_->hysteresis;
        before_ = known ? square : -1;
    }
    if (window < low_through_) {
        quiet_ = 0;
        high_ = false;
    }
    const AccordionDecision decision{window, known ? square : -1, high_};
    totals_.add(decision);
    return decision;
}

// Low from this call on, to the end of a whole window.
void AccordionControl::drop(uint64_t call) noexcept {
    const uint64_t window = call / rule_->window;
    low_through_ = call % rule_->window == 0 ? window : window + 1;
    quiet_ = 0;
    high_ = false;
    ++totals_.drops;
}

AccordionControl::Call AccordionControl::next(double learning_rate) noexcept {
    const uint64_t call = calls_++;
    if (std::binary_search(rule_->lr_drops.begin(), rule_->lr_drops.end(), call)) {
        drop(call);
    } else if (learning_rate <= 0.5 * rate_) {
        drop(call);
        rate_ = learning_rate;
    }
    if (learning_rate > rate_) {
        rate_ = learning_rate;
    }
    return {high_, call % rule_->window == 0, calls_ % rule_->window == 0};
}

void AccordionControl::save(RecordWriter* record) const {
    record->put(calls_);
    record->put(decided_);
    record->put(low_through_);
    record->put(rate_);
    record->put(before_);
    record->put(quiet_);
    record->put(static_cast<uint32_t>(high_));
}

bool AccordionControl::load(RecordReader* record) noexcept {
    AccordionControl loaded(*rule_);
    uint32_t high = 0;
    if (!record->get(&loaded.calls_) || !record->get(&loaded.decided_) ||
        !record->get(&loaded.low_through_) || !record->get(&loaded.rate_) ||
        !record->get(&loaded.before_) || !record->get(&loaded.quiet_) || !record->get(&high)) {
        return false;
    }
    loaded.high_ = high != 0;
    *this = std::move(loaded);
    return true;
}

namespace {

Status make_memory(const DeviceApi& api, Communicator* state, AccordionTensor* tensor) {
    if (tensor->copied != nullptr) {
        return {};
    }
    const DeviceScope device(api, state->device);
    void* memory = nullptr;
    if (tensor->sums == nullptr) {
        SLIMWIRE_TRY(
            cuda_status(api, api.malloc(&memory, sizeof(SketchState)), "accordion's sums"));
        tensor->sums = static_cast<SketchState*>(memory);
        if (state->memory != nullptr) {
            state->memory->take(state->device, sizeof(SketchState));  // planned (plan.cpp)
        }
    }
    if (tensor->copy == nullptr) {
        SLIMWIRE_TRY(
            cuda_status(api, api.host_alloc(&memory, sizeof(SketchState), 0), "accordion's copy"));
        tensor->copy = static_cast<SketchState*>(memory);
    }
    return cuda_status(api, api.event_create_with_flags(&tensor->copied, cudaEventDisableTiming),
                       "accordion's event");
}

// What was loaded for the tensor, whose memory no work uses yet.
Status go_on(const DeviceApi& api, std::span<const std::byte> bytes, AccordionTensor* tensor) {
    RecordReader record(bytes);
    AccordionControl control = tensor->control;
    SketchState sums;
    if (!control.load(&record) || !record.get(&sums) ||
        (control.waits() && !record.get(tensor->copy))) {
        return {};
    }
    constexpr const char* kWhat = "accordion's loaded sums";
    SLIMWIRE_TRY(on_own_stream(api, kWhat, [&](cudaStream_t own) {
        return cuda_status(
            api, api.memcpy_async(tensor->sums, &sums, sizeof sums, cudaMemcpyHostToDevice, own),
            kWhat);
    }));
    tensor->control = std::move(control);
    tensor->under_way = tensor->control.waits();
    return {};
}

}  // namespace

Result<AccordionCall> Accordions::next(const DeviceApi& api,
                                       Communicator* state,
                                       Progress* progress,
                                       Plan* plan,
                                       const StepPosition& place) {
    AccordionTensor& tensor =
        tensors_.try_emplace({plan, place.slot, place.ordinal}, *plan->accordion).first->second;
    if (tensor.path != place.path) {
        // A tensor of another step: what the one before was owed is gone, too.
        tensor.control = AccordionControl(*plan->accordion);
        tensor.path = place.path;
        tensor.under_way = false;
    }
    const bool first = tensor.copied == nullptr;
    SLIMWIRE_TRY(make_memory(api, state, &tensor));
    if (first) {
        const std::vector<std::byte> loaded =
            progress->take({state->checkpoint_key, plan->signature, place.path, place.ordinal},
                           StateKind::kAccordion);
        const DeviceScope device(api, state->device);
        SLIMWIRE_TRY(loaded.empty() ? Status() : go_on(api, loaded, &tensor));
    }
    ++progress->replicated_calls;
    if (tensor.control.due()) {
        if (!std::exchange(tensor.under_way, false)) {
            return Status(Code::kInvalidUsage,
                          "a tensor with 'accordion' in one group with its call of a step before, "
                          "whose result decides how it travels");
        }
        SLIMWIRE_TRY(
            cuda_status(api, api.event_synchronize(tensor.copied), "wait for a window's end"));
        const int parts = plan->signature.op == Op::kReduceScatter ? state->shape.ranks : 1;
        tensor.control.decide(sketch_energy(*tensor.copy),
                              static_cast<double>(tensor.copy->buffers) / parts);
        state->stats->update([&](CommStats&) {
            plan->stats->accordions[{place.slot, place.ordinal}] = tensor.control.totals();
        });
    }
    const double rate = training_state().learning_rate.load(std::memory_order_relaxed);
    return AccordionCall{&tensor, tensor.control.next(rate)};
}

Status Accordions::save(const Communicator& state,
                        const ReadMemory& read,
                        const KeepRecord& keep) const {
    for (const auto& [key, tensor] : tensors_) {
        if (tensor.copied == nullptr) {
            continue;  // its first call failed
        }
        RecordWriter record;
        tensor.control.save(&record);
        SketchState sums;
        SLIMWIRE_TRY(read(tensor.sums, std::as_writable_bytes(std::span(&sums, 1))));
        record.put(sums);
        if (tensor.control.waits()) {
            record.put(*tensor.copy);
        }
        keep({state.checkpoint_key, key.plan->signature, tensor.path, key.ordinal},
             StateKind::kAccordion, record.take());
    }
    return {};
}

void Accordions::release(const DeviceApi& api,
                         Communicator* state,
                         std::vector<void*>* left) noexcept {
    for (auto& [key, tensor] : tensors_) {
        if (tensor.sums != nullptr && state->memory != nullptr) {
            state->memory->give_back(state->device, sizeof(SketchState));
        }
        if (tensor.copied != nullptr) {
            tolerate(api, api.event_destroy(tensor.copied));
        }
        if (left != nullptr && tensor.sums != nullptr) {
            left->push_back(tensor.sums);  // and the copy's few bytes stay
            continue;
        }
        if (tensor.sums != nullptr) {
            tolerate(api, api.free(tensor.sums));
        }
        if (tensor.copy != nullptr) {
            tolerate(api, api.free_host(tensor.copy));
        }
    }
    tensors_.clear();
}

}  // namespace slimwire
