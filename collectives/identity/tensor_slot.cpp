#include "collectives/identity/tensor_slot.h"

namespace slimwire {
namespace {

// There may be two of these for each rank: 40 KiB each at most.
constexpr StepLimits kMessageLimits{2048, 512, 64, 8};

}  // namespace

StepPosition MarkedStep::next(uint64_t signature, uint64_t mark, uint64_t step) {
    if (mark_ != mark) {
        if (mark_ != 0) {
            step_calls_ = calls_;
            ++steps_;
        }
        mark_ = mark;
        calls_ = 0;
        group_.clear();
        // Of counts that never repeat only those of one step are kept.
        if (counts_.size() > kMostCalls) {
            counts_.clear();
        }
    }
    if (calls_ >= kMostCalls) {
        return {};
    }
    ++calls_;
    Count& count = counts_[signature];
    if (count.mark != mark) {
        count = {mark, 0};
    }
    group_.push_back(signature);
    const uint32_t occurrence = count.calls++;
    return {kMarkedPath, kMarkedSlot, occurrence, step, occurrence};
}

void MarkedStep::rewind() {
    for (const uint64_t signature : group_) {
        --counts_[signature].calls;
        --calls_;
    }
    group_.clear();
}

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
        sequence.trusted_before = sequence.trusted;
        sequence.calls_before = sequence.calls;
        sequence.group = group;
    }
    const uint64_t hash = call_signature(signature);
    const StreamCall kind = stream_call(signature);
    StepPosition place =
        mark == 0
            ? sequence.detector->next(hash, kind)
            : sequence.marked.next(hash, mark, training_->step.load(std::memory_order_relaxed));
    ++sequence.calls;
    if (mark == 0 && sequence.trusted.has_value()) {
        place = follow(&sequence, hash, kind, place);
    }
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

TensorSlots::Gathered TensorSlots::gathered() const noexcept {
    if (const std::optional<Trusted>& step = collectives_.trusted; step.has_value()) {
        return {step->step, step->calls, step->path};
    }
    if (!collectives_.detector.has_value()) {
        return {};
    }
    const GatheredSteps& found = collectives_.detector->gathered();
    return {found.steps(), found.calls, found.path};
}

void TensorSlots::trust(uint64_t first, uint32_t step_calls, uint64_t path) {
    const uint64_t since = collectives_.calls - first;
    const std::optional<StepDetector>& detector = collectives_.detector;
    if (!detector.has_value() || since == 0 || since > StepLimits().history) {
        return;
    }
    collectives_.trusted = {detector->before(since - 1), path, step_calls, 0, 0};
    for (uint64_t back = since; back-- > 0 && collectives_.trusted.has_value();) {
        (void)follow(&collectives_, detector->before(back), detector->kind_before(back), {});
    }
}

// The step's call by its occurrence, as the repetition will say.
StepPosition TensorSlots::follow(Sequence* sequence,
                                 uint64_t hash,
                                 StreamCall kind,
                                 const StepPosition& repeated) {
    Trusted& step = *sequence->trusted;
    if (step.position == step.calls) {
        if (kind == StreamCall::kStartUp && hash != step.first) {
            return repeated;  // between steps
        }
        step.position = 0;
        ++step.step;
    }
    const bool begins = step.position++ == 0;
    if (repeated.known() || (begins && hash != step.first)) {
        sequence->trusted.reset();
        return repeated;
    }
    StepPosition place = sequence->marked.next(hash, step.step + 1, step.step);
    place.path = step.path;
    place.slot = 0;  // what the first step that is found gets
    place.begins = begins;
    return place;
}

void TensorSlots::drop(uint64_t group) {
    const auto rewind = [group](Sequence* sequence) {
        if (sequence->group == group) {
            if (sequence->detector.has_value()) {
                sequence->detector->rewind();
            }
            sequence->marked.rewind();
            sequence->trusted = sequence->trusted_before;
            sequence->calls = sequence->calls_before;
            sequence->group = 0;
        }
    };
    rewind(&collectives_);
    for (auto& [whose, sequence] : messages_) {
        rewind(&sequence);
    }
}

}  // namespace slimwire
