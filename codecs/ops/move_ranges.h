// Moves elements between several ranges of a buffer and the chunks of a message, where they lie one
// after another: the parts of a message that travel as they are, all of a slice in one launch. Not
// a codec: they are summed by sum_rows.h.
//
// Called by the algorithms in collectives/. A host body and a kernel, equal to the bit.
#pragma once

#include <cuda_runtime_api.h>

#include "codecs/base/device.h"
#include "codecs/base/status.h"
#include "codecs/ops/move_ranges_args.h"

namespace slimwire {

// The host body of MoveRangesArgs; its launcher, move_ranges_on_cuda(), exists in builds with CUDA.
void move_ranges_on_host(const MoveRangesArgs& args);

// Enqueues on `stream`; as enqueue() of a codec operation.
Status enqueue(const DeviceApi& api, const MoveRangesArgs& args, cudaStream_t stream);

}  // namespace slimwire
