// The norm of the sum of many buffers without their sum: every element is added, with a sign, to
// one of a few thousand cells, both by hashes of its index (count sketch; Charikar, Chen, Farach-
// Colton 2002). A sketch of the sum is the sum of the sketches, and the squares of its cells add up
// to the sum's own squares within a standard deviation of sqrt(2 / cells), 3.1 %: of the norm, 1.6
// %. Not a codec: no wire bytes come of it.
//
// Buffers that lie in parts, each with its own rows (SketchArgs::first_row), are sketched apart,
// and the cells of the parts add up to the whole one's.
//
// A buffer with a number that is not finite is counted and leaves the cells as they are.
//
// Called by the controller of compression in collectives/. Host body and kernels, equal to the bit;
// nothing is read on the host, and graphs replay it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/args.h"

namespace slimwire {

inline constexpr int64_t kSketchCells = 2048;
inline constexpr int64_t kSketchUnit = 8;  // neighbours that stay together
inline constexpr int64_t kSketchUnits = kSketchCells / kSketchUnit;

// Zero before the first.
struct SketchState {
    uint32_t buffers;  // that were added
    uint32_t skipped;  // that were not, because they held a number that is not finite
    uint32_t reserved[2];
    float cells[kSketchCells];
};

struct SketchArgs {
    const void* input;   // `count` elements of `dtype`
    SketchState* state;  // 16-byte aligned
    void* workspace;     // sketch_workspace_bytes(), 16-byte aligned
    int64_t count;
    int64_t first_row;  // number of the first row: where parts of a buffer are looked at apart
    DType dtype;
};

constexpr int64_t sketch_rows(int64_t count) {
    return (count + kSketchCells - 1) / kSketchCells;
}

// Rows of kSketchCells elements are summed part by part, and then the parts in order: the same sums
// whatever the device.
struct SketchParts {
    static constexpr int64_t kMost = 512;
    int64_t rows;
    int64_t rows_each;
    int64_t parts;

    static constexpr SketchParts of(int64_t count) {
        const int64_t rows = sketch_rows(count);
        const int64_t fair = (rows + kMost - 1) / kMost;
        const int64_t each = fair < 4 ? 4 : fair;
        return {rows, each, (rows + each - 1) / each};
    }
};

#ifdef __CUDACC__
#define SLIMWIRE_SKETCH __host__ __device__ inline
#else  // Never a function of its own: objects of every instruction set include this.
#define SLIMWIRE_SKETCH [[gnu::always_inline]] inline
#endif

// Of 32 bits, every bit of the result depends on every bit given (Wellons's lowbias32).
SLIMWIRE_SKETCH uint32_t sketch_mix(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    return x ^ x >> 16;
}

// Where a row's elements go: unit u to unit (u + turn) mod kSketchUnits, there neighbour k ^ swap
// to lane k.
struct SketchRow {
    uint32_t word;
    uint32_t turn;
    uint32_t swap;
};
SLIMWIRE_SKETCH SketchRow sketch_row(int64_t row) {
    const uint32_t word = sketch_mix(static_cast<uint32_t>(row) + 0x9E3779B9u);
    return {word, word % static_cast<uint32_t>(kSketchUnits), word >> 16 & 7};
}
// Bit k: whether what comes to lane k of that unit changes its sign.
SLIMWIRE_SKETCH uint32_t sketch_signs(const SketchRow& row, uint32_t unit) {
    return sketch_mix(row.word + 0x85EBCA6Bu * (unit + 1));
}

SLIMWIRE_OPERATION(sketch, SketchArgs)

// Device memory at SketchArgs::workspace.
[[nodiscard]] constexpr int64_t sketch_workspace_bytes(int64_t count) noexcept {
    return SketchParts::of(count).parts * (kSketchCells + 4) * static_cast<int64_t>(sizeof(float));
}

// The estimated sum of squares, in a fixed order.
[[nodiscard]] double sketch_energy(const SketchState& state) noexcept;

}  // namespace slimwire
