#include "tools/cli/node_network.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "tools/cli/environment.h"
#include "tools/cli/subprocess.h"

namespace slimwire::cli {
namespace {

using Namespaces = NodeNetwork::Namespaces;

struct Kind {
    int flag;
    const char* file;
};
constexpr std::array<Kind, 3> kKinds = {Kind{CLONE_NEWNET, "/proc/self/ns/net"},
                                        {CLONE_NEWIPC, "/proc/self/ns/ipc"},
                                        {CLONE_NEWUTS, "/proc/self/ns/uts"}};
constexpr int kAllKinds = CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;
constexpr int kNodesInABlock = 250;  // of 10.77.BLOCK.1 to 10.77.BLOCK.250

Status system_error(const std::string& what) {
    return {Code::kSystemError, fmt::format("--namespaces: {}: {}", what, std::strerror(errno))};
}

Status forbidden(const char* what) {
    return {Code::kSystemError,
            fmt::format("--namespaces needs root or unprivileged user namespaces, which this "
                        "machine or container forbids ({}: {})",
                        what, std::strerror(errno))};
}

bool write_file(const char* file, const std::string& text) {
    const int fd = ::open(file, O_WRONLY | O_CLOEXEC);
    const bool written =
        fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    if (fd >= 0) {
        const int error = errno;
        ::close(fd);
        errno = error;
    }
    return written;
}

// This process becomes root of a user namespace in which nobody else lives.
Status become_root() {
    const std::string user = fmt::format("0 {} 1", ::geteuid());
    const std::string group = fmt::format("0 {} 1", ::getegid());
    if (::unshare(CLONE_NEWUSER) != 0) {
        return forbidden("user namespace");
    }
    if (!write_file("/proc/self/setgroups", "deny") || !write_file("/proc/self/uid_map", user) ||
        !write_file("/proc/self/gid_map", group)) {
        return forbidden("its users");
    }
    return {};
}

void close_all(const Namespaces& namespaces) {
    for (const int fd : namespaces) {
        if (fd >= 0) {
            ::close(fd);
        }
    }
}

// Descriptors of the namespaces that this process is in.
Result<Namespaces> current_namespaces() {
    Namespaces all{-1, -1, -1};
    for (size_t i = 0; i < kKinds.size(); ++i) {
        all[i] = ::open(kKinds[i].file, O_RDONLY | O_CLOEXEC);
        if (all[i] < 0) {
            const Status status = system_error(kKinds[i].file);
            close_all(all);
            return status;
        }
    }
    return all;
}

int move_to(const Namespaces& namespaces) noexcept {
    for (size_t i = 0; i < kKinds.size(); ++i) {
        if (::setns(namespaces[i], kKinds[i].flag) != 0) {
            return errno;
        }
    }
    return 0;
}

// Brings the process back at the end of the scope.
class Excursion {
  public:
    explicit Excursion(const Namespaces& home) : home_(home) {}
    Excursion(const Excursion&) = delete;
    Excursion& operator=(const Excursion&) = delete;
    ~Excursion() {
        (void)move_to(home_);
        close_all(home_);
    }

