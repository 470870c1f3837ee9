// State that a step changes and that is as before where the program skips the step: a word on the
// device says which, when the operation runs, so the host does not wait for it. Not a codec: no
// wire bytes come of it.
//
// Called by collectives/ before the encoding that changes the state next. Host body and kernel,
// equal to the bit.
#pragma once

#include <cuda_runtime_api.h>

#include "codecs/base/device.h"
#include "codecs/base/status.h"
#include "codecs/rollback_args.h"

namespace slimwire {

void roll_back_on_host(const RollBackArgs& args);

// Enqueues on `stream`; as enqueue() of a codec operation.
Status enqueue(const DeviceApi& api, const RollBackArgs& args, cudaStream_t stream);

}  // namespace slimwire
