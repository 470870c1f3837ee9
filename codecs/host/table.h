// The host bodies as one table per instruction set. codecs/host/kernels.cpp is compiled once for
// each set, with its flags, and defines nothing but its table: an inline function or template
// shared with other objects would be emitted with instructions that older processors lack, and the
// linker might keep that copy for all. The test codecs.isa_symbols looks at the objects.
//
// One call works on one chunk. Pointers are plain host pointers, already resolved by device_view;
// user-side pointers are aligned to their element, code planes to nothing.
#pragma once

#include <cstdint>

#include "codecs/base/dtype.h"

namespace slimwire {

// p = factor * input (+ residual), in fp32, is encoded.
struct EncodeChunk {
    const uint8_t* input;  // count elements of `dtype`
    uint8_t* output;       // the encoding of this chunk
    float* residual;       // null, or count
    int64_t count;         // > 0
    float factor;
    DType dtype;
};

struct DecodeChunk {
    const uint8_t* input;
    uint8_t* output;  // count elements of `dtype`
    int64_t count;    // > 0
    DType dtype;
    bool accumulate;
};

// p = factor * (sum of the decoded sources) (+ residual), in fp32, is encoded.
struct ReduceChunk {
    const uint8_t* input;  // source i at input + i * input_stride
    uint8_t* output;
    float* residual;
    int64_t input_stride;
    int64_t count;  // > 0
    int32_t inputs;
    float factor;
};

struct BlockIntShape {
    uint32_t block;  // elements, power of two, 16..2048
    bool scale_is_float32;
};

struct BlockIntKernels {
    void (*encode)(const EncodeChunk&, const BlockIntShape&);
    void (*decode)(const DecodeChunk&, const BlockIntShape&);
    void (*reduce)(const ReduceChunk&, const BlockIntShape&);
};

struct CastKernels {
    void (*encode)(const EncodeChunk&);
    void (*decode)(const DecodeChunk&);
    void (*reduce)(const ReduceChunk&);
};

struct HostTable {
    BlockIntKernels int8, int4, int2;
    CastKernels bfloat16, float16;
};

extern const HostTable host_table_scalar;
extern const HostTable host_table_avx2;
extern const HostTable host_table_avx512;

// The table of active_isa().
[[nodiscard]] const HostTable& host_table() noexcept;

}  // namespace slimwire
