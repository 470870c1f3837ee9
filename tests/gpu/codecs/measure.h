// Bandwidth of the codecs' kernels on a real GPU, as JSON lines on stdout: each beside a device
// copy that moves as many bytes, in the same run.
#pragma once

#include <cstdint>

#include "codecs/codec.h"

namespace slimwire::gpu {

// All operations of `spec` over `bytes` of user's data; `max_blocks` caps the thread blocks (0:
// none).
void measure(const CodecSpec& spec, DType dtype, int64_t bytes, int32_t max_blocks);

// PowerSGD's operations: orthogonalising 200 matrices at once, by rows and rank in microseconds;
// and the products and the restoring of a large buffer of bf16 matrices.
void measure_low_rank();

}  // namespace slimwire::gpu
