#include "tools/cli/common/free_port.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

#include "codecs/base/descriptor.h"
namespace slimwire::cli {
namespace {

bool port_is_free(int port, int* bound_port) {
    const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    socklen_t size = sizeof address;
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    const bool free = socket.valid() && ::bind(socket.fd(), generic, size) == 0 &&
                      ::getsockname(socket.fd(), generic, &size) == 0;
    *bound_port = ntohs(address.sin_port);
    return free;
}

}  // namespace

Result<int> find_free_port(int wanted) {
    constexpr int kAttempts = 16;
    int port = 0;
    for (int i = 0; i < kAttempts && wanted + i <= 65535; ++i) {
        if (port_is_free(wanted == 0 ? 0 : wanted + i, &port)) {
            return port;
        }
    }
    return Status(Code::kSystemError,
                  wanted == 0
                      ? "no free TCP port on 127.0.0.1"
                      : fmt::format("TCP ports {} to {} of 127.0.0.1 are all in use; choose "
                                    "another --port, or none to let slimwire choose",
                                    wanted, std::min(wanted + kAttempts - 1, 65535)));
}

}  // namespace slimwire::cli
