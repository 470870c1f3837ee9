// Arguments of the operation of rollback.h: plain data, as plain_args.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace slimwire {

// Where *flag == undo the copy goes into the state, else the state into the copy.
struct RollBackArgs {
    void* state;  // `bytes` bytes, 16-byte aligned, as is the next; they do not overlap
    void* copy;
    const uint32_t* flag;  // null: the state into the copy
    int64_t bytes;         // a multiple of 16
    uint32_t undo;
    int32_t max_blocks = 0;  // thread blocks that the kernel may occupy; 0: as many as run at once
};

// One launch on `stream` of the current device; the launch error comes back. In builds with CUDA.
cudaError_t roll_back_on_cuda(const RollBackArgs& args, cudaStream_t stream);

}  // namespace slimwire
