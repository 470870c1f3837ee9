// NCCL's operations by name, for programs that take one as an argument.
#pragma once

#include <nccl.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace slimwire::test {

// Reductions are sums. sendrecv: from each rank to the next one, all around in a group.
inline ncclResult_t make_call(const std::string& op,
                              const void* send,
                              void* receive,
                              size_t count,
                              ncclDataType_t type,
                              int root,
                              ncclComm_t comm,
                              cudaStream_t stream = nullptr) {
    if (op == "allreduce") {
        return ncclAllReduce(send, receive, count, type, ncclSum, comm, stream);
    }
    if (op == "reducescatter") {
        return ncclReduceScatter(send, receive, count, type, ncclSum, comm, stream);
    }
    if (op == "reduce") {
        return ncclReduce(send, receive, count, type, ncclSum, root, comm, stream);
    }
    if (op == "allgather") {
        return ncclAllGather(send, receive, count, type, comm, stream);
    }
    if (op == "broadcast") {
        return ncclBroadcast(send, receive, count, type, root, comm, stream);
    }
    if (op == "alltoall") {
        return ncclAlltoAll(send, receive, count, type, comm, stream);
    }
    if (op == "gather") {
        return ncclGather(send, receive, count, type, root, comm, stream);
    }
    if (op == "scatter") {
        return ncclScatter(send, receive, count, type, root, comm, stream);
    }
    if (op != "sendrecv") {
        std::fprintf(stderr, "unknown operation '%s'\n", op.c_str());
        std::exit(2);
    }
    int rank = 0, ranks = 1;
    (void)ncclCommUserRank(comm, &rank);
    (void)ncclCommCount(comm, &ranks);
    (void)ncclGroupStart();
    ncclResult_t result = ncclSend(send, count, type, (rank + 1) % ranks, comm, stream);
    if (result == ncclSuccess) {
        result = ncclRecv(receive, count, type, (rank + ranks - 1) % ranks, comm, stream);
    }
    const ncclResult_t ended = ncclGroupEnd();
    return result != ncclSuccess ? result : ended;
}

}  // namespace slimwire::test
