// Where everything of one sparse encoding stands: computed once for a chunk from parameters,
// element type and count, then read by host bodies and kernels. Plain data: any object may include
// it, and call sparse_plan() unless it is of codecs/host. The bytes themselves: FORMAT.md,
// "Sparse".
#pragma once

#include <cstdint>

#include "codecs/args.h"

namespace slimwire {

enum class SparseKind : uint8_t {
    kTopK = 0,       // the largest of the chunk
    kThreshold = 1,  // those not below a threshold, up to a capacity
    kGroups = 2,     // the largest of every block or row
    kRuns = 3,       // runs drawn by the generator
};

// How positions are written.
enum class IndexForm : uint8_t {
    kBitmap = 0,     // a bit for every element
    kLocal8 = 1,     // a byte within 256 elements
    kLocal16 = 2,    // two bytes within 65536 elements
    kEliasFano = 3,  // half a byte within 16 elements, and a bit for each value and each sixteen
    kNone = 4,       // positions follow from the generator
};

inline constexpr int64_t kSparseSpan = 8192;     // elements that share a table entry
inline constexpr int64_t kSparseSegment = 256;   // one byte reaches
inline constexpr int64_t kSparseWide = 65536;    // two bytes reach
inline constexpr int64_t kLocal8Entry = 40;      // table bytes of a span: start, full, 32 counts
inline constexpr int64_t kEliasElems = 512;      // elements whose sixteens fill a word of bits
inline constexpr int64_t kEliasWords = 17;       // words of a span beyond a bit a value
inline constexpr int64_t kSparseRun = 32;        // elements of a run
inline constexpr int64_t kSparseBlock = 64;      // kept values that share a scale
inline constexpr int64_t kSparseHeader = 16;     // bytes
inline constexpr uint32_t kFlagNonFinite = 256;  // header word 3: something non-finite is not sent
inline constexpr int64_t kMaxSparseGroup = 16384;  // elements of a row

struct SparsePlan {
    int64_t count;     // elements of the chunk
    int64_t capacity;  // values that the encoding has room for
    int64_t group;     // elements of a block, row or run; 0: none
    int64_t groups;    // blocks, rows or strata
    int64_t indices;   // offset of the indices, after the table; the table stands after the header
    int64_t lows;      // kEliasFano: offset of the half bytes, after the bits
    int64_t values;    // offset of the values
    int64_t scales;    // offset of their scales
    int64_t bytes;     // of the encoding
    uint32_t kept;     // values of each group
    uint32_t seed;
    uint32_t threshold;  // magnitude bits
    SparseKind kind;
    IndexForm form;
    ValueFormat format;
    DType dtype;
};

// The plan of a chunk of `count` elements; all zero for count <= 0.
[[nodiscard]] SparsePlan sparse_plan(SparseKind kind,
                                     const CodecParams& params,
                                     DType dtype,
                                     int64_t count);

}  // namespace slimwire
