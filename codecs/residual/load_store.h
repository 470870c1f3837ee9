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
#include "codecs/residual/load_store_args.h"

namespace slimwire {

// Bytes of a store of `elems` elements; for kInt8 a multiple of kResidualBlock.
[[nodiscard]] uint64_t stored_residual_bytes(ResidualType type, uint64_t elems) noexcept;

void load_residual_on_host(const LoadResidualArgs& args);
void store_residual_on_host(const StoreResidualArgs& args);
void rescale_residual_on_host(const RescaleResidualArgs& args);

// Enqueue on `stream`; as enqueue() of a codec operation.
Status enqueue(const DeviceApi& api, const LoadResidualArgs& args, cudaStream_t stream);
Status enqueue(const DeviceApi& api, const StoreResidualArgs& args, cudaStream_t stream);
Status enqueue(const DeviceApi& api, const RescaleResidualArgs& args, cudaStream_t stream);

}  // namespace slimwire
