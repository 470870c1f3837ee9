// What EF21 does beside a codec (Richtarik, Sokolov, Fatkhullin 2021, algorithm 2): each rank sends
// what its gradient differs by from an estimate, which follows what was sent. Not a codec: no wire
// bytes come of it.
//
// An estimate that met a number which is not finite would never be finite again. Decoded sums are
// equal on all ranks, so all see such a number in the same chunk, and begin that chunk's estimates
// anew from zero.
//
// Called by the algorithms in collectives/. Host bodies and kernels, equal to the bit.
#pragma once

#include <cuda_runtime_api.h>

#include "codecs/base/device.h"
#include "codecs/base/status.h"
#include "codecs/residual/estimate_args.h"

namespace slimwire {

void difference_on_host(const DifferenceArgs& args);
void mark_on_host(const MarkArgs& args);
void settle_on_host(const SettleArgs& args);

// Enqueue on `stream`; as enqueue() of a codec operation.
Status enqueue(const DeviceApi& api, const DifferenceArgs& args, cudaStream_t stream);
Status enqueue(const DeviceApi& api, const MarkArgs& args, cudaStream_t stream);
Status enqueue(const DeviceApi& api, const SettleArgs& args, cudaStream_t stream);

}  // namespace slimwire
