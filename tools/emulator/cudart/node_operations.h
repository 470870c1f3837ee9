// Operations made from the arguments of a call without a stream to put them on: what the nodes of
// an explicitly built graph do. Implemented beside the calls that do the same on a stream. Any
// thread.
#pragma once

#include <driver_types.h>

#include <cstddef>

#include "tools/emulator/cudart/stream.h"

namespace slimwire::emulator {

class Runtime;

// Checks as cudaLaunchKernel does.
cudaError_t make_kernel_operation(const void* function,
                                  dim3 grid,
                                  dim3 block,
                                  void** args,
                                  size_t shared_bytes,
                                  OperationRef* out);

// Checks as cudaMemcpyAsync does; pageable memory is read and written when the operation runs.
cudaError_t make_copy_operation(Runtime& runtime,
                                void* dst,
                                const void* src,
                                size_t bytes,
                                cudaMemcpyKind kind,
                                OperationRef* out);

// `width` elements in each of `height` rows.
cudaError_t make_fill_operation(Runtime& runtime,
                                const cudaMemsetParams& params,
                                OperationRef* out);

}  // namespace slimwire::emulator
