// Looks at a buffer without changing it: norm, largest element, zeros, non-finite elements,
// exponents, and the distance to another buffer. Not a codec: no wire bytes come of it.
//
// Called by the modes of collectives/ that observe, on the stream of the program's
// call. A host body and two kernels, equal to the bit; the result lies where the host can read it,
// so nobody waits on a stream.
#pragma once

#include <cuda_runtime_api.h>

#include "codecs/base/device.h"
#include "codecs/base/status.h"
#include "codecs/ops/measure_args.h"

namespace slimwire {

// The host body of MeasureArgs; its launcher, measure_on_cuda(), exists in builds with CUDA.
void measure_on_host(const MeasureArgs& args);

// Whether elements of this type can be measured.
[[nodiscard]] constexpr bool can_measure(DType dtype) noexcept {
    return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBfloat16;
}

// Bits that an ideal code spends on the exponent of one element (Shannon's entropy of the counts);
// what is left of a bf16 element are its sign and 7 bits. 0 of nothing.
[[nodiscard]] double exponent_entropy_bits(const uint32_t (&exponents)[256]) noexcept;

// Enqueues on `stream`; as enqueue() of a codec operation.
Status enqueue(const DeviceApi& api, const MeasureArgs& args, cudaStream_t stream);

}  // namespace slimwire
