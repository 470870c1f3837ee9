// Copies bytes for a reader on the device that looks at them while they come: what NCCL's protocol
// LL128 asks, whose kernels poll a flag at the end of every line of 128 bytes and take the line's
// data as soon as it is there. The 8 threads of a line store 16 bytes each by one instruction, as
// NCCL's own kernels do; a copy by the device's copy engine promises no order within a line.
//
// Called by the net plugin for messages with flags that go into GPU memory. The input may be pinned
// host memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "codecs/base/device.h"
#include "codecs/base/status.h"
#include "codecs/plain_args.h"

namespace slimwire {

// Copies between distinct memory so that a reader on another thread, or on the device, who finds a
// word also finds all that stands before it: 8 bytes at a time, ascending, each a release. memcpy()
// promises no order; glibc's stores the first bytes of more than a few vectors last.
void copy_in_order(void* output, const void* input, size_t bytes) noexcept;

// The host body of CopyLinesArgs; its launcher, copy_lines_on_cuda(), exists in builds with CUDA.
void copy_lines_on_host(const CopyLinesArgs& args);

// Enqueues on `stream`; as enqueue() of a codec operation.
Status enqueue(const DeviceApi& api, const CopyLinesArgs& args, cudaStream_t stream);

// As load_kernels() of a codec.
Status load_copy_lines(const DeviceApi& api);

}  // namespace slimwire
