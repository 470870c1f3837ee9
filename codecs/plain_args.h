// What the operations beside the codecs are told, and their launchers: plain data shared by host
// bodies, kernels and everyone who enqueues (sum_rows.h, move_ranges.h, measure.h). Apart from
// those headers so that kernels, which are compiled against the CUDA Toolkit's own headers, read
// nothing else. Pointers are device pointers; host bodies resolve them by device_view.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/args.h"
#include "codecs/base/dtype.h"
#include "codecs/residual/residual_type.h"

namespace slimwire {

// output[i] = s * (row_0[i] + row_1[i] + ...) with s = scale * (scale_ptr ? *scale_ptr : 1),
// rounded to fp32: sums in fp32 in that order, one multiplication, rounded once to `output_dtype`
// (nearest even; NaN canonical). One row and scale 1 convert. Types: fp32, fp16, bf16 on both
// sides.
struct SumRowsArgs {
    const void* input;  // row r at input + r * row_bytes; aligned to the element size
    void* output;       // count elements, aligned to the element size; outside of all rows, or one
                        // of them where both types have the same size
    int64_t row_bytes;  // a multiple of the element size
    int64_t count;      // elements of a row, >= 0
    int32_t rows;       // > 0
    float scale;
    DType input_dtype;
    DType output_dtype;
    int32_t max_blocks = 0;  // thread blocks that the kernel may occupy; 0: as many as run at once
    const void* scale_ptr = nullptr;  // or one element of `input_dtype`, read when it runs
};

// *counter += by, modulo 2^32, when the operation runs: what a captured graph advances on replays,
// such as the word behind RandomKey::step_ptr.
struct AdvanceArgs {
    uint32_t* counter;  // a device word
    uint32_t by;
};

// Elements that lie in several ranges of a buffer and one after another in chunks: what of a
// message travels as it is. The elements of range r are those from `begin` of it to `begin` of the
// next, or to `end`; element i of all lies in chunk i / chunk_elems.
struct MovedRange {
    int64_t element;  // of the buffer, where the range begins
    int64_t begin;    // among the elements of all ranges of the message; ascending
};
inline constexpr int kMostMovedRanges = 240;  // of one launch
// to = s * from with s = scale * (scale_ptr ? *scale_ptr : 1), rounded twice, NaN canonical; with a
// scale of 1 and no scale_ptr the bits as they are. Types: fp32, fp16, bf16. Writes no byte beside
// these elements.
struct MoveRangesArgs {
    void* buffer;           // aligned to the element size; only read where to_chunks
    void* chunks;           // chunk c at chunks + c * chunk_bytes; 16-byte aligned
    int64_t chunk_elems;    // a multiple of kMovedTogether
    int64_t chunk_bytes;    // a multiple of 16
    int64_t end;            // of the last range, as its begin
    const void* scale_ptr;  // or one element of `dtype`, read when it runs
    float scale;
    DType dtype;
    bool to_chunks;      // else from them
    int32_t ranges;      // > 0
    int32_t max_blocks;  // thread blocks that the kernel may occupy; 0: as many as run at once
    MovedRange list[kMostMovedRanges];
};
inline constexpr int64_t kMovedTogether = 8;
static_assert(sizeof(MoveRangesArgs) <= 4096 - 64);

// What measuring finds in a buffer. Every sum is of fp64 in a fixed order: element i belongs to
// lane i mod kMeasureLanes, a lane adds its elements in their order, then kMeasureThreads
// neighbouring lanes and after them the kMeasureBlocks such groups are added in pairs (the first
// half and the second half, again and again).
struct Measured {
    double square_sum;        // of the finite elements
    double error_square_sum;  // of element - other element, where both are finite; 0 without other
    uint64_t zeros;
    uint64_t nonfinite;
    float largest;            // magnitude of a finite element
    uint32_t done;            // MeasureArgs::mark, written last; read it with acquire order
    uint32_t exponents[256];  // how many elements have this exponent, as fp32 stores it
};
inline constexpr int kMeasureThreads = 256;
inline constexpr int kMeasureBlocks = 64;
inline constexpr int64_t kMeasureLanes = int64_t{kMeasureThreads} * kMeasureBlocks;

// Device memory between the two kernels of an operation, not shared by operations in flight. Zero
// before the first; each leaves it as it needs it.
struct MeasureWork {
    double squares[kMeasureBlocks], errors[kMeasureBlocks];
    unsigned long long zeros, nonfinite;
    uint32_t largest;
    uint32_t exponents[256];
};

// *result = what is in p[i] = scale * (scale_ptr ? *scale_ptr : 1) * input[i], in fp32, and how far
// other[i] is from it.
struct MeasureArgs {
    const void* input;      // count elements of `dtype` (fp32, fp16, bf16), aligned to their size
    const void* other;      // null, or as many of the same type
    const void* scale_ptr;  // null, or one element of `dtype`, read when it runs
    MeasureWork* work;
    Measured* result;  // memory that the device can write and whoever waits for `done` can read
    int64_t count;     // >= 0
    float scale;
    DType dtype;
    uint32_t mark;
};

// A run of the stored residuals of one tensor, from element `first` on. kInt8: the codes of all
// elements, then the scales of all blocks.
struct StoredResiduals {
    void* bytes;    // of the whole store; 16-byte aligned
    int64_t elems;  // of the whole store; a multiple of kResidualBlock for kInt8
    int64_t first;  // a multiple of kResidualBlock unless kFloat32
    ResidualType type;
};

// output[i] = the stored value i of the run.
struct TakeResidualArgs {
    StoredResiduals stored;
    float* output;
    int64_t count;
    int32_t max_blocks = 0;  // thread blocks that the kernel may occupy; 0: as many as run at once
};

// stored[i] = keep * stored[i] + take * input[i], where input[i] differs from stored[i] in a bit,
// and the result is finite; rounded stochastically to the type, a block of int8 only where it
// changes. The end of the last block of int8, beyond count, belongs to the run.
struct PutResidualArgs {
    StoredResiduals stored;
    const float* input;  // finite
    int64_t count;
    float keep;  // 0 and 1: what the encoding left takes the place of the stored value
    float take;
    RandomKey random = {};
    int32_t max_blocks = 0;
};

// Every value of the store times `factor`, rounded once to its type: of int8 the scales alone. What
// would not be finite becomes the largest finite value.
struct RescaleResidualArgs {
    StoredResiduals stored;  // whole: `first` is 0
    float factor;            // positive and finite; powers of two are exact but for underflow
    int32_t max_blocks = 0;
};

// One launch on `stream` of the current device; the launch error comes back. In builds with CUDA.
cudaError_t sum_rows_on_cuda(const SumRowsArgs& args, cudaStream_t stream);
cudaError_t advance_on_cuda(const AdvanceArgs& args, cudaStream_t stream);
cudaError_t take_residual_on_cuda(const TakeResidualArgs& args, cudaStream_t stream);
cudaError_t put_residual_on_cuda(const PutResidualArgs& args, cudaStream_t stream);
cudaError_t rescale_residual_on_cuda(const RescaleResidualArgs& args, cudaStream_t stream);
cudaError_t move_ranges_on_cuda(const MoveRangesArgs& args, cudaStream_t stream);
cudaError_t measure_on_cuda(const MeasureArgs& args, cudaStream_t stream);  // two launches

}  // namespace slimwire
