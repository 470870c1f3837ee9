#include "collectives/identity/tensor_slot.h"

namespace slimwire {
namespace {

// There may be two of these for each rank: 40 KiB each.
constexpr StepLimits kMessageLimits{2048, 512, 64, 8};

}  // namespace

StepPosition TensorSlots::next(const CallSignature& signature,
                               const ParameterRanges* bucket,
                               uint64_t group,
                               CommStats* stats) {
    const bool message = is_point_to_point(signature.op);
    Sequence& sequence = message ? messages_[{signature.root_or_peer, signature.op}] : collectives_;
    const uint64_t mark = training_->marks.load(std::memory_order_acquire);
    if (mark == 0 && !sequence.detector.has_value()) {
        sequence.detector.emplace(message ? kMessageLimits : StepLimits{});
    }
    if (group != 0 && sequence.group != group) {
        if (sequence.detector.has_value()) {
            sequence.detector->mark();
        }
        sequence.marked.begin_group();
        sequence.group = group;
    }
    const uint64_t hash = call_signature(signature);
    StepPosition place =
        mark == 0
            ? sequence.detector->next(hash, stream_call(signature))
            : sequence.marked.next(hash, mark, training_->step.load(std::memory_order_relaxed));
    if (!message) {
        stats->step_calls.store(
            mark == 0 ? sequence.detector->step_calls() : sequence.marked.step_calls(),
            std::memory_order_relaxed);
        if (mark != 0) {
            stats->steps.store(sequence.marked.steps(), std::memory_order_relaxed);
        } else if (place.known()) {
            stats->steps.store(place.step, std::memory_order_relaxed);
        }
    }
    if (mark == 0 && bucket != nullptr && bucket->path != 0) {
        place = {bucket->path, kTableSlot, 0, place.step, bucket->occurrence};
    }
    stats->count_place(place.known());
    return place;
}

void TensorSlots::drop(uint64_t group) {
    const auto rewind = [group](Sequence* sequence) {
        if (sequence->group == group) {
            if (sequence->detector.has_value()) {
                sequence->detector->rewind();
            }
            sequence->marked.rewind();
            sequence->group = 0;
        }
    };
    rewind(&collectives_);
    for (auto& [whose, sequence] : messages_) {
        rewind(&sequence);
    }
}

}  // namespace slimwire
