// What two sides say before messages flow, and on the same socket afterwards. Little-endian, fixed
// sizes. The receiving side's handle (128 bytes, carried by NCCL) names a TCP socket; the sender
// connects there and says Hello, the receiver answers with Answer and its worker's UCX address. The
// socket stays open: its end is the sign that the peer is gone. On it travel Credit (to the sender)
// and Bye (to the receiver).
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

#include "codecs/base/status.h"
#include "plugin/net/abi/net_types.h"
#include "plugin/net/ucx/sockets.h"
#include "plugin/net/wire.h"

namespace slimwire::net {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

inline constexpr uint64_t kWireMagic = 0x3158435557494C53;  // "SLIWUCX1" in memory
inline constexpr uint32_t kWireVersion = 3;
inline constexpr uint32_t kMaxWorkerAddressBytes = 4096;

using Cookie = std::array<uint8_t, 16>;

struct WireHandle {
    uint64_t magic;
    uint32_t version;
    uint16_t family;  // 4 or 6
    uint16_t port;
    uint8_t address[16];  // network order; 4 bytes for IPv4
    Cookie cookie;
    uint32_t scope;        // of a link-local IPv6 address: the interface's index, as NCCL has it
    uint8_t reserved[76];  // 0
};
static_assert(sizeof(WireHandle) == kNetHandleBytes);

struct Hello {
    uint64_t magic;
    uint32_t version;
    uint32_t reserved;
    Cookie cookie;
};
static_assert(sizeof(Hello) == 32);

struct Answer {
    uint64_t magic;
    uint32_t version;
    uint32_t address_bytes;  // of the worker's address, which follows
    uint64_t token;          // in the tag of every message, below kTokenBits
};
static_assert(sizeof(Answer) == 24);

// The tag of a UCX message: the connection's token, the lane, the message's number in its lane.
// UCX's own port knows no cookie: what comes there without the token is no message of this
// connection, and stays with UCX until the worker is gone.
inline constexpr int kNumberBits = 23;
inline constexpr int kTokenBits = 64 - 1 - kNumberBits;
[[nodiscard]] constexpr uint64_t tag_of(uint64_t token, Lane lane, uint64_t number) noexcept {
    return token << (kNumberBits + 1) | static_cast<uint64_t>(lane) << kNumberBits |
           (number & ((uint64_t{1} << kNumberBits) - 1));
}

// So many receives have been posted since the connection began; and the receiver's word.
struct Credit {
    uint64_t posted[kLanes];
    uint64_t raw_bytes_per_s;
    uint64_t coded_bytes_per_s;
};
static_assert(sizeof(Credit) == 32);

// Nothing is sent any more, and this is what was; then the sender closes the socket.
struct Bye {
    uint64_t magic;
    uint64_t messages[kLanes];
};
inline constexpr uint64_t kByeMagic = 0x4559425857494C53;  // "SLIWXBYE" in memory

[[nodiscard]] WireHandle make_handle(const SocketAddress& address, const Cookie& cookie);
// kInvalidArgument when the handle is not of this wire.
Result<SocketAddress> address_of(const WireHandle& handle);
Result<Cookie> random_cookie();
Result<uint64_t> random_token();

// Why `hello`, of which `bytes` have come, is refused; empty while there is no reason to.
[[nodiscard]] std::string refusal(const Hello& hello, size_t bytes, const Cookie& expected);

}  // namespace slimwire::net
