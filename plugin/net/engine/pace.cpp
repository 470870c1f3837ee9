#include "plugin/net/engine/pace.h"

#include <algorithm>

namespace slimwire::net {
namespace {

constexpr int kTrialMessages = 4;
constexpr int kLeastInterval = 64;
constexpr int kMostInterval = 2048;
// What was measured fades: half of it is forgotten whenever it exceeds so many bytes.
constexpr double kMemoryBytes = 64 << 20;
// The other way must be better by this much to become the usual one.
constexpr double kMargin = 1.02;

}  // namespace

double Pace::goodput(Way way) const noexcept {
    const Measure& measure = measured_[static_cast<size_t>(way)];
    return measure.busy_ns > 0 ? measure.bytes / measure.busy_ns * 1e9 : 0;
}

Pace::Way Pace::choose() noexcept {
    const Way other = current_ == kCoded ? kRaw : kCoded;
    if (trial_left_ > 0) {
        if (--trial_left_ > 0) {
            return other;
        }
        // The trial is over: its last messages may still be under way, which the next one sees.
        interval_ = std::min(2 * interval_, kMostInterval);
        left_ = interval_;
    }
    if (goodput(other) > kMargin * goodput(current_) && goodput(current_) > 0) {
        current_ = other;
        interval_ = kLeastInterval;
        left_ = interval_;
        return current_;
    }
    if (--left_ <= 0 && goodput(current_) > 0) {
        trial_left_ = kTrialMessages;
        measured_[static_cast<size_t>(other)] = {};
        return other;
    }
    return current_;
}

void Pace::finished(Way way, size_t bytes, uint64_t began_ns, uint64_t ended_ns) noexcept {
    const uint64_t begin = std::max(began_ns, last_end_ns_);
    last_end_ns_ = std::max(ended_ns, last_end_ns_);
    Measure& measure = measured_[static_cast<size_t>(way)];
    measure.bytes += static_cast<double>(bytes);
    measure.busy_ns += static_cast<double>(ended_ns > begin ? ended_ns - begin : 1);
    if (measure.bytes > kMemoryBytes) {
        measure.bytes /= 2;
        measure.busy_ns /= 2;
    }
}

}  // namespace slimwire::net
