#include "collectives/communicator/agreement/claim_sender.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "collectives/communicator/agreement/private_split.h"

namespace slimwire {

using namespace agreement_wire;

ClaimSender& ClaimSender::instance() {
    // Never freed: its thread may outlive main. No lock that another thread may hold at a fork.
    static std::atomic<ClaimSender*> current{nullptr};
    ClaimSender* sender = current.load();
    while (sender == nullptr || sender->pid_ != getpid()) {
        auto* const made = new ClaimSender;
        if (current.compare_exchange_strong(sender, made)) {
            return *made;
        }
        delete made;
    }
    return *sender;
}

bool ClaimSender::start() {
    if (started_) {
        return wake_ >= 0;
    }
    started_ = true;
    wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_ >= 0 && !start_detached([this] { serve(); }).ok()) {
        close(std::exchange(wake_, -1));
    }
    // A stream that waits here keeps the device from being torn down.
    std::atexit([] {
        for (const ClaimsRef& one : instance().all()) {
            one->end();
        }
    });
    return wake_ >= 0;
}

void ClaimSender::post(ClaimsRef claims,
                       const ClaimRecord& record,
                       uint64_t patience_us,
                       uint32_t replaced) {
    if (record.what == Claiming::kType && record.nth == 0) {
        watch(claims);
    }
    const std::lock_guard lock(mutex_);
    if (!start()) {
        posted_.clear();
        return;
    }
    posted_.push_back({std::move(claims), record, patience_us, replaced});
    const uint64_t one = 1;
    (void)!write(wake_, &one, sizeof(one));
}

void ClaimSender::watch(const ClaimsRef& claims) {
    const std::lock_guard lock(mutex_);
    if (start()) {
        std::erase_if(all_, [&](const auto& one) { return one.expired() || one.lock() == claims; });
        all_.push_back(claims);
        const uint64_t one = 1;
        (void)!write(wake_, &one, sizeof(one));
    }
}

std::vector<ClaimSender::ClaimsRef> ClaimSender::all() {
    const std::lock_guard lock(mutex_);
    std::vector<ClaimsRef> all;
    for (const auto& one : all_) {
        all.push_back(one.lock());
    }
    std::erase(all, nullptr);
    return all;
}

void ClaimSender::serve() {
    pthread_setname_np(pthread_self(), "slimwire-types");
    constexpr int kIdleMs = 500, kAskMs = kStuckUs / 2000;
    std::vector<pollfd> polled;
    std::vector<Posted> posted;
    for (;;) {
        int wait_ms = -1;
        for (const ClaimsRef& one : all()) {
            wait_ms = one->ask_about_graphs() ? kAskMs : wait_ms;
        }
        polled.assign(1, {wake_, POLLIN, 0});
        for (const Server& server : servers_) {  // a socket of -1 is ignored by poll
            polled.push_back({server.socket, POLLIN, 0});
            wait_ms = server.socket >= 0 && server.open.empty() ? kIdleMs : wait_ms;
        }
        (void)poll(polled.data(), polled.size(), wait_ms);
        uint64_t count = 0;
        (void)!read(wake_, &count, sizeof(count));
        for (size_t i = 1; i < polled.size(); ++i) {
            if (polled[i].revents != 0) {
                hear(&servers_[i - 1]);
            }
        }
        {
            const std::lock_guard lock(mutex_);
            posted.swap(posted_);
        }
        for (Posted& one : posted) {
            send(std::move(one));
        }
        posted.clear();
        for (Server& server : servers_) {
            if (!server.open.empty()) {
                server.used_us = now_us();
            } else if (now_us() - server.used_us >= kIdleMs * 1000) {
                close_connection(&server);
            }
        }
    }
}

void ClaimSender::send(Posted posted) {
    AgreementAddress address = posted.claims->server();
    address.token = 0;
    auto server = std::find_if(servers_.begin(), servers_.end(),
                               [&](const Server& one) { return one.address == address; });
    if (server == servers_.end()) {
        server = servers_.insert(servers_.end(), Server{address});
    }
    if (server->dead) {
        posted.claims->give_up();
        return;
    }
    if (posted.record.what == Claiming::kEnd) {
        std::erase_if(server->open,
                      [&](const auto& open) { return open.second.claims == posted.claims; });
    }
    const uint64_t deadline_us = now_us() + posted.patience_us;
    if (server->socket < 0) {
        const Result<int> connected = connect_to(address, deadline_us, {});
        server->socket = connected.ok() ? connected.value() : -1;
    }
    const ClaimRecord record = posted.record;
    if (record.number != 0) {
        server->open.emplace(record.number, std::move(posted));
    }
    if (server->socket < 0 || !write_all(server->socket, &record, sizeof(record), deadline_us)) {
        fail(&*server);
    }
}

void ClaimSender::hear(Server* server) {
    char buffer[4096];
    const ssize_t got = recv(server->socket, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (got <= 0) {
        if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
            fail(server);
        }
        return;
    }
    server->bytes.append(buffer, static_cast<size_t>(got));
    size_t at = 0;
    for (; server->bytes.size() - at >= sizeof(MatchRecord); at += sizeof(MatchRecord)) {
        MatchRecord answer{};
        std::memcpy(&answer, server->bytes.data() + at, sizeof(answer));
        const size_t follow =
            answer.matched == Matched::kPart ? static_cast<uint32_t>(answer.ranks[0]) : 0;
        if (answer.magic != kClaimMagic || answer.matched > Matched::kPart || follow > kMostBrief) {
            fail(server);
            return;
        }
        std::vector<int32_t> part(follow);
        if (server->bytes.copy(reinterpret_cast<char*>(part.data()), 4 * follow,
                               at + sizeof(answer)) < 4 * follow) {
            break;
        }
        at += 4 * follow;
        if (const auto open = server->open.find(answer.number); open != server->open.end()) {
            const Posted asked = open->second;
            if (answer.matched != Matched::kSoFar) {
                server->open.erase(open);
                server->open.erase(asked.replaced);
            }
            server->open.erase(asked.claims->answered(asked.record, answer, std::move(part)));
        }
    }
    server->bytes.erase(0, at);
}

void ClaimSender::close_connection(Server* server) {
    if (server->socket >= 0) {
        close(std::exchange(server->socket, -1));
    }
    server->bytes.clear();
}

void ClaimSender::fail(Server* server) {
    server->dead = true;
    close_connection(server);
    for (const auto& [number, posted] : std::exchange(server->open, {})) {
        posted.claims->give_up();
    }
}

}  // namespace slimwire
