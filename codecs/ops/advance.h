// Adds to a device word when it runs, in the order of its stream: how state that operations read by
// pointer (RandomKey::step_ptr) moves on with every replay of a captured graph.
//
// Called by the steps of a plan in collectives/. A host body and a kernel of one thread; operations
// that touch the same word must be ordered by streams.
#pragma once

#include <cuda_runtime_api.h>

#include "codecs/base/device.h"
#include "codecs/base/status.h"
#include "codecs/ops/advance_args.h"

namespace slimwire {

// The host body of AdvanceArgs; its launcher, advance_on_cuda(), exists in builds with CUDA.
void advance_on_host(const AdvanceArgs& args);

// Enqueues on `stream`; as enqueue() of a codec operation.
Status enqueue(const DeviceApi& api, const AdvanceArgs& args, cudaStream_t stream);

}  // namespace slimwire
