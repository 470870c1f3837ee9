// A piece: up to piece_bytes of a message, compressed by itself. As sent it is either shorter than
// what it stands for, and then
//
//   the palette encoding of its whole elements (codecs/FORMAT.md), then the bytes after the last
//   whole element, fewer than an element has
//
// or exactly as long, and then the bytes themselves. Any thread. encode_piece() and decode_piece()
// work in host memory; the others are what surrounds a codec operation that runs elsewhere (gpu/),
// over several pieces at once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codecs/args.h"
#include "codecs/base/dtype.h"
#include "codecs/base/status.h"

namespace slimwire {
struct CodecSpec;
}

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

// The codec of pieces.
[[nodiscard]] const CodecSpec& piece_codec();

// The operations over the whole elements of `bytes` (at least one element) in pieces of
// `piece_bytes`; piece i of the encodings at its buffer + i * slot_bytes (a multiple of 16, at
// least piece_capacity()). Where the pieces are several, each but the last holds whole blocks of
// the codec (pieces_align()).
[[nodiscard]] EncodeArgs piece_encode_args(DType element,
                                           const void* source,
                                           size_t bytes,
                                           size_t piece_bytes,
                                           void* output,
                                           size_t slot_bytes);
[[nodiscard]] DecodeArgs piece_decode_args(DType element,
                                           const void* received,
                                           size_t slot_bytes,
                                           void* output,
                                           size_t bytes,
                                           size_t piece_bytes);
[[nodiscard]] bool pieces_align(DType element, size_t piece_bytes);

// Ends a piece of `bytes` whose elements are encoded at `output`: appends the `tail`, its bytes
// after the last whole element. The bytes to send, as encode_piece() says.
[[nodiscard]] size_t finish_piece(DType element,
                                  uint8_t* output,
                                  size_t bytes,
                                  const uint8_t* tail);

// Whether `size` received bytes, fewer than `bytes`, can be such a piece; *encoded is where its
// tail begins. kRemoteError otherwise.
Status check_piece(
    DType element, const uint8_t* received, size_t size, size_t bytes, size_t* encoded);
// What a piece that the codec refuses is called.
[[nodiscard]] Status corrupt_piece(size_t size, size_t bytes);

}  // namespace slimwire::net
