// The norm of the sum of many buffers without their sum: every element is added, with a sign, to
// one of a few thousand cells, both by hashes of its index (count sketch; Charikar, Chen, Farach-
// Colton 2002). A sketch of the sum is the sum of the sketches, and the squares of its cells add up
// to the sum's own squares within a standard deviation of sqrt(2 / cells), 3.1 %: of the norm, 1.6
// %. Not a codec: no wire bytes come of it.
//
// Buffers that lie in parts, each with its own rows (SketchArgs::first_row), are sketched apart,
// and the cells of the parts add up to the whole one's.
//
// A buffer with a number that is not finite is counted and leaves the cells as they are.
//
// Called by the controller of compression in collectives/. Host body and kernels, equal to the bit;
// nothing is read on the host, and graphs replay it.
#pragma once

#include <cuda_runtime_api.h>

#include "codecs/base/device.h"
#include "codecs/base/status.h"
#include "codecs/ops/sketch_args.h"

namespace slimwire {

// Device memory at SketchArgs::workspace.
[[nodiscard]] constexpr int64_t sketch_workspace_bytes(int64_t count) noexcept {
    return SketchParts::of(count).parts * (kSketchCells + 4) * static_cast<int64_t>(sizeof(float));
}

void sketch_on_host(const SketchArgs& args);

// The estimated sum of squares, in a fixed order.
[[nodiscard]] double sketch_energy(const SketchState& state) noexcept;

// Enqueues on `stream`; as enqueue() of a codec operation.
Status enqueue(const DeviceApi& api, const SketchArgs& args, cudaStream_t stream);

}  // namespace slimwire
