// The sum of rows of plain elements: what is left to do where a codec does not reduce by itself,
// and how raw contributions inside a node are added. Not a codec: no wire bytes come of it.
//
// Called by the algorithms in collectives/. Host bodies per instruction set and a kernel, equal to
// the bit; rows are added in their order in fp32, so every rank that adds the same rows has the
// same sum.
#pragma once

#include <cuda_runtime_api.h>

#include "codecs/base/device.h"
#include "codecs/base/status.h"
#include "codecs/ops/sum_rows_args.h"

namespace slimwire {

// The host body of SumRowsArgs; its launcher, sum_rows_on_cuda(), exists in builds with CUDA.
void sum_rows_on_host(const SumRowsArgs& args);

// Enqueues on `stream`; as enqueue() of a codec operation.
Status enqueue(const DeviceApi& api, const SumRowsArgs& args, cudaStream_t stream);

}  // namespace slimwire
