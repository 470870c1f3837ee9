// The columns of a message of rows, one after the other, and back: so that blocks of a codec go
// along columns.
//
// Called by the algorithms in collectives/. A host body and a kernel, equal to the bit.
#pragma once

#include <cuda_runtime_api.h>

#include "codecs/base/device.h"
#include "codecs/base/status.h"
#include "codecs/ops/transpose_args.h"

namespace slimwire {

void transpose_on_host(const TransposeArgs& args);

// Enqueues on `stream`; as enqueue() of a codec operation.
Status enqueue(const DeviceApi& api, const TransposeArgs& args, cudaStream_t stream);

}  // namespace slimwire
