// Arithmetic of the reductions, on host memory, for all of NCCL's types. Half, bfloat16 and fp8 are
// computed in fp32 and rounded once to the element type at each step, as the ring's hops do on a
// GPU; integers wrap. Thread contract: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codecs/base/dtype.h"

namespace slimwire::emu {

enum class ReduceOp : uint8_t { kSum, kProd, kMax, kMin };

// A factor applied to an input before it is reduced: one element of the reduction's type.
struct PreScale {
    bool enabled = false;
    alignas(8) unsigned char element[8] = {};
};

// output[i] = op(a[i], scale * b[i]); `output` may be `a` or `b`.
void reduce_elements(DType type,
                     ReduceOp op,
                     void* output,
                     const void* a,
                     const void* b,
                     size_t count,
                     const PreScale& scale);

// output[i] = scale * input[i], rounded to the type; `output` may be `input`.
void scale_elements(
    DType type, void* output, const void* input, size_t count, const PreScale& scale);

// data[i] /= divisor, for the average of integers; leaves floating types alone.
void divide_integers(DType type, void* data, size_t count, int divisor);

// The element of `type` nearest to 1 / n, for the average of floats; not enabled for integers.
[[nodiscard]] PreScale one_over(DType type, int n);

}  // namespace slimwire::emu
