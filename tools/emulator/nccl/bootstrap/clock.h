// Time and waiting for threads that drive the emulator's transport. More ranks than cores is the
// normal case, so nobody spins: a waiting thread yields a little, then sleeps; when the shaped link
// knows the next moment at which something completes, it sleeps until then.
#pragma once

#include <cstdint>

namespace slimwire::emu {

// CLOCK_MONOTONIC, common to all processes of a machine.
[[nodiscard]] uint64_t now_ns() noexcept;

// Sleeps until `deadline_ns` with microsecond accuracy (lowers this thread's timer slack once).
void sleep_until_ns(uint64_t deadline_ns) noexcept;

// The earliest moment at which a request tested by this thread can complete, as far as the link's
// clock knows. take_wake_hint returns 0 when nothing was said since the last call.
void hint_wake_at(uint64_t deadline_ns) noexcept;
[[nodiscard]] uint64_t take_wake_hint() noexcept;

// Idle behaviour of one polling loop.
class Waiter {
  public:
    // Something moved since the last call.
    void progressed() noexcept;
    // Nothing moved: give the core away, for as long as seems useful.
    void idle() noexcept;
    [[nodiscard]] uint64_t idle_ns() const noexcept { return idle_ns_; }

  private:
    uint64_t idle_since_ns_ = 0;
    uint64_t idle_ns_ = 0;
    int yields_ = 0;
};

}  // namespace slimwire::emu
