// Residuals between two calls: taken out of their store into fp32 before an encoding, and put back
// after it, in a smaller type or as a moving average; and in other units, where the program's loss
// scale changed. Not a codec: no wire bytes come of it, but
// the store outlives processes, so FORMAT.md ("Stored residuals") fixes it.
//
// Called by the algorithms in collectives/. Host bodies and kernels, equal to the bit.
#pragma once

#include <cuda_runtime_api.h>

#include "codecs/base/device.h"
#include "codecs/base/status.h"
#include "codecs/plain_args.h"

namespace slimwire {

// Bytes of a store of `elems` elements; for kInt8 a multiple of kResidualBlock.
[[nodiscard]] uint64_t stored_residual_bytes(ResidualType type, uint64_t elems) noexcept;

void take_residual_on_host(const TakeResidualArgs& args);
void put_residual_on_host(const PutResidualArgs& args);
void rescale_residual_on_host(const RescaleResidualArgs& args);

// Enqueue on `stream`; as enqueue() of a codec operation.
Status enqueue(const DeviceApi& api, const TakeResidualArgs& args, cudaStream_t stream);
Status enqueue(const DeviceApi& api, const PutResidualArgs& args, cudaStream_t stream);
Status enqueue(const DeviceApi& api, const RescaleResidualArgs& args, cudaStream_t stream);

}  // namespace slimwire
