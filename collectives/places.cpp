#include "collectives/places.h"

namespace slimwire {
namespace {

// There may be two of these for each rank: 40 KiB each.
constexpr StepLimits kMessageLimits{2048, 512, 64, 8};

}  // namespace

StepPlace CallPlaces::next(const CallFacts& facts, uint64_t group, CommStats* stats) {
    const bool message = is_point_to_point(facts.op);
    Sequence& sequence = message ? messages_
                                       .try_emplace({facts.root_or_peer, facts.op},
                                                    Sequence{StepDetector(kMessageLimits)})
                                       .first->second
                                 : collectives_;
    if (group != 0 && sequence.group != group) {
        sequence.detector.mark();
        sequence.group = group;
    }
    const StepPlace place = sequence.detector.next(call_signature(facts));
    stats->count_place(place.sure());
    if (!message) {
        stats->step_calls.store(sequence.detector.step_calls(), std::memory_order_relaxed);
        if (place.sure()) {
            stats->steps.store(place.step, std::memory_order_relaxed);
        }
    }
    return place;
}

void CallPlaces::drop(uint64_t group) {
    const auto rewind = [group](Sequence* sequence) {
        if (sequence->group == group) {
            sequence->detector.rewind();
            sequence->group = 0;
        }
    };
    rewind(&collectives_);
    for (auto& [whose, sequence] : messages_) {
        rewind(&sequence);
    }
}

}  // namespace slimwire
