#include "collectives/identity/step_marks.h"

namespace slimwire {

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

void MarkedStep::begin_group() {
    group_.clear();
}

void MarkedStep::rewind() {
    for (const uint64_t signature : group_) {
        --counts_[signature].calls;
        --calls_;
    }
    group_.clear();
}

}  // namespace slimwire
