#include "tools/cli/run/orphan_guard.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <set>

namespace slimwire::cli {
namespace {

// Messages on the pipe, each written in one piece: a group to watch, minus a group to forget, or 0
// for an orderly end.
using Message = int32_t;

[[noreturn]] void keep(int fd) {
    ::setsid();
    sigset_t all;
    sigfillset(&all);
    ::sigprocmask(SIG_BLOCK, &all, nullptr);
    const int null = ::open("/dev/null", O_RDWR);
    for (int i = 0; i < 3 && null >= 0; ++i) {
        ::dup2(null, i);
    }
    const int own = ::dup2(fd, 3);
    (void)::close_range(4, ~0u, 0);
    std::set<pid_t> groups;
    Message message = 0;
    for (;;) {
        const ssize_t n = ::read(own, &message, sizeof message);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n != sizeof message) {
            break;
        }
        if (message == 0) {
            ::_exit(0);
        }
        if (message > 0) {
            groups.insert(message);
        } else {
            groups.erase(-message);
        }
    }
    for (const pid_t group : groups) {
        ::kill(-group, SIGKILL);
    }
    ::_exit(0);
}

void send(int fd, Message message) noexcept {
    while (::write(fd, &message, sizeof message) < 0 && errno == EINTR) {
    }
}

}  // namespace

Status OrphanGuard::start() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) {
        return {Code::kSystemError, fmt::format("cannot make a pipe: {}", std::strerror(errno))};
    }
    const Descriptor reading(ends[0]);
    Descriptor writing(ends[1]);
    pid_ = ::fork();
    if (pid_ == 0) {
        writing.reset();
        keep(reading.fd());
    }
    if (pid_ < 0) {
        return {Code::kSystemError, fmt::format("cannot fork: {}", std::strerror(errno))};
    }
    pipe_ = std::move(writing);
    return {};
}

OrphanGuard::~OrphanGuard() {
    if (pipe_.valid()) {
        send(pipe_.fd(), 0);
        pipe_.reset();
        while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
        }
    }
}

void OrphanGuard::watch_own_group() const noexcept {
    send(pipe_.fd(), static_cast<Message>(::getpgrp()));
}

void OrphanGuard::forget(pid_t group) const noexcept {
    send(pipe_.fd(), -static_cast<Message>(group));
}

}  // namespace slimwire::cli
