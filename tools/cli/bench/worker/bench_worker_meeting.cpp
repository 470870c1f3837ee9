#include "tools/cli/bench/worker/bench_worker_meeting.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace slimwire::bench {
namespace {

struct Greeting {
    char magic[8];
    int32_t rank;
};
constexpr int kPatienceS = 60;
constexpr char kMagic[8] = {'s', 'w', 'b', 'e', 'n', 'c', 'h', '1'};

bool transfer(int fd, void* data, size_t size, bool send) {
    auto* at = static_cast<char*>(data);
    while (size > 0) {
        const ssize_t n = send ? ::send(fd, at, size, MSG_NOSIGNAL) : ::recv(fd, at, size, 0);
        if (n <= 0) {
            return false;
        }
        at += n;
        size -= static_cast<size_t>(n);
    }
    return true;
}

void serve_id(int port, int ranks, ncclUniqueId* id) {
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    address.sin_port = htons(static_cast<uint16_t>(port));
    if (::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(listener, ranks) != 0) {
        stop("port " + std::to_string(port) + ": " + std::strerror(errno) +
             "; choose another --port");
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(kPatienceS);
    for (int served = 1; served < ranks;) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
            end - std::chrono::steady_clock::now());
        pollfd waiting{listener, POLLIN, 0};
        if (left.count() <= 0 || ::poll(&waiting, 1, static_cast<int>(left.count())) == 0) {
            stop(std::to_string(ranks - served) + " of " + std::to_string(ranks) +
                 " ranks did not come in " + std::to_string(kPatienceS) +
                 " s: start this on every rank, or add --ranks to measure emulated ones");
        }
        const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        Greeting greeting{};
        const timeval patience{10, 0};
        ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        // Strangers are let go.
        if (fd >= 0 && transfer(fd, &greeting, sizeof greeting, false) &&
            std::memcmp(greeting.magic, kMagic, sizeof kMagic) == 0 && greeting.rank > 0 &&
            greeting.rank < ranks && transfer(fd, id, sizeof *id, true)) {
            ++served;
        }
        ::close(fd);
    }
    ::close(listener);
}

void fetch_id(const char* host, int port, int rank, ncclUniqueId* id) {
    addrinfo hints{};
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (::getaddrinfo(host, std::to_string(port).c_str(), &hints, &found) != 0) {
        stop(std::string("MASTER_ADDR ") + host + ": unknown host");
    }
    for (int attempt = 0; attempt < 10 * kPatienceS; ++attempt) {
        const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        Greeting greeting{};
        std::memcpy(greeting.magic, kMagic, sizeof kMagic);
        greeting.rank = rank;
        const bool done = ::connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
                          transfer(fd, &greeting, sizeof greeting, true) &&
                          transfer(fd, id, sizeof *id, false);
        ::close(fd);
        if (done) {
            ::freeaddrinfo(found);
            return;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    stop(std::string("rank 0 at ") + host + ":" + std::to_string(port) + " did not answer in " +
         std::to_string(kPatienceS) + " s; MASTER_ADDR says where it is");
}

}  // namespace

void stop(const std::string& text) {
    std::fprintf(stderr, "slimwire bench: %s\n", text.c_str());
    std::exit(1);
}

ncclUniqueId meet(const char* host, int port, int rank, int ranks) {
    ncclUniqueId id{};
    if (rank != 0) {
        fetch_id(host, port, rank, &id);
        return id;
    }
    if (ncclGetUniqueId(&id) != ncclSuccess) {
        stop("ncclGetUniqueId failed");
    }
    serve_id(port, ranks, &id);
    return id;
}

}  // namespace slimwire::bench
