// Looks at a buffer without changing it: norm, largest element, zeros, non-finite elements,
// exponents, and the distance to another buffer. Not a codec: no wire bytes come of it.
//
// Called by the modes of collectives/ that observe, on the stream of the program's
// call. A host body and two kernels, equal to the bit; the result lies where the host can read it,
// so nobody waits on a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/args.h"
#include "codecs/numeric.h"

namespace slimwire {

// What measuring finds in a buffer; sums are of fp64 in the order of kMeasureLanes.
struct Measured {
    double square_sum;        // of the finite elements
    double error_square_sum;  // of element - other element, where both are finite; 0 without other
    uint64_t zeros;
    uint64_t nonfinite;
    float largest;            // magnitude of a finite element
    uint32_t done;            // MeasureArgs::mark, written last; read it with acquire order
    uint32_t exponents[256];  // how many elements have this exponent, as fp32 stores it
};

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
    const void* input;  // count elements of `dtype` (fp32, fp16, bf16), aligned to their size
    const void* other = nullptr;      // null, or as many of the same type
    const void* scale_ptr = nullptr;  // null, or one element of `dtype`, read when it runs
    MeasureWork* work;
    Measured* result;  // memory that the device can write and whoever waits for `done` can read
    int64_t count;     // >= 0
    float scale = 1.0f;
    DType dtype;
    uint32_t mark;
};

SLIMWIRE_OPERATION(measure, MeasureArgs)  // in two launches

// Whether elements of this type can be measured.
[[nodiscard]] constexpr bool can_measure(DType dtype) noexcept {
    return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBfloat16;
}

// Bits that an ideal code spends on the exponent of one element (Shannon's entropy of the counts);
// what is left of a bf16 element are its sign and 7 bits. 0 of nothing.
[[nodiscard]] double exponent_entropy_bits(const uint32_t (&exponents)[256]) noexcept;

}  // namespace slimwire
