#include "plugin/net/engine/pace.h"

#include <algorithm>

namespace slimwire::net {
namespace {

constexpr int kSettling = 6;  // messages after a change that do not count
constexpr int kTrialMessages = kSettling + 4;
constexpr int kLeastInterval = 64;
constexpr int kMostInterval = 2048;
// What was measured fades: half of it is forgotten whenever it exceeds so many bytes.
constexpr double kMemoryBytes = 64 << 20;
// The other way must be better by this much to become the usual one.
constexpr double kMargin = 1.02;
constexpr double kHeadroom = 2;

}  // namespace

double Pace::goodput(Way way) const noexcept {
    return rate(measured_[static_cast<size_t>(way)]);
}

bool Pace::better(Way way, Way than) const noexcept {
    if (goodput(way) == 0 || goodput(than) == 0) {
        return false;
    }
    const bool keeps_up = rate(encoded_) == 0 || rate(encoded_) > kHeadroom * goodput(kRaw);
    if (!keeps_up) {
        return way == kRaw;
    }
    return goodput(way) > kMargin * goodput(than);
}

Pace::Choice Pace::choose() noexcept {
    const Way way = next();
    alike_ = way == last_ ? std::min(alike_ + 1, kSettling) : 0;
    last_ = way;
    return {way, alike_ >= kSettling};
}

Pace::Way Pace::next() noexcept {
    const Way other = current_ == kCoded ? kRaw : kCoded;
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
        measured_[static_cast<size_t>(other)] = {};
        return other;
    }
    return current_;
}

void Pace::finished(Choice choice, size_t bytes, uint64_t began_ns, uint64_t ended_ns) noexcept {
    const uint64_t begin = std::max(began_ns, last_end_ns_);
    last_end_ns_ = std::max(ended_ns, last_end_ns_);
    if (choice.counts) {
        add(&measured_[static_cast<size_t>(choice.way)], static_cast<double>(bytes),
            static_cast<double>(ended_ns > begin ? ended_ns - begin : 1));
    }
}

void Pace::encoded(size_t bytes, uint64_t ns, int threads) noexcept {
    add(&encoded_, static_cast<double>(bytes) * std::max(threads, 1),
        static_cast<double>(std::max<uint64_t>(ns, 1)));
}

void Pace::add(Measure* measure, double bytes, double ns) noexcept {
    measure->bytes += bytes;
    measure->busy_ns += ns;
    if (measure->bytes > kMemoryBytes) {
        measure->bytes /= 2;
        measure->busy_ns /= 2;
    }
}

}  // namespace slimwire::net
