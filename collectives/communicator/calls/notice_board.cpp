#include "collectives/communicator/calls/notice_board.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "collectives/call/log.h"
#include "collectives/communicator/agreement/wire.h"

namespace slimwire {

using namespace agreement_wire;

namespace {

constexpr uint64_t kSendTimeoutUs = 2000000;
constexpr size_t kMaxUnclaimed = 4096;
constexpr int kLookMs = 2;  // for calls of this process that others told of before

struct Board {
    pid_t pid = 0;
    uint64_t token = 0;
    int listener4 = -1, listener6 = -1;
    uint16_t port4 = 0, port6 = 0;
    int wake[2] = {-1, -1};

    std::mutex mutex;  // of these
    std::map<std::pair<uint64_t, int>, std::shared_ptr<CallChecks>> checks;
    std::vector<std::pair<AgreementAddress, CallNotice>> outgoing;

    // The thread's own.
    std::vector<CallNotice> unclaimed;                  // of communicators that are not there yet
    std::vector<std::pair<int, std::string>> incoming;  // sockets, and bytes of half a notice
    std::map<uint64_t, int> connections;  // by the token of the process; -1: it cannot be reached

    void serve();
    void accept_all(int listener);
    bool read_from(std::pair<int, std::string>* socket);
    std::shared_ptr<CallChecks> find(const CallNotice& notice);
    void hand_out(const CallNotice& notice);
    void hand_out_early();
    void send_all();
    bool look();
};

std::mutex g_mutex;
Board* g_board = nullptr;  // never destroyed: its thread may outlive main

void* run_board(void* board) {
    static_cast<Board*>(board)->serve();
    return nullptr;
}

// Of this process; null before address(), and in a child of the process that called it.
Board* board() noexcept {
    const std::lock_guard lock(g_mutex);
    return g_board != nullptr && g_board->pid == getpid() ? g_board : nullptr;
}

void Board::accept_all(int listener) {
    for (;;) {
        const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (socket < 0) {
            return;
        }
        incoming.emplace_back(socket, std::string());
    }
}

// False when it ended, or what came is no notice to this process.
bool Board::read_from(std::pair<int, std::string>* socket) {
    char buffer[64 * sizeof(CallNotice)];
    for (;;) {
        const ssize_t got = recv(socket->first, buffer, sizeof(buffer), 0);
        if (got <= 0) {
            return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
        }
        socket->second.append(buffer, static_cast<size_t>(got));
        size_t at = 0;
        for (; socket->second.size() - at >= sizeof(CallNotice); at += sizeof(CallNotice)) {
            CallNotice notice;
            std::memcpy(&notice, socket->second.data() + at, sizeof(notice));
            if (notice.token != token) {
                return false;
            }
            hand_out(notice);
        }
        socket->second.erase(0, at);
    }
}

void Board::hand_out(const CallNotice& notice) {
    if (const std::shared_ptr<CallChecks> target = find(notice); target != nullptr) {
        hand_out_early();
        target->take(notice);
    } else if (unclaimed.size() < kMaxUnclaimed) {
        unclaimed.push_back(notice);
    }
}

std::shared_ptr<CallChecks> Board::find(const CallNotice& notice) {
    const std::lock_guard lock(mutex);
    const auto found = checks.find({notice.comm_key, notice.to});
    return found != checks.end() ? found->second : nullptr;
}

void Board::hand_out_early() {
    std::erase_if(unclaimed, [&](const CallNotice& notice) {
        const std::shared_ptr<CallChecks> target = find(notice);
        if (target != nullptr) {
            target->take(notice);
        }
        return target != nullptr;
    });
}

void Board::send_all() {
    std::vector<std::pair<AgreementAddress, CallNotice>> notices;
    {
        const std::lock_guard lock(mutex);
        notices.swap(outgoing);
    }
    for (const auto& [to, notice] : notices) {
        const auto [found, first] = connections.try_emplace(to.token, -1);
        if (first) {
            const Result<int> connected = connect_to(to, now_us() + kSendTimeoutUs, {});
            found->second = connected.ok() ? connected.value() : -1;
            if (!connected.ok()) {
                log_line(LogLevel::kWarn,
                         "calls are not compared with those of a process that cannot be reached: " +
                             connected.status().message());
            }
        }
        if (found->second >= 0 &&
            !write_all(found->second, &notice, sizeof(notice), now_us() + kSendTimeoutUs)) {
            close(std::exchange(found->second, -1));  // it ended
        }
    }
}

bool Board::look() {
    std::vector<std::shared_ptr<CallChecks>> all;
    {
        const std::lock_guard lock(mutex);
        for (const auto& [key, one] : checks) {
            all.push_back(one);
        }
    }
    bool waits = false;
    for (const std::shared_ptr<CallChecks>& one : all) {
        waits |= one->look();
    }
    return waits;
}

void Board::serve() {
    std::vector<pollfd> polled;
    bool waits = false;
    for (;;) {
        polled = {{wake[0], POLLIN, 0}, {listener4, POLLIN, 0}, {listener6, POLLIN, 0}};
        for (const auto& [socket, bytes] : incoming) {
            polled.push_back({socket, POLLIN, 0});
        }
        (void)poll(polled.data(), polled.size(), waits ? kLookMs : -1);
        char drained[64];
        while (read(wake[0], drained, sizeof(drained)) > 0) {
        }
        for (const int listener : {listener4, listener6}) {
            if (listener >= 0) {
                accept_all(listener);
            }
        }
        hand_out_early();
        std::erase_if(incoming, [&](auto& socket) {
            const bool ended = !read_from(&socket);
            if (ended) {
                close(socket.first);
            }
            return ended;
        });
        waits = look();
        send_all();
    }
}

}  // namespace

Result<AgreementAddress> NoticeBoard::address(const std::string& ifname) {
    SLIMWIRE_TRY_ASSIGN(AgreementAddress here, own_address(ifname));
    const std::lock_guard lock(g_mutex);
    if (g_board == nullptr || g_board->pid != getpid()) {
        auto made = std::make_unique<Board>();
        made->pid = getpid();
        made->listener4 = listen_any(4, &made->port4);
        made->listener6 = listen_any(6, &made->port6);
        if (getrandom(&made->token, sizeof(made->token), 0) != sizeof(made->token) ||
            pipe2(made->wake, O_CLOEXEC | O_NONBLOCK) != 0) {
            return Status(Code::kSystemError,
                          std::string("notices of calls: ") + std::strerror(errno));
        }
        SLIMWIRE_TRY(start_thread(run_board, made.get(), "slimwire-calls"));
        g_board = made.release();
    }
    here.port = here.family == 6 ? g_board->port6 : g_board->port4;
    here.token = g_board->token;
    return here.port != 0 ? Result<AgreementAddress>(here)
                          : Status(Code::kSystemError, "notices of calls have no listener for IPv" +
                                                           std::to_string(here.family));
}

void NoticeBoard::post(const AgreementAddress& to, const CallNotice& notice) {
    Board* const own = board();
    if (own == nullptr) {
        return;
    }
    {
        const std::lock_guard lock(own->mutex);
        own->outgoing.emplace_back(to, notice);
    }
    (void)!write(own->wake[1], "", 1);
}

void NoticeBoard::add(const std::shared_ptr<CallChecks>& checks) {
    Board* const own = board();
    if (own == nullptr) {
        return;
    }
    {
        const std::lock_guard lock(own->mutex);
        own->checks[{checks->comm_key(), checks->rank()}] = checks;
    }
    (void)!write(own->wake[1], "", 1);
}

void NoticeBoard::remove(const std::shared_ptr<CallChecks>& checks) noexcept {
    checks->end();
    if (Board* const own = board(); own != nullptr) {
        const std::lock_guard lock(own->mutex);
        own->checks.erase({checks->comm_key(), checks->rank()});
    }
}

}  // namespace slimwire
