// A listener that lets only those in who say a complete greeting in time. Used by the bootstrap
// root and by ranks that await their peers. Never blocks; a silent or hanging connection costs a
// descriptor for a minute and disturbs nobody. One thread at a time.
#pragma once

#include <algorithm>
#include <vector>

#include "tools/emulator/nccl/bootstrap/clock.h"
#include "tools/emulator/nccl/bootstrap/sockets.h"

namespace slimwire::emu {

template <class Greeting>
struct Guest {
    Socket socket;
    Greeting greeting{};
};

template <class Greeting>
class Doorkeeper {
  public:
    explicit Doorkeeper(Socket listener) noexcept : listener_(std::move(listener)) {}

    // Connections whose greeting has arrived since the last call. The caller judges the greeting.
    std::vector<Guest<Greeting>> arrivals();

    // Waits at most `timeout_ms` for something to happen here or on one of `watched`.
    void wait(int timeout_ms, const std::vector<int>& watched = {}) const {
        std::vector<int> all = watched;
        all.push_back(listener_.fd());
        for (const Waiting& waiting : waiting_) {
            if (has_bytes(waiting.socket, 1)) {
                timeout_ms = std::min(timeout_ms, 10);  // for the rest of its greeting
            } else {
                all.push_back(waiting.socket.fd());
            }
        }
        wait_readable(all, timeout_ms);
    }

  private:
    struct Waiting {
        Socket socket;
        uint64_t since_ns;
    };
    Socket listener_;
    std::vector<Waiting> waiting_;
};

template <class Greeting>
std::vector<Guest<Greeting>> Doorkeeper<Greeting>::arrivals() {
    constexpr uint64_t kPatienceNs = 60'000'000'000;
    for (Socket next = accept_waiting(listener_); next.valid(); next = accept_waiting(listener_)) {
        waiting_.push_back({std::move(next), now_ns()});
    }
    std::vector<Guest<Greeting>> arrived;
    std::vector<Waiting> still_waiting;
    for (Waiting& waiting : waiting_) {
        if (has_bytes(waiting.socket, sizeof(Greeting))) {
            Guest<Greeting> guest;
            guest.socket = std::move(waiting.socket);
            if (receive_all(guest.socket.fd(), &guest.greeting, sizeof(Greeting), 1000).ok()) {
                arrived.push_back(std::move(guest));
            }
        } else if (!hung_up(waiting.socket) && now_ns() - waiting.since_ns < kPatienceNs) {
            still_waiting.push_back(std::move(waiting));
        }
    }
    waiting_ = std::move(still_waiting);
    return arrived;
}

}  // namespace slimwire::emu
