// Arguments of the operation of advance.h: plain data, as args.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/args.h"

namespace slimwire {

// *counter += by, modulo 2^32, when the operation runs: what a captured graph advances on replays,
// such as the word behind RandomKey::step_ptr.
struct AdvanceArgs {
    uint32_t* counter;  // a device word
    uint32_t by;
};

// Launches on `stream` of the current device; the launch error comes back.
SLIMWIRE_LAUNCHER cudaError_t advance_on_cuda(const AdvanceArgs& args, cudaStream_t stream);

}  // namespace slimwire
