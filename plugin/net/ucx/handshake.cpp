#include "plugin/net/ucx/handshake.h"

#include <arpa/inet.h>
#include <sys/random.h>

#include <algorithm>
#include <cstring>

namespace slimwire::net {

WireHandle make_handle(const SocketAddress& address, const Cookie& cookie) {
    WireHandle handle{};
    handle.magic = kWireMagic;
    handle.version = kWireVersion;
    handle.cookie = cookie;
    if (address.any.sa_family == AF_INET6) {
        handle.family = 6;
        handle.port = ntohs(address.v6.sin6_port);
        memcpy(handle.address, &address.v6.sin6_addr, 16);
        handle.scope = address.v6.sin6_scope_id;
    } else {
        handle.family = 4;
        handle.port = ntohs(address.v4.sin_port);
        memcpy(handle.address, &address.v4.sin_addr, 4);
    }
    return handle;
}

Result<SocketAddress> address_of(const WireHandle& handle) {
    if (handle.magic != kWireMagic) {
        return Status(Code::kInvalidArgument,
                      "this handle is not of slimwire's UCX wire: do all "
                      "ranks load the same net plugin?");
    }
    if (handle.version != kWireVersion) {
        return Status(Code::kInvalidArgument,
                      "the handle has wire version " + std::to_string(handle.version) +
                          ", this plugin speaks " + std::to_string(kWireVersion));
    }
    SocketAddress address{};
    if (handle.family == 6) {
        address.v6.sin6_family = AF_INET6;
        address.v6.sin6_port = htons(handle.port);
        memcpy(&address.v6.sin6_addr, handle.address, 16);
        address.v6.sin6_scope_id = handle.scope;
    } else if (handle.family == 4) {
        address.v4.sin_family = AF_INET;
        address.v4.sin_port = htons(handle.port);
        memcpy(&address.v4.sin_addr, handle.address, 4);
    } else {
        return Status(Code::kInvalidArgument, "the handle has address family " +
                                                  std::to_string(handle.family) +
                                                  ", which is neither 4 nor 6");
    }
    return address;
}

namespace {

Status fill_at_random(void* data, size_t bytes) {
    return getrandom(data, bytes, 0) == static_cast<ssize_t>(bytes)
               ? Status()
               : Status(Code::kSystemError, "no random bytes for a connection's cookie");
}

}  // namespace

Result<Cookie> random_cookie() {
    Cookie cookie;
    SLIMWIRE_TRY(fill_at_random(cookie.data(), cookie.size()));
    return cookie;
}

Result<uint64_t> random_token() {
    uint64_t token = 0;
    SLIMWIRE_TRY(fill_at_random(&token, sizeof token));
    return token >> (64 - kTokenBits);
}

std::string refusal(const Hello& hello, size_t bytes, const Cookie& expected) {
    if (memcmp(&hello, &kWireMagic, std::min(bytes, sizeof kWireMagic)) != 0) {
        return "it does not speak slimwire's protocol";
    }
    constexpr size_t kVersionEnd = offsetof(Hello, version) + sizeof hello.version;
    if (bytes >= kVersionEnd && hello.version != kWireVersion) {
        return "it has wire version " + std::to_string(hello.version) + ", this plugin speaks " +
               std::to_string(kWireVersion);
    }
    // Judged as a whole: nobody finds it byte by byte.
    if (bytes == sizeof hello && hello.cookie != expected) {
        return "it has the cookie of another connection";
    }
    return {};
}

}  // namespace slimwire::net
