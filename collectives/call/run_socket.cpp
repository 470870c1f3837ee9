#include "collectives/call/run_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

namespace slimwire {

bool tell_run(const char* socket_name, bool send) noexcept {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const size_t length = std::strlen(socket_name);
    if (length == 0 || length >= sizeof address.sun_path) {
        return false;
    }
    std::memcpy(address.sun_path + 1, socket_name, length);  // behind a zero: an abstract name
    const auto bytes = static_cast<socklen_t>(sizeof address.sun_family + 1 + length);
    const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const bool there = ::connect(fd, reinterpret_cast<const sockaddr*>(&address), bytes) == 0;
    if (there && send) {
        (void)!::send(fd, "", 1, MSG_NOSIGNAL);
    }
    ::close(fd);
    return there;
}

}  // namespace slimwire
