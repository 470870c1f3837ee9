#include "collectives/algorithms/held_masks.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "codecs/low_rank/learn.h"
#include "codecs/ops/advance.h"
#include "collectives/algorithms/exchange.h"
#include "collectives/call/log.h"
#include "collectives/communicator/communicator.h"
#include "collectives/communicator/device_memory.h"
#include "collectives/plan/plan.h"

namespace slimwire {
namespace {

// Once per communicator and process.
void warn_of(uint32_t misses, const Communicator& state, bool own) {
    if (own) {
        const std::string where = log_prefix(state);
        log_once(LogLevel::kWarn, where + " masks",
                 where + ": gradients came as zeros, their masks were not held: " +
                     std::to_string(misses) +
                     " so far (missed_masks of the report); unless one of the two ranks says that "
                     "it has no room, the rule's 'pairing' should say the "
                     "schedule: \"fifo\", \"lifo\" or how many chunks a stage has, at most " +
                     std::to_string(HeldMasks::kMost) +
                     " activations wait, and steps with more micro-batches than those before are "
                     "told by slimwire_mark_step");
    }
}

}  // namespace

Result<void*> allocate_held(const BeforeCall& before,
                            Communicator* state,
                            uint64_t bytes,
                            bool shared) {
    void* memory = nullptr;
    DeviceMemory& of_devices = *state->device_memory;
    const int device = state->device;
    if (shared) {
        state->memory->take(device, bytes);
    } else if (!state->memory->reserve(device, bytes)) {
        return memory;
    }
    const uint64_t home = state->objects.home;
    const cudaError_t allocated =
        shared ? of_devices.allocate_anyhow(before.api, device, bytes, &memory, home)
               : of_devices.allocate(before.api, device, bytes, &memory, home);
    if (allocated == cudaSuccess) {
        return memory;
    }
    state->memory->give_back(device, bytes);
    if (shared || allocated != cudaErrorMemoryAllocation) {
        return cuda_status(before.api, allocated, "masks of messages");
    }
    tolerate(before.api, allocated);
    return static_cast<void*>(nullptr);
}

void HeldMasks::drop(const BeforeCall& before, Communicator* state, const Mask& mask) noexcept {
    Retirement left(state->device_memory, before.api, state->device);
    if (before.objects->chained) {
        left.after(before.objects->chain);
    }
    left.add(mask.memory);
    held_bytes_ -= mask.bytes;
    state->memory->give_back(state->device, mask.bytes);
}

void HeldMasks::begin_step(const BeforeCall& before, Communicator* state, uint64_t first) noexcept {
    const uint64_t former = std::exchange(first_, first);
    std::erase_if(masks_, [&](const Mask& mask) {
        const bool unused = first != former && mask.number < former;
        if (unused) {
            drop(before, state, mask);
        }
        return unused;
    });
}

Result<void*> HeldMasks::keep(const BeforeCall& before,
                              Communicator* state,
                              const CallSignature& signature,
                              uint64_t number,
                              uint64_t first,
                              uint64_t bytes) {
    begin_step(before, state, first);
    const auto is_free = [&](const Mask& mask) { return mask.answered || mask.number < first; };
    auto place = std::find_if(masks_.begin(), masks_.end(), [&](const Mask& mask) {
        return is_free(mask) && mask.bytes >= bytes;
    });
    place = place == masks_.end() ? std::find_if(masks_.begin(), masks_.end(), is_free) : place;
    if (place == masks_.end() && masks_.size() == kMost) {
        place = std::min_element(
            masks_.begin(), masks_.end(),
            [](const Mask& left, const Mask& right) { return left.number < right.number; });
    }
    if (place == masks_.end() || place->bytes < bytes) {
        if (place != masks_.end()) {
            if (!is_free(*place)) {  // an answer of the same group may read it
                return static_cast<void*>(nullptr);
            }
            drop(before, state, *place);
            masks_.erase(place);
        }
        SLIMWIRE_TRY_ASSIGN(void* const memory, allocate_held(before, state, bytes));
        if (memory == nullptr) {
            const std::string where = log_prefix(*state);
            log_once(LogLevel::kWarn, where + " room for masks",
                     where + ": no room for " + std::to_string(bytes) +
                         " bytes that a message keeps until its answer comes: gradients come as "
                         "zeros until they have positions of their own; the device is full, or "
                         "SLIMWIRE_MAX_MEMORY is too small");
            return memory;
        }
        held_bytes_ += bytes;
        place = masks_.insert(masks_.end(), Mask{.memory = memory, .bytes = bytes});
    }
    place->number = number;
    place->count = signature.count;
    place->dtype = signature.dtype;
    place->answered = false;
    return place->memory;
}

const void* HeldMasks::find(uint64_t number) const noexcept {
    const auto found = std::find_if(masks_.begin(), masks_.end(),
                                    [&](const Mask& mask) { return mask.number == number; });
    return found == masks_.end() ? nullptr : found->memory;
}

void HeldMasks::answered(uint64_t number) noexcept {
    for (Mask& mask : masks_) {
        mask.answered |= mask.number == number;
    }
}

int32_t HeldMasks::offer(const CallSignature& signature,
                         uint32_t* numbers,
                         const void** masks) const noexcept {
    int32_t held = 0;
    for (const Mask& mask : masks_) {
        if (mask.count == signature.count && mask.dtype == signature.dtype) {
            numbers[held] = static_cast<uint32_t>(mask.number);
            masks[held++] = mask.memory;
        }
    }
    return held;
}

Result<uint32_t*> HeldMasks::misses(const BeforeCall& before, Communicator* state) {
    if (misses_ == nullptr) {
        SLIMWIRE_TRY_ASSIGN(void* const word, allocate_held(before, state, sizeof(uint32_t), true));
        held_bytes_ += sizeof(uint32_t);
        misses_ = static_cast<uint32_t*>(word);
        SLIMWIRE_TRY(
            clear_on_device(before.api, word, sizeof(uint32_t), before.stream, "counter of masks"));
    }
    return misses_;
}

std::shared_ptr<HostValue> HeldMasks::sample(Communicator* state, uint64_t number, bool own) {
    own_ = own;
    if (number < next_sample_) {
        return nullptr;
    }
    next_sample_ = (number / kSampled + 1) * kSampled;
    read(state);
    samples_.push_back({number, std::make_shared<HostValue>(offsetof(MaskTrailer, non_finite))});
    return samples_.back().value;
}

void HeldMasks::read(Communicator* state) {
    while (!samples_.empty() && samples_.front().value->there.load(std::memory_order_acquire)) {
        MaskTrailer said{};
        std::memcpy(&said, samples_.front().value->bytes.data(), offsetof(MaskTrailer, non_finite));
        const uint32_t misses = said.misses;
        if (own_) {
            state->stats->missed_masks.fetch_add(misses - std::exchange(counted_, misses),
                                                 std::memory_order_relaxed);
        }
        if (misses > 0 && !explicit_from_.has_value()) {
            explicit_from_ = samples_.front().number + said.number + kLag;
            warn_of(misses, *state, own_);
        }
        samples_.pop_front();
    }
}

Result<bool> HeldMasks::explicit_positions(const DeviceApi& api,
                                           Communicator* state,
                                           uint64_t number) {
    read(state);
    if (!explicit_from_.has_value() && !samples_.empty() &&
        samples_.front().number + kLag <= number) {
        SLIMWIRE_TRY(await_value(api, *state, state->objects.copies, *samples_.front().value,
                                 "what messages say of their answers"));
        read(state);
    }
    return explicit_from_.has_value() && number >= *explicit_from_;
}

void HeldMasks::release(Communicator* state, Retirement* left) noexcept {
    for (const Mask& mask : std::exchange(masks_, {})) {
        left->add(mask.memory);
    }
    left->add(std::exchange(misses_, nullptr));
    if (held_bytes_ > 0) {
        state->memory->give_back(state->device, std::exchange(held_bytes_, 0));
    }
}

Status write_trailer(const ExchangeContext& context,
                     const PairUse* use,
                     char* trailer,
                     bool answers) {
    const auto word = [&](size_t offset) { return reinterpret_cast<uint32_t*>(trailer + offset); };
    SLIMWIRE_TRY(clear_on_device(context.api, trailer, sizeof(MaskTrailer), context.work,
                                 "trailer of a message"));
    uint64_t number = answers ? kNoMask : 0;
    if (use != nullptr && (!answers || use->answered != nullptr)) {
        number = answers ? *use->place.answers : use->place.behind;
    }
    const AdvanceArgs from_zero{word(offsetof(MaskTrailer, number)), static_cast<uint32_t>(number)};
    SLIMWIRE_TRY(number == 0 ? Status() : enqueue(context.api, from_zero, context.work));
    return answers || use == nullptr || use->misses == nullptr
               ? Status()
               : copy_on_device(context.api, word(offsetof(MaskTrailer, misses)), use->misses,
                                sizeof(uint32_t), context.work, "trailer of a message");
}

Status keep_forward(const ExchangeContext& context,
                    const PairUse* use,
                    const void* from,
                    uint64_t bytes,
                    const char* trailer) {
    if (use != nullptr && use->kept != nullptr) {
        SLIMWIRE_TRY(copy_on_device(context.api, use->kept, from, bytes, context.work,
                                    "what is kept of a message"));
    }
    return use == nullptr || use->sample == nullptr
               ? Status()
               : context.state.objects.copies.to_host(context.api, trailer, use->sample,
                                                      context.work);
}

Status take_answered(const ExchangeContext& context, char* trailer, void* to, uint64_t bytes) {
    const PairUse* const use = context.pairs;
    TakeKeptArgs args{};
    args.number = reinterpret_cast<uint32_t*>(trailer + offsetof(MaskTrailer, number));
    args.output = to;
    args.bytes = static_cast<int64_t>((bytes + 15) / 16 * 16);
    args.misses = reinterpret_cast<uint32_t*>(trailer + offsetof(MaskTrailer, zero));
    if (use != nullptr) {
        args.held = use->masks->offer(context.plan.signature, args.numbers, args.kept);
        args.misses = use->misses;
    }
    return enqueue(context.api, args, context.work);
}

}  // namespace slimwire
