#include "plugin/net/engine/benefit.h"

#include <algorithm>

namespace slimwire::net {
namespace {

constexpr int kSettling = 6;  // messages after a change that do not count
constexpr int kTrialMessages = kSettling + 4;
constexpr int kLeastInterval = 64;
constexpr int kMostInterval = 2048;
// What was measured fades: half of it is forgotten whenever it exceeds so many bytes.
constexpr double kMemoryBytes = 32 << 20;
// The other way must be better by this much to become the usual one.
constexpr double kMargin = 1.02;
constexpr double kHeadroom = 2;

}  // namespace

// --- Meter

void Meter::Measure::add(double more_bytes, double more_ns) noexcept {
    bytes += more_bytes;
    busy_ns += more_ns;
    if (bytes > kMemoryBytes) {
        bytes /= 2;
        busy_ns /= 2;
    }
}

uint64_t Meter::finished(Way way, size_t bytes, uint64_t began_ns, uint64_t ended_ns) noexcept {
    const uint64_t begin = std::max(began_ns, last_end_ns_);
    last_end_ns_ = std::max(ended_ns, last_end_ns_);
    alike_ = way == last_ ? std::min(alike_ + 1, kSettling) : 0;
    last_ = way;
    if (alike_ < kSettling) {
        return 0;
    }
    const uint64_t busy_ns = ended_ns > begin ? ended_ns - begin : 1;
    measured_[static_cast<size_t>(way)].add(static_cast<double>(bytes),
                                            static_cast<double>(busy_ns));
    return busy_ns;
}

double Meter::goodput(Way way) const noexcept {
    return measured_[static_cast<size_t>(way)].rate();
}

// --- Benefit

void Benefit::heard(double raw, double coded) noexcept {
    heard_ = {raw, coded};
}

void Benefit::encoded(size_t bytes, uint64_t ns, int threads) noexcept {
    encoded_.add(static_cast<double>(bytes) * std::max(threads, 1),
                 static_cast<double>(std::max<uint64_t>(ns, 1)));
}

double Benefit::goodput(Way way) const noexcept {
    const bool told = heard_[0] > 0 || heard_[1] > 0;
    return told ? heard_[static_cast<size_t>(way)] : own_.goodput(way);
}

bool Benefit::better(Way way, Way than) const noexcept {
    if (goodput(way) == 0 || goodput(than) == 0) {
        return false;
    }
    const bool told = heard_[0] > 0 || heard_[1] > 0;
    if (!told && encoded_.rate() > 0 && encoded_.rate() < kHeadroom * goodput(Way::kRaw)) {
        return way == Way::kRaw;
    }
    return goodput(way) > kMargin * goodput(than);
}

Way Benefit::choose() noexcept {
    const Way other = current_ == Way::kCoded ? Way::kRaw : Way::kCoded;
    if (trial_left_ > 0) {
        if (--trial_left_ > 0) {
            return other;
        }
        // The trial is over: its last messages may still be under way, which the next one sees.
        interval_ = std::min(4 * interval_, kMostInterval);
        left_ = interval_;
    }
    if (better(other, current_)) {
        current_ = other;
        interval_ = kLeastInterval;
        left_ = interval_;
        return current_;
    }
    if (--left_ <= 0 && goodput(current_) > 0) {
        trial_left_ = kTrialMessages;
        own_.forget(other);
        return other;
    }
    return current_;
}

}  // namespace slimwire::net
