// NCCL's protocols as they look on the wire between nodes, and the sizes of its buffers.
//
//   Simple   the data
//   LL       16 bytes a line: 4 of data, a flag of 4, 4 of data, a flag of 4
//   LL128    128 bytes a line: 120 of data, a flag of 8
//
// The flags of a message are its number in the connection's messages of that protocol, from 1 on,
// so what a slot held eight messages ago is not taken for new. A receiver looks at the flags while
// the network still fills the buffer: data is whole when its line's flags are there.
// Source: NCCL 2.28, device/prims_ll.h, prims_ll128.h, transport/net.cc. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace slimwire::emu {

enum class Protocol : uint8_t { kLl = 0, kLl128 = 1, kSimple = 2 };  // NCCL's numbers
inline constexpr int kProtocols = 3;

[[nodiscard]] const char* protocol_name(Protocol protocol) noexcept;  // as NCCL writes it

// Bytes on the wire of a message with `bytes` bytes of data; the last line may have unused data.
[[nodiscard]] size_t wire_bytes(Protocol protocol, size_t bytes) noexcept;
// The most data that fits in `bytes` of a buffer.
[[nodiscard]] size_t payload_bytes(Protocol protocol, size_t bytes) noexcept;

// Writes the message into `wire`. With flags, each line's data is written before them.
void encode_message(
    Protocol protocol, uint64_t number, const void* data, size_t bytes, void* wire) noexcept;

// How many lines from `first_line` on have come, of a message of `bytes` bytes of data that may be
// arriving; goes on where the last look ended. Not for Simple.
[[nodiscard]] size_t lines_arrived(
    Protocol protocol, uint64_t number, const void* wire, size_t bytes, size_t first_line) noexcept;
[[nodiscard]] size_t lines_of(Protocol protocol, size_t bytes) noexcept;

// Reads the data of a message that has come.
void decode_message(Protocol protocol, const void* wire, size_t bytes, void* data) noexcept;

// How large the buffers of a connection are and into how many messages they are divided.
struct WireBuffers {
    size_t message_bytes[kProtocols];  // of collectives, on the wire
    int messages[kProtocols];          // in flight, at most
    size_t p2p_message_bytes;          // Simple
    int p2p_messages;
    size_t p2p_ll_limit;  // sends and receives up to this size use LL

    [[nodiscard]] size_t capacity(Protocol protocol, bool point_to_point) const noexcept;
};

// NCCL's: NCCL_BUFFSIZE 4 MiB in 8 steps, two a message; NCCL_LL_BUFFSIZE and NCCL_LL128_BUFFSIZE
// in 8 steps; NCCL_P2P_NET_CHUNKSIZE 128 KiB; NCCL_P2P_LL_THRESHOLD 16 KiB.
[[nodiscard]] WireBuffers wire_buffers();

}  // namespace slimwire::emu
