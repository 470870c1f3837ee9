// Bandwidth of the codecs' kernels on a real GPU, as JSON lines on stdout: each beside a device
// copy that moves as many bytes, in the same run.
#pragma once

#include <cstdint>

#include "codecs/codec.h"

namespace slimwire::gpu {

// All operations of `spec` over `bytes` of user's data; `max_blocks` caps the thread blocks (0:
// none).
void measure(const CodecSpec& spec, DType dtype, int64_t bytes, int32_t max_blocks);

}  // namespace slimwire::gpu