  private:
    Namespaces home_;
};

Result<Namespaces> fresh_namespaces(const std::string& host) {
    if (::unshare(kAllKinds) != 0) {
        return forbidden("namespaces");
    }
    if (::sethostname(host.data(), host.size()) != 0) {
        return system_error("host name " + host);
    }
    return current_namespaces();
}

// `ip ARGUMENTS` in the namespaces that this process is in.
Status ip(const std::string& arguments) {
    std::vector<std::string> command = split_list(arguments, " ");
    command.insert(command.begin(), std::string("ip"));
    const Result<Captured> ended = run_captured(command, Environment::current(), 20, false);
    if (!ended.ok() || ended.value().exit_code == 127) {
        return {Code::kNotFound,
                "--namespaces needs ip of iproute2 (Debian: apt-get install iproute2)"};
    }
    if (ended.value().exit_code != 0) {
        return {Code::kSystemError, fmt::format("--namespaces: ip {} failed with {}", arguments,
                                                ended.value().exit_code)};
    }
    return {};
}

// The kernel says so with up to a second's delay; until then some libraries (UCX) take a link for
// down.
Status wait_until_running() {
    const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ifreq request{};
    std::strncpy(request.ifr_name, NodeNetwork::kInterface, sizeof request.ifr_name - 1);
    bool running = false;
    for (int i = 0; i < 500 && fd >= 0 && !running; ++i) {
        running = ::ioctl(fd, SIOCGIFFLAGS, &request) == 0 &&
                  (request.ifr_flags & (IFF_UP | IFF_RUNNING)) == (IFF_UP | IFF_RUNNING);
        if (!running) {
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
    }
    if (fd >= 0) {
        ::close(fd);
    }
    return running
               ? Status()
               : Status(Code::kSystemError, "--namespaces: the link of a node does not come up");
}

}  // namespace

std::string NodeNetwork::address(int node) {
    return fmt::format("10.77.{}.{}", node / kNodesInABlock, node % kNodesInABlock + 1);
}

NodeNetwork::~NodeNetwork() {
    for (const Namespaces& namespaces : namespaces_) {
        close_all(namespaces);
    }
}

Result<NodeNetwork> NodeNetwork::make(int nodes) {
    NodeNetwork made;
    SLIMWIRE_TRY(ip("-Version"));  // what can be installed is asked for first
    if (::geteuid() != 0) {
        SLIMWIRE_TRY(become_root());
    }
    SLIMWIRE_TRY_ASSIGN(const Namespaces home, current_namespaces());
    const Excursion back(home);
    SLIMWIRE_TRY_ASSIGN(const Namespaces hub, fresh_namespaces("switch"));
    made.namespaces_.push_back(hub);
    SLIMWIRE_TRY(ip("link add name nodes type bridge"));
    SLIMWIRE_TRY(ip("link set nodes up"));
    for (int node = 0; node < nodes; ++node) {
        SLIMWIRE_TRY_ASSIGN(const Namespaces fresh, fresh_namespaces(fmt::format("node{}", node)));
        made.namespaces_.push_back(fresh);
        SLIMWIRE_TRY(made.connect(node));
    }
    for (int node = 0; node < nodes; ++node) {
        (void)move_to(made.namespaces_[static_cast<size_t>(node) + 1]);
        SLIMWIRE_TRY(wait_until_running());
    }
    // What no rank could do is said here, not by the first one.
    const pid_t trial = ::fork();
    if (trial == 0) {
        ::_exit(made.enter(0));
    }
    int status = 0;
    while (trial > 0 && ::waitpid(trial, &status, 0) < 0 && errno == EINTR) {
    }
    errno = trial < 0 ? errno : WEXITSTATUS(status);
    if (errno != 0) {
        return forbidden("mounts");
    }
    return made;
}

// A cable between the node, in which this process is, and the switch.
Status NodeNetwork::connect(int node) {
    const std::string port = fmt::format("node{}", node);
    SLIMWIRE_TRY(ip("link set lo up"));
    SLIMWIRE_TRY(ip(fmt::format("link add {} type veth peer name {} netns /proc/{}/fd/{}",
                                kInterface, port, ::getpid(), namespaces_[0][0])));
    SLIMWIRE_TRY(ip(fmt::format("addr add {}/16 dev {}", address(node), kInterface)));
    SLIMWIRE_TRY(ip(fmt::format("link set {} up", kInterface)));
    if (::setns(namespaces_[0][0], CLONE_NEWNET) != 0) {
        return system_error("the switch");
    }
    return ip(fmt::format("link set {} master nodes up", port));
}

int NodeNetwork::enter(int node) const noexcept {
    if (const int error = move_to(namespaces_[static_cast<size_t>(node) + 1]); error != 0) {
        return error;
    }
    // /sys/class/net, where UCX and others look for interfaces, shows the network of the process
    // that mounted it.
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_SLAVE | MS_REC, nullptr) != 0) {
        return errno;
    }
    constexpr unsigned long kFlags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
    if (::mount("sysfs", "/sys", "sysfs", kFlags, nullptr) != 0 &&
        ::mount("sysfs", "/sys", "sysfs", kFlags | MS_RDONLY, nullptr) != 0) {
        return errno;
    }
    return 0;
}

}  // namespace slimwire::cli
