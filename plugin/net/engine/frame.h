// What a connection sends (README.md): frames, the pieces of a message, and its checksum.
//
// A frame is what a control message begins with: little-endian, 48 bytes. Every frame announces one
// message of the sender, or ends one.
//
// A receiver trusts nothing in it: read_frame() refuses what no sender writes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codecs/base/dtype.h"
#include "codecs/base/status.h"
#include "plugin/net/wire.h"

namespace slimwire::net {

enum class FrameKind : uint8_t {
    kInline = 1,  // the message follows in the same control message
    kRaw = 2,     // the message as it is: one data message
    kCoded = 3,   // ceil(bytes / piece_bytes) data messages, each a piece
    kEnd = 4,     // the checksum of the message `sequence`, whose data messages have been sent
};

inline constexpr uint8_t kFrameChecksum = 1;  // flag: `checksum` counts (kInline), or kEnd follows

struct Frame {
    uint32_t magic;
    uint8_t version;
    FrameKind kind;
    uint8_t flags;
    DType element;         // kCoded: what the palette took the elements for
    uint64_t sequence;     // of the message in its connection, from 0
    uint64_t bytes;        // of the message
    int32_t tag;           // NCCL's
    uint32_t piece_bytes;  // kCoded; kRaw: 0
    uint64_t checksum;     // checksum_of()
    uint64_t check;        // of the bytes before, so that no damaged frame is believed
};
static_assert(sizeof(Frame) == 48);

inline constexpr uint32_t kFrameMagic = 0x77464C53;  // "SLFw" in memory
inline constexpr uint8_t kFrameVersion = 1;
inline constexpr size_t kInlineBytes = kControlBytes - sizeof(Frame);
inline constexpr size_t kLeastPieceBytes = 4096;
inline constexpr size_t kMostPieceBytes = 4 << 20;

// Data messages of a message; `piece_bytes` as in its frame.
[[nodiscard]] constexpr uint64_t pieces_of(uint64_t bytes, uint64_t piece_bytes) noexcept {
    return piece_bytes == 0 ? 1 : (bytes + piece_bytes - 1) / piece_bytes;
}

// Writes the frame with its check.
void write_frame(const Frame& frame, uint8_t* message) noexcept;

// Reads the frame at the begin of a control message of `size` bytes. kRemoteError says what is
// wrong with it.
Result<Frame> read_frame(const uint8_t* message, size_t size);

// A piece: up to piece_bytes of a message, compressed by itself. As sent it is either shorter than
// what it stands for, and then
//
//   the palette encoding of its whole elements (codecs/FORMAT.md), then the bytes after the last
//   whole element, fewer than an element has
//
// or exactly as long, and then the bytes themselves. Any thread.

// Bytes that the buffer of an encoded piece must have; it is aligned to 64.
[[nodiscard]] size_t piece_capacity(size_t piece_bytes);

// Encodes `bytes` at `source` (aligned to the element) into `output` (piece_capacity(bytes) bytes).
// The bytes to send; `bytes` when the encoding is not at least 1/32 shorter: then the source itself
// is to be sent.
[[nodiscard]] size_t encode_piece(DType element,
                                  const uint8_t* source,
                                  size_t bytes,
                                  uint8_t* output);

// Decodes `size` received bytes (aligned to 64) to `bytes` at `output`, any alignment. With
// `write_once` the output is written from its begin to its end once, with its final bytes, by a
// plain copy. kRemoteError when they are no piece of that many bytes.
Status decode_piece(DType element,
                    const uint8_t* received,
                    size_t size,
                    uint8_t* output,
                    size_t bytes,
                    bool write_once);

// A copy for a reader that looks at the bytes while they come: NCCL's protocol LL128 polls a flag
// at the end of every line and takes the line's data as soon as it is there.
//
// Copies between distinct memory so that a reader on another thread, or on the device, who finds a
// word also finds all that stands before it: 8 bytes at a time, ascending, each a release. memcpy()
// promises no order; glibc's stores the first bytes of more than a few vectors last.
void copy_in_order(void* output, const void* input, size_t bytes) noexcept;

}  // namespace slimwire::net
