// What step_ahead.h keeps of units from one process to the next (FORMAT.md, "Saved state").
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "collectives/feedback/step_ahead.h"
#include "collectives/identity/tensor_slot.h"

namespace slimwire {
namespace {

constexpr StateKind kUnitRecord{7}, kPairsRecord{8};

LastingTensor pairs_of(const Communicator& communicator) noexcept {
    return {communicator.checkpoint_key, {}, kMarkedPath, 0};
}

// The begin of a unit's record; behind it come StepSize, parameters and gradients, those that the
// unit has.
struct UnitRecord {
    uint32_t dtype = 0;
    uint8_t owes = 0, has_step = 0, has_before = 0, has_reduced = 0;
};

uint64_t shard_bytes(const StepAhead::Unit& unit, DType dtype) noexcept {
    return unit.plan->signature.count * dtype_bytes(dtype);
}

}  // namespace

Status StepAhead::save(const Communicator& communicator,
                       const ReadMemory& read,
                       const KeepRecord& keep) const {
    const std::vector<uint64_t> pairs = pairs_.save();
    if (units_.empty()) {
        return {};
    }
    RecordWriter learned;
    for (const uint64_t number : pairs) {
        learned.put(number);
    }
    keep(pairs_of(communicator), kPairsRecord, learned.take());
    for (const auto& [key, unit] : units_) {
        const LastingTensor tensor{communicator.checkpoint_key, unit.plan->signature,
                                   unit.tensor.path, unit.tensor.key.ordinal};
        if (!unit.loaded.empty()) {
            keep(tensor, kUnitRecord, unit.loaded);
            continue;
        }
        const UnitRecord of{static_cast<uint32_t>(unit.dtype), unit.owes, unit.memory != nullptr,
                            unit.has_before, unit.has_reduced};
        RecordWriter record;
        record.put(of);
        std::vector<std::byte> bytes = record.take();
        const auto add = [&](bool has, const void* memory, uint64_t size) {
            if (!has) {
                return Status();
            }
            bytes.resize(bytes.size() + size);
            return read(memory, std::span(bytes).last(size));
        };
        SLIMWIRE_TRY(add(of.has_step != 0, unit.step, sizeof(StepSize)));
        SLIMWIRE_TRY(add(unit.has_before, unit.before, shard_bytes(unit, unit.dtype)));
        SLIMWIRE_TRY(
            add(unit.has_reduced, unit.reduced, shard_bytes(unit, unit.plan->signature.dtype)));
        keep(tensor, kUnitRecord, std::move(bytes));
    }
    return {};
}

void StepAhead::resume(const CallSite& site, uint32_t models, const PlanOf& plan_of) {
    const Communicator& communicator = site.communicator;
    const std::vector<std::byte> learned = site.progress.take(pairs_of(communicator), kPairsRecord);
    std::vector<uint64_t> pairs(learned.size() / sizeof(uint64_t));
    std::memcpy(pairs.data(), learned.data(), pairs.size() * sizeof(uint64_t));
    if (!pairs_.go_on(pairs)) {
        return;
    }
    std::vector<LastingTensor> known;
    for (const auto& [of, bytes] : site.progress.waiting) {
        if (of.second == kUnitRecord) {
            known.push_back(of.first);
        }
    }
    for (const LastingTensor& tensor : known) {
        std::vector<std::byte> bytes = site.progress.take(tensor, kUnitRecord);
        const PlanEntry* const entry = plan_of(tensor.signature);
        UnitRecord of;
        if (entry == nullptr || entry->plan->part<SteppedAhead>() == nullptr ||
            !RecordReader(bytes).get(&of)) {
            continue;
        }
        Unit& unit = units_[unit_key(tensor.signature, tensor.ordinal)];
        unit.plan = entry->plan.get();
        unit.stats = entry->stats;
        const StepPosition place{kMarkedPath, kMarkedSlot, tensor.ordinal, 0, tensor.ordinal};
        unit.tensor =
            identify(communicator.state_key, {.signature = tensor.signature}, true, place, models);
        unit.owes = of.owes != 0;
        unit.loaded = std::move(bytes);
    }
}

Status StepAhead::take_up(const DeviceApi& api,
                          Communicator* state,
                          ResidualStore* residuals,
                          cudaStream_t stream,
                          Unit* unit) {
    const std::vector<std::byte> loaded = std::exchange(unit->loaded, {});
    const ResidualLayout& layout = unit->plan->residual;
    SLIMWIRE_TRY(residuals
                     ->get({api, &state->objects, stream}, state->device, unit->tensor,
                           layout.bytes,
                           {state->checkpoint_key, layout.shape, false, unit->plan, state})
                     .status());
    const ResidualStore::Held held = residuals->held(state->state_key);
    state->stats->residual_bytes = held.bytes;
    state->stats->residual_tensors = held.tensors;
    UnitRecord of;
    (void)RecordReader(loaded).get(&of);
    const auto dtype = static_cast<DType>(of.dtype);
    const uint64_t before = of.has_before != 0 ? shard_bytes(*unit, dtype) : 0;
    const uint64_t reduced =
        of.has_reduced != 0 ? shard_bytes(*unit, unit->plan->signature.dtype) : 0;
    if (of.has_step == 0 || of.dtype >= kDTypeCount ||
        loaded.size() != sizeof of + sizeof(StepSize) + before + reduced) {
        return {};
    }
    SLIMWIRE_TRY(make_memory(api, state, unit));
    if (unit->memory == nullptr) {
        return {};
    }
    show(unit);
    const std::byte* from = loaded.data() + sizeof of;
    const auto give = [&](void* to, uint64_t size) {
        const std::shared_ptr<std::byte[]> kept(new std::byte[size]);
        std::copy_n(from, size, kept.get());
        from += size;
        return size == 0 ? Status() : state->objects.copies.to_device(api, to, kept, size, stream);
    };
    SLIMWIRE_TRY(give(unit->step, sizeof(StepSize)));
    SLIMWIRE_TRY(give(unit->before, before));
    SLIMWIRE_TRY(give(unit->reduced, reduced));
    unit->dtype = dtype;
    unit->has_before = before > 0;
    unit->has_reduced = reduced > 0;
    return {};
}

}  // namespace slimwire
