#include "tools/cli/run/reach_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "collectives/call/run_socket.h"
#include "tools/cli/common/exit_code.h"

namespace slimwire::cli {
namespace {

[[noreturn]] void wait_beside(int job, int socket, const std::string& text) {
    ::prctl(PR_SET_NAME, "slimwire-watch");
    (void)!::chdir("/");
    const int null = ::open("/dev/null", O_RDWR);
    ::dup2(null, STDIN_FILENO);
    ::dup2(null, STDOUT_FILENO);
    // Nothing that somebody waits to be closed stays open here.
    ::dup2(std::min(job, socket), 3);
    ::dup2(std::max(job, socket), 4);
    (void)::close_range(5, ~0u, 0);
    pollfd polled[] = {{job < socket ? 3 : 4, POLLIN, 0}, {job < socket ? 4 : 3, POLLIN, 0}};
    while (::poll(polled, 2, -1) < 0 && errno == EINTR) {
    }
    if (polled[1].revents == 0) {
        note(text);
    }
    ::_exit(0);
}

}  // namespace

std::optional<ReachWatch> ReachWatch::start(Environment* environment) {
    if (const char* outer = environment->get(kRunSocketVariable);
        outer != nullptr && tell_run(outer, false)) {
        return std::nullopt;
    }
    Descriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    socklen_t length = sizeof address.sun_family;  // the kernel chooses an abstract name
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    if (!socket.valid() || ::bind(socket.fd(), generic, length) != 0 ||
        (length = sizeof address, ::getsockname(socket.fd(), generic, &length) != 0)) {
        return std::nullopt;
    }
    const std::string name(address.sun_path + 1, length - sizeof address.sun_family - 1);
    environment->set(kRunSocketVariable, name);
    return ReachWatch(std::move(socket), name);
}

bool ReachWatch::reached() const noexcept {
    char byte = 0;
    return ::recv(socket_.fd(), &byte, 1, MSG_PEEK) > 0;
}

void ReachWatch::outlive(const std::string& text) const {
    const Descriptor self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
    if (std::min(self.fd(), socket_.fd()) <= STDERR_FILENO) {
        return;  // an old kernel; or our own stdin and stdout were closed
    }
    const pid_t child = ::fork();
    if (child == 0) {
        if (::fork() == 0) {
            wait_beside(self.fd(), socket_.fd(), text);
        }
        ::_exit(0);
    }
    while (child > 0 && ::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
}

void ReachWatch::dismiss() const noexcept {
    tell_run(name_.c_str(), true);
}

}  // namespace slimwire::cli
