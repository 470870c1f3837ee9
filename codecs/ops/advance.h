// Adds to a device word when it runs, in the order of its stream: how state that operations read by
// pointer (RandomKey::step_ptr) moves on with every replay of a captured graph.
//
// Called by the steps of a plan in collectives/. A host body and a kernel of one thread; operations
// that touch the same word must be ordered by streams.
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

// Kernels on `stream` of the current device, whose launch error comes back; and host bodies.
SLIMWIRE_LAUNCHER cudaError_t advance_on_cuda(const AdvanceArgs& args, cudaStream_t stream);
void advance_on_host(const AdvanceArgs& args);

// Enqueues on `stream`; as enqueue() of a codec operation.
Status enqueue(const DeviceApi& api, const AdvanceArgs& args, cudaStream_t stream);

}  // namespace slimwire
