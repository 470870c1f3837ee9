#include "tools/emulator/nccl/bootstrap/clock.h"

#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>

namespace slimwire::emu {
namespace {

constexpr int kYields = 100;
constexpr uint64_t kShortSleepNs = 20'000;
constexpr uint64_t kLongSleepNs = 500'000;
// A deadline known from the shaped link may be passed by other events; look again after this share
// of the time already spent idle.
constexpr uint64_t kHintedSleepNs = 100'000;

thread_local uint64_t t_wake_hint_ns = 0;
thread_local bool t_slack_lowered = false;

}  // namespace

uint64_t now_ns() noexcept {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

void sleep_until_ns(uint64_t deadline_ns) noexcept {
    if (!t_slack_lowered) {
        t_slack_lowered = true;
        prctl(PR_SET_TIMERSLACK, 1000);
    }
    timespec when{};
    when.tv_sec = static_cast<time_t>(deadline_ns / 1'000'000'000u);
    when.tv_nsec = static_cast<long>(deadline_ns % 1'000'000'000u);
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, nullptr);
}

void hint_wake_at(uint64_t deadline_ns) noexcept {
    if (t_wake_hint_ns == 0 || deadline_ns < t_wake_hint_ns) {
        t_wake_hint_ns = deadline_ns;
    }
}

uint64_t take_wake_hint() noexcept {
    const uint64_t hint = t_wake_hint_ns;
    t_wake_hint_ns = 0;
    return hint;
}

void Waiter::progressed() noexcept {
    idle_since_ns_ = 0;
    idle_ns_ = 0;
    yields_ = 0;
    (void)take_wake_hint();
}

void Waiter::idle() noexcept {
    const uint64_t now = now_ns();
    if (idle_since_ns_ == 0) {
        idle_since_ns_ = now;
    }
    idle_ns_ = now - idle_since_ns_;
    const uint64_t hint = take_wake_hint();
    if (hint != 0) {
        if (hint <= now) {
            sched_yield();
            return;
        }
        sleep_until_ns(std::min(hint, now + std::max(kHintedSleepNs, idle_ns_ / 4)));
        return;
    }
    if (yields_ < kYields) {
        ++yields_;
        sched_yield();
        return;
    }
    sleep_until_ns(now + std::clamp(idle_ns_ / 8, kShortSleepNs, kLongSleepNs));
}

}  // namespace slimwire::emu
