// The engine's clock: steady, in nanoseconds.
#pragma once

#include <chrono>
#include <cstdint>

namespace slimwire::net {

[[nodiscard]] inline uint64_t now_ns() noexcept {
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                     std::chrono::steady_clock::now().time_since_epoch())
                                     .count());
}

}  // namespace slimwire::net
