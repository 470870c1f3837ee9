// The steady clock in nanoseconds, since some time before the process.
#pragma once

#include <chrono>
#include <cstdint>

namespace slimwire {

[[nodiscard]] inline uint64_t steady_ns() noexcept {
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                     std::chrono::steady_clock::now().time_since_epoch())
                                     .count());
}

}  // namespace slimwire
