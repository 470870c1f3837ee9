#include "tools/demo_train/rendezvous.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tools/demo_train/error.h"

namespace demo {
namespace {

using Clock = std::chrono::steady_clock;

// What a rank says first; rank 0 answers with the block.
struct Greeting {
    uint32_t magic = kMagic;
    int32_t rank = 0;
    int32_t size = 0;
    static constexpr uint32_t kMagic = 0x64656d6f;
};

class Socket {
  public:
    Socket() = default;
    explicit Socket(int descriptor) : descriptor_(descriptor) {}
    Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
    Socket& operator=(Socket&& other) noexcept {
        std::swap(descriptor_, other.descriptor_);
        return *this;
    }
    ~Socket() {
        if (descriptor_ >= 0) {
            ::close(descriptor_);
        }
    }
    int get() const { return descriptor_; }
    bool valid() const { return descriptor_ >= 0; }

  private:
    int descriptor_ = -1;
};

bool wait_for(const Socket& socket, short events, Clock::time_point deadline) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd descriptor{socket.get(), events, 0};
    return left > 0 && ::poll(&descriptor, 1, static_cast<int>(left)) == 1;
}

// False on end of file, error or deadline.
bool send_all(const Socket& socket, std::span<const std::byte> bytes, Clock::time_point deadline) {
    while (!bytes.empty()) {
        if (!wait_for(socket, POLLOUT, deadline)) {
            return false;
        }
        const ssize_t sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (sent <= 0) {
            return false;
        }
        bytes = bytes.subspan(static_cast<size_t>(sent));
    }
    return true;
}

bool receive_all(const Socket& socket, std::span<std::byte> bytes, Clock::time_point deadline) {
    while (!bytes.empty()) {
        if (!wait_for(socket, POLLIN, deadline)) {
            return false;
        }
        const ssize_t got = ::recv(socket.get(), bytes.data(), bytes.size(), 0);
        if (got <= 0) {
            return false;
        }
        bytes = bytes.subspan(static_cast<size_t>(got));
    }
    return true;
}

std::string place_of(const World& world) {
    return world.master_address + ":" + world.master_port;
}

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses resolve(const World& world, bool listen) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = listen ? AI_PASSIVE : 0;
    addrinfo* list = nullptr;
    const bool all = listen && world.on_every_address;
    const int error = ::getaddrinfo(all ? nullptr : world.master_address.c_str(),
                                    world.master_port.c_str(), &hints, &list);
    if (error != 0) {
        throw TrainError("MASTER_ADDR:MASTER_PORT " + place_of(world) + ": " +
                         ::gai_strerror(error));
    }
    return {list, &::freeaddrinfo};
}

Socket listen_at(const World& world) {
    const Addresses addresses = resolve(world, true);
    int error = 0;
    for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
        Socket socket(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
        const int on = 1;
        if (socket.valid() &&
            ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
            ::bind(socket.get(), at->ai_addr, at->ai_addrlen) == 0 &&
            ::listen(socket.get(), world.size) == 0) {
            return socket;
        }
        error = errno;
    }
    throw TrainError("cannot listen on MASTER_ADDR:MASTER_PORT " + place_of(world) + ": " +
                     std::strerror(error) + "; choose a free MASTER_PORT");
}

Socket try_connect(const Addresses& addresses, int* error) {
    for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
        Socket socket(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
        if (socket.valid() && ::connect(socket.get(), at->ai_addr, at->ai_addrlen) == 0) {
            return socket;
        }
        *error = errno;
    }
    return {};
}

void serve(const World& world, std::span<const std::byte> block, Clock::time_point deadline) {
    const Socket listener = listen_at(world);
    std::vector<bool> came(static_cast<size_t>(world.size), false);
    int missing = world.size - 1;
    while (missing > 0) {
        if (!wait_for(listener, POLLIN, deadline)) {
            throw TrainError("waited at " + place_of(world) + " for " +
                             std::to_string(world.size - 1) + " ranks, " + std::to_string(missing) +
                             " did not come");
        }
        const Socket peer(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
        Greeting greeting;
        // A stranger that says nothing may hold the others up for a second, not for all the time.
        const auto patience = std::min(deadline, Clock::now() + std::chrono::seconds(1));
        if (!peer.valid() ||
            !receive_all(peer, std::as_writable_bytes(std::span(&greeting, 1)), patience) ||
            greeting.magic != Greeting::kMagic) {
            continue;
        }
        if (greeting.size != world.size || greeting.rank <= 0 || greeting.rank >= world.size ||
            came[static_cast<size_t>(greeting.rank)]) {
            throw TrainError("rank " + std::to_string(greeting.rank) + " of " +
                             std::to_string(greeting.size) + " came to " + place_of(world) +
                             ", where a world of " + std::to_string(world.size) +
                             " gathers: RANK or WORLD_SIZE differ, or another job uses the port");
        }
        if (send_all(peer, block, deadline)) {
            came[static_cast<size_t>(greeting.rank)] = true;
            --missing;
        }
    }
}

void ask(const World& world, std::span<std::byte> block, Clock::time_point deadline) {
    const Addresses addresses = resolve(world, false);
    int error = ETIMEDOUT;
    while (Clock::now() < deadline) {
        const Socket socket = try_connect(addresses, &error);
        Greeting greeting;
        greeting.rank = world.rank;
        greeting.size = world.size;
        if (socket.valid() && send_all(socket, std::as_bytes(std::span(&greeting, 1)), deadline) &&
            receive_all(socket, block, deadline)) {
            return;
        }
        if (socket.valid()) {
            error = ECONNRESET;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    throw TrainError("rank 0 did not answer at MASTER_ADDR:MASTER_PORT " + place_of(world) + ": " +
                     std::strerror(error));
}

int read_int(const char* name, int fallback, int low, int high) {
    const char* text = std::getenv(name);
    if (text == nullptr) {
        return fallback;
    }
    int value = 0;
    const char* end = text + std::strlen(text);
    const auto [stop, error] = std::from_chars(text, end, value);
    if (error != std::errc() || stop != end || value < low || value > high) {
        throw TrainError(std::string(name) + "='" + text + "': expected a number from " +
                         std::to_string(low) + " to " + std::to_string(high));
    }
    return value;
}

}  // namespace

World world_from_environment() {
    World world;
    world.size = read_int("WORLD_SIZE", 1, 1, 4096);
    if (world.size > 1 && std::getenv("RANK") == nullptr) {
        throw TrainError(
            "WORLD_SIZE is set and RANK is not: start one process a rank by a launcher");
    }
    world.rank = read_int("RANK", 0, 0, world.size - 1);
    world.local_rank = read_int("LOCAL_RANK", 0, 0, 4095);
    if (const char* address = std::getenv("MASTER_ADDR"); address != nullptr && *address != '\0') {
        world.master_address = address;
    }
    world.master_port = std::to_string(read_int("MASTER_PORT", 29400, 1, 65535));
    return world;
}

void exchange_from_rank0(const World& world,
                         std::span<std::byte> block,
                         std::chrono::milliseconds timeout) {
    if (world.size == 1) {
        return;
    }
    const auto deadline = Clock::now() + timeout;
    if (world.rank == 0) {
        serve(world, block, deadline);
    } else {
        ask(world, block, deadline);
    }
}

}  // namespace demo
