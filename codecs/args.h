// What a codec operation is told: parameters and argument structs, plain data shared by host
// bodies, kernels and everyone who enqueues. Apart from codec.h so that kernels, which are compiled
// against the CUDA Toolkit's own headers, read nothing else.
#pragma once

#include <cstdint>

#include "codecs/base/dtype.h"

namespace slimwire {

// Parameters of a codec as its operations see them: plain data, part of every argument struct.
// Which members a codec reads, and their ranges, is said by its descriptor's grammar.
struct CodecParams {
    uint16_t block = 0;      // elements that share one scale; 0 where a codec has no blocks
    uint8_t bits = 0;        // bits of one code
    uint8_t scale_type = 0;  // ScaleType
    uint8_t rounding = 0;    // Rounding
    uint8_t target = 0;      // DType of a cast's encoded elements
    uint16_t reserved = 0;   // zero
    bool operator==(const CodecParams&) const = default;
};

enum class ScaleType : uint8_t { kBfloat16 = 0, kFloat32 = 1 };
enum class Rounding : uint8_t { kNearest = 0 };  // nearest: ties to even

// --- Argument structs of the device operations. Plain data, at most 4 KiB, the same for the host
// --- body and the kernel. Pointers are device pointers (host bodies resolve them by device_view).

// Encodes `count` elements, cut into chunks of `chunk_elems` (the last may be short); chunk c is an
// independent encoding at output + c * slot_bytes. Bytes of a slot after the encoding of its chunk,
// and slots of chunks that hold no element, are left untouched by the host body and the kernel
// alike.
//   p = scale * (scale_ptr ? *scale_ptr : 1) * input + (residual ? residual : 0), in fp32
//   output = encode(p); residual = p - decode(encode(p)) rounded to fp32
// A block with a non-finite p encodes as poison (decodes non-finite) and keeps its old residual.
struct EncodeArgs {
    const void* input;      // count elements of `dtype`, aligned to the element size
    void* output;           // ceil(count / chunk_elems) slots; 16-byte aligned
    float* residual;        // null, or count fp32, read and rewritten; 4-byte aligned
    const void* scale_ptr;  // null, or one element of `dtype`, read when the operation runs
    float scale;
    int64_t count;
    int64_t chunk_elems;  // > 0; a multiple of the codec's granule() unless one chunk covers all
    int64_t slot_bytes;   // multiple of 16, >= encoded_bytes(chunk_elems)
    CodecParams params;
    DType dtype;
};

// The inverse, with the same chunking: output = (accumulate ? output : 0) + decode, rounded once to
// `dtype` (nearest even).
struct DecodeArgs {
    const void* input;
    void* output;
    int64_t count;
    int64_t chunk_elems;
    int64_t slot_bytes;
    CodecParams params;
    DType dtype;
    bool accumulate;
};

// One chunk of `count` elements from `inputs` ranks, source i at input + i * input_stride:
//   p = scale * (sum over i = 0, 1, ... of decode(source i), in fp32, in that order)
//       + (residual ? residual : 0)
//   output = encode(p); residual as for EncodeArgs
// `dtype` is the element type of the user's buffer; sums stay fp32.
struct DecodeReduceEncodeArgs {
    const void* input;
    void* output;
    float* residual;
    int64_t input_stride;  // bytes, multiple of 16
    int64_t count;
    int32_t inputs;
    float scale;
    CodecParams params;
    DType dtype;
};

static_assert(sizeof(EncodeArgs) <= 4096 && sizeof(DecodeReduceEncodeArgs) <= 4096);

}  // namespace slimwire
