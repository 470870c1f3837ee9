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
#include "codecs/block_float/block_float_shape.h"
#include "codecs/block_int/block_int_shape.h"
#include "codecs/bounded/bounded_format.h"
#include "codecs/palette/palette_format.h"
#include "codecs/quantizers/quantizer_shape.h"
#include "codecs/sparse/sparse_plan.h"
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
    int64_t slot_bytes;  // that may be read
    uint32_t* status;
};

// p = factor * (sum of the decoded sources) (+ residual), in fp32, is encoded, or without a
// residual written as elements.
struct ReduceChunk {
    const uint8_t* input;  // source i at input + i * input_stride
    uint8_t* output;
    float* residual;
    int64_t input_stride;
    int64_t count;  // > 0
    int32_t inputs;
    float factor;
    ChunkRandom random;
    uint32_t* status;
    DType dtype;  // of the user's elements
};

struct BlockIntKernels {
    void (*encode)(const EncodeChunk&, const BlockIntShape&);
    void (*decode)(const DecodeChunk&, const BlockIntShape&);
    void (*reduce)(const ReduceChunk&, const BlockIntShape&);
    void (*sum)(const ReduceChunk&, const BlockIntShape&);  // to elements
};

struct BlockFloatKernels {
    void (*encode)(const EncodeChunk&, const BlockFloatShape&);
    void (*decode)(const DecodeChunk&, const BlockFloatShape&);
    void (*reduce)(const ReduceChunk&, const BlockFloatShape&);
    void (*sum)(const ReduceChunk&, const BlockFloatShape&);  // to elements
};

struct QuantizerKernels {
    void (*encode)(const EncodeChunk&, const QuantizerShape&);
    void (*decode)(const DecodeChunk&, const QuantizerShape&);
    void (*reduce)(const ReduceChunk&, const QuantizerShape&);
    void (*sum)(const ReduceChunk&, const QuantizerShape&);  // to elements
};

struct CastKernels {
    void (*encode)(const EncodeChunk&, bool stochastic);
    void (*decode)(const DecodeChunk&);
    void (*reduce)(const ReduceChunk&, bool stochastic);
    void (*sum)(const ReduceChunk&);  // to elements
};

struct PaletteKernels {
    // Counts are of the kind's elements: of bytes for PaletteKind::kBytes.
    // Writes at most `capacity` bytes; sets kStatusOverflow, and says so in the header, when that
    // is too little.
    void (*encode)(const EncodeChunk&, PaletteKind, int64_t capacity);
    // Reads at most `size` bytes; sets kStatusCorrupt for bytes that no encoder writes, and
    // kStatusOverflow where the encoder did, which only a `slotted` one can.
    void (*decode)(const DecodeChunk&, PaletteKind, int64_t size, bool slotted);
};

// Rows of plain elements, see SumRowsArgs.
struct SumRowsChunk {
    const uint8_t* input;
    uint8_t* output;
    int64_t row_bytes;
    int64_t count;
    int32_t rows;
    float scale;
    DType input_dtype;
    DType output_dtype;
};
struct SumRowsTable {
    void (*sum)(const SumRowsChunk&);
};

// One matrix and its factors, see LowRankArgs. M = factor * input (+ residual).
struct LowRankChunk {
    const uint8_t* input;
    float* residual;  // null, or rows * cols
    uint8_t* output;
    float* left;   // column after column
    float* right;  // column after column
    int64_t rows;
    int64_t cols;
    int32_t rank;
    float factor;
    float mean;
    float result;
    DType dtype;
};
struct LowRankTable {
    void (*multiply_right)(const LowRankChunk&);
    void (*orthogonalise)(const LowRankChunk&);
    void (*multiply_left)(const LowRankChunk&);
    void (*restore)(const LowRankChunk&);
};

// Rows [row, end) of a sketch's input, a part of it, are added to the cells.
struct SketchPart {
    const uint8_t* input;  // `count` elements of `dtype`, in rows of kSketchCells
    int64_t count;
    int64_t first_row;  // number of row 0
    int64_t row, end;
    DType dtype;
    float* cells;  // kSketchCells
};
struct SketchTable {
    // False where a sum of the part is not finite; the cells then stay as they are.
    bool (*add_part)(const SketchPart&);
};

struct BlockIntTable {
    BlockIntKernels int8, int4, int2;
};
struct BlockFloatTable {
    BlockFloatKernels fp8e4m3, fp8e5m2, mxfp4, nvfp4;
};
struct QuantizerTable {
    QuantizerKernels sign;
    QuantizerKernels levels2, levels4, levels6, levels8;  // by the bits of a code
    QuantizerKernels powers8, powers4;
};
struct CastTable {
    CastKernels bfloat16, float16;
};
struct SparseTable {
    void (*encode)(const EncodeChunk&, const SparsePlan&);
    void (*decode)(const DecodeChunk&, const SparsePlan&);
    void (*reduce)(const ReduceChunk&, const SparsePlan&);
    void (*sum)(const ReduceChunk&, const SparsePlan&);  // to elements
    // Magnitude bits of the smallest of the plan.capacity largest elements.
    uint32_t (*cut)(const EncodeChunk&, const SparsePlan&);
    // Elements not below the magnitude.
    int64_t (*reach)(const EncodeChunk&, uint32_t least);
};
struct BoundedTable {
    void (*encode)(const EncodeChunk&, const BoundedPlan&);
    void (*decode)(const DecodeChunk&, const BoundedPlan&);
    void (*reduce)(const ReduceChunk&, const BoundedPlan&);
    void (*sum)(const ReduceChunk&, const BoundedPlan&);  // to elements
};
struct PaletteTable {
    PaletteKernels palette;
};

// A family's tables, by Isa; the scalar one where a processor never has the instruction set. Only
// the block integers, casts and palette have bodies for AVX-512, as codecs/meson.build lists.
template <class Table>
struct HostFamily;
#ifdef SLIMWIRE_HAVE_X86_TABLES
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
SLIMWIRE_HOST_FAMILY(BlockIntTable, host_block_int, avx512)
SLIMWIRE_HOST_FAMILY(CastTable, host_cast, avx512)
SLIMWIRE_HOST_FAMILY(PaletteTable, host_palette, avx512)
SLIMWIRE_HOST_FAMILY(BlockFloatTable, host_block_float, avx2)
SLIMWIRE_HOST_FAMILY(QuantizerTable, host_quantizers, avx2)
SLIMWIRE_HOST_FAMILY(BoundedTable, host_bounded, avx2)
SLIMWIRE_HOST_FAMILY(SparseTable, host_sparse, avx2)
SLIMWIRE_HOST_FAMILY(SumRowsTable, host_sum_rows, avx2)
SLIMWIRE_HOST_FAMILY(LowRankTable, host_low_rank, avx2)
SLIMWIRE_HOST_FAMILY(SketchTable, host_sketch, avx2)
#undef SLIMWIRE_HOST_FAMILY

// The family's table of active_isa().
template <class Table>
[[nodiscard]] const Table& host_table() noexcept {
    return *HostFamily<Table>::kTables[static_cast<int>(active_isa())];
}

}  // namespace slimwire
