// The NCCL calls that `slimwire bench collective` times.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>

#include "tools/cli/bench/worker/bench_worker_options.h"

namespace slimwire::bench {

// End the program with a text unless all is well.
void check(cudaError_t error, const char* what);
void check(ncclResult_t result, const char* what);

// Enqueues one operation of one rank, on its stream.
struct Calls {
    Operation operation;
    ncclDataType_t type;
    int rank, ranks;
    ncclComm_t comm;
    cudaStream_t stream;
    void *send, *recv;

    // As the program's symbols resolve, and by NCCL's profiling twins, which nobody intercepts.
    void own(size_t count) const;
    void native(size_t count) const;
    // As many plain bytes as the call gave to the transport, by the same kinds of exchange,
    // natively.
    void raw(size_t wire_bytes) const;
};

}  // namespace slimwire::bench
