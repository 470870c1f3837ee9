// The host bodies as one table per family and instruction set. codecs/<family>/host/<family>.cpp is
// compiled once for each set, with its flags, and defines nothing but its table: an inline function
// or template shared with other objects would be emitted with instructions that older processors
// lack, and the linker might keep that copy for all. The test codecs.isa_symbols looks at the
// objects.
//
// One call works on one chunk. Pointers are plain host pointers, already resolved by device_view;
// user-side pointers are aligned to their element, code planes to nothing.
#pragma once

#include <cstdint>

#include "codecs/base/dtype.h"
#include "codecs/base/isa.h"
#include "codecs/numeric.h"
#include "codecs/threefry.h"

namespace slimwire {

// What stochastic rounding of one chunk draws: the key, and the last two words of the counter.
struct ChunkRandom {
    RandomWords key;
    uint32_t chunk;
    uint32_t step;
};

// p = factor * input (+ residual), in fp32, is encoded.
struct EncodeChunk {
    const uint8_t* input;  // count elements of `dtype`
    uint8_t* output;       // the encoding of this chunk
    float* residual;       // null, or count
    int64_t count;         // > 0
    float factor;
    DType dtype;
    ChunkRandom random;
    int64_t slot_bytes;  // that may be written
    uint32_t* status;    // null, or where OperationStatus bits are set
};

struct DecodeChunk {
    const uint8_t* input;
    uint8_t* output;  // count elements of `dtype`
    int64_t count;    // > 0
    DType dtype;
    bool accumulate;
    float scale;         // of codecs without a reduction
    SumLimit sum_limit;  // of what is accumulated
    int64_t slot_bytes;  // that may be read
    uint32_t* status;
};

// p = factor * (sum of the decoded sources, each times input_scale, within sum_limit) (+ residual)
// in fp32 is encoded, or without a residual written as elements.
struct ReduceChunk {
    const uint8_t* input;  // source i at input + i * input_stride
    uint8_t* output;
    float* residual;
    int64_t input_stride;
    int64_t count;  // > 0
    int32_t inputs;
    float input_scale;
    SumLimit sum_limit;
    float factor;
    ChunkRandom random;
    uint32_t* status;
    DType dtype;  // of the user's elements
};

// The bodies of a codec whose operations take what its parameters mean.
template <class Shape>
struct ChunkKernels {
    void (*encode)(const EncodeChunk&, const Shape&);
    void (*decode)(const DecodeChunk&, const Shape&);
    void (*reduce)(const ReduceChunk&, const Shape&);
    void (*sum)(const ReduceChunk&, const Shape&);  // to elements
};

// SLIMWIRE_HOST_FAMILY(Table, name, widest) in <family>/host/table.h declares a family's tables, by
// Isa; the scalar one where a processor never has the instruction set. `widest`: the last set that
// codecs/meson.build compiles the family for.
template <class Table>
struct HostFamily;
#ifdef __x86_64__
#define SLIMWIRE_HOST_FAMILY(Table, name, widest)                                         \
    extern const Table name##_scalar;                                                     \
    extern const Table name##_avx2;                                                       \
    extern const Table name##_##widest;                                                   \
    template <>                                                                           \
    struct HostFamily<Table> {                                                            \
        static constexpr const Table* kTables[kIsaCount] = {&name##_scalar, &name##_avx2, \
                                                            &name##_##widest};            \
    };
#else
#define SLIMWIRE_HOST_FAMILY(Table, name, widest)                                           \
    extern const Table name##_scalar;                                                       \
    template <>                                                                             \
    struct HostFamily<Table> {                                                              \
        static constexpr const Table* kTables[kIsaCount] = {&name##_scalar, &name##_scalar, \
                                                            &name##_scalar};                \
    };
#endif

// The family's table of active_isa().
template <class Table>
[[nodiscard]] const Table& host_table() noexcept {
    return *HostFamily<Table>::kTables[static_cast<int>(active_isa())];
}

}  // namespace slimwire
