// A piece: up to piece_bytes of a message, compressed by itself. As sent it is either shorter than
// what it stands for, and then
//
//   the palette encoding of its whole elements (codecs/FORMAT.md), then the bytes after the last
//   whole element, fewer than an element has
//
// or exactly as long, and then the bytes themselves. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codecs/base/dtype.h"
#include "codecs/base/status.h"

namespace slimwire::net {

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

}  // namespace slimwire::net
