// Exported NCCL functions that move payload: each packs its arguments into a CollectiveCall and
// lets dispatch() decide; what it does not take goes to the real function unchanged. Any thread;
// streams and buffers are the program's.
#include "plugin/preload/payload.h"

using namespace slimwire;
using namespace slimwire::preload;

#define SLIMWIRE_PAYLOAD(name, call, ...)                                               \
    SLIMWIRE_ENTER(name, __VA_ARGS__)                                                   \
    if (dispatch_state(*rt).observer != nullptr) {                                      \
        return observed(rt, call, [&] { return forward(rt->nccl.name, __VA_ARGS__); }); \
    }                                                                                   \
    if (const auto taken = offer(rt, call); taken.has_value()) {                        \
        return *taken;                                                                  \
    }                                                                                   \
    return forwarded(rt, comm, forward(rt->nccl.name, __VA_ARGS__))

#pragma GCC visibility push(default)
extern "C" {

ncclResult_t ncclAllReduce(const void* sendbuff,
                           void* recvbuff,
                           size_t count,
                           ncclDataType_t datatype,
                           ncclRedOp_t op,
                           ncclComm_t comm,
                           cudaStream_t stream) {
    SLIMWIRE_PAYLOAD(
        AllReduce,
        make_call(Op::kAllReduce, datatype, op, true, 0, count, sendbuff, recvbuff, comm, stream),
        sendbuff, recvbuff, count, datatype, op, comm, stream);
}

ncclResult_t ncclReduceScatter(const void* sendbuff,
                               void* recvbuff,
                               size_t recvcount,
                               ncclDataType_t datatype,
                               ncclRedOp_t op,
                               ncclComm_t comm,
                               cudaStream_t stream) {
    SLIMWIRE_PAYLOAD(ReduceScatter,
                     make_call(Op::kReduceScatter, datatype, op, true, 0, recvcount, sendbuff,
                               recvbuff, comm, stream),
                     sendbuff, recvbuff, recvcount, datatype, op, comm, stream);
}

ncclResult_t ncclReduce(const void* sendbuff,
                        void* recvbuff,
                        size_t count,
                        ncclDataType_t datatype,
                        ncclRedOp_t op,
                        int root,
                        ncclComm_t comm,
                        cudaStream_t stream) {
    SLIMWIRE_PAYLOAD(
        Reduce,
        make_call(Op::kReduce, datatype, op, true, root, count, sendbuff, recvbuff, comm, stream),
        sendbuff, recvbuff, count, datatype, op, root, comm, stream);
}

ncclResult_t ncclAllGather(const void* sendbuff,
                           void* recvbuff,
                           size_t sendcount,
                           ncclDataType_t datatype,
                           ncclComm_t comm,
                           cudaStream_t stream) {
    SLIMWIRE_PAYLOAD(AllGather,
                     make_call(Op::kAllGather, datatype, ncclSum, false, 0, sendcount, sendbuff,
                               recvbuff, comm, stream),
                     sendbuff, recvbuff, sendcount, datatype, comm, stream);
}

ncclResult_t ncclBroadcast(const void* sendbuff,
                           void* recvbuff,
                           size_t count,
                           ncclDataType_t datatype,
                           int root,
                           ncclComm_t comm,
                           cudaStream_t stream) {
    SLIMWIRE_PAYLOAD(Broadcast,
                     make_call(Op::kBroadcast, datatype, ncclSum, false, root, count, sendbuff,
                               recvbuff, comm, stream),
                     sendbuff, recvbuff, count, datatype, root, comm, stream);
}

ncclResult_t ncclBcast(void* buff,
                       size_t count,
                       ncclDataType_t datatype,
                       int root,
                       ncclComm_t comm,
                       cudaStream_t stream) {
    SLIMWIRE_PAYLOAD(
        Bcast,
        make_call(Op::kBroadcast, datatype, ncclSum, false, root, count, buff, buff, comm, stream),
        buff, count, datatype, root, comm, stream);
}

ncclResult_t ncclAlltoAll(const void* sendbuff,
                          void* recvbuff,
                          size_t count,
                          ncclDataType_t datatype,
                          ncclComm_t comm,
                          cudaStream_t stream) {
    SLIMWIRE_PAYLOAD(AlltoAll,
                     make_call(Op::kAllToAll, datatype, ncclSum, false, 0, count, sendbuff,
                               recvbuff, comm, stream),
                     sendbuff, recvbuff, count, datatype, comm, stream);
}

ncclResult_t ncclGather(const void* sendbuff,
                        void* recvbuff,
                        size_t count,
                        ncclDataType_t datatype,
                        int root,
                        ncclComm_t comm,
                        cudaStream_t stream) {
    SLIMWIRE_PAYLOAD(Gather,
                     make_call(Op::kGather, datatype, ncclSum, false, root, count, sendbuff,
                               recvbuff, comm, stream),
                     sendbuff, recvbuff, count, datatype, root, comm, stream);
}

ncclResult_t ncclScatter(const void* sendbuff,
                         void* recvbuff,
                         size_t count,
                         ncclDataType_t datatype,
                         int root,
                         ncclComm_t comm,
                         cudaStream_t stream) {
    SLIMWIRE_PAYLOAD(Scatter,
                     make_call(Op::kScatter, datatype, ncclSum, false, root, count, sendbuff,
                               recvbuff, comm, stream),
                     sendbuff, recvbuff, count, datatype, root, comm, stream);
}

ncclResult_t ncclSend(const void* sendbuff,
                      size_t count,
                      ncclDataType_t datatype,
                      int peer,
                      ncclComm_t comm,
                      cudaStream_t stream) {
    SLIMWIRE_PAYLOAD(Send,
                     make_call(Op::kSend, datatype, ncclSum, false, peer, count, sendbuff, nullptr,
                               comm, stream),
                     sendbuff, count, datatype, peer, comm, stream);
}

ncclResult_t ncclRecv(void* recvbuff,
                      size_t count,
                      ncclDataType_t datatype,
                      int peer,
                      ncclComm_t comm,
                      cudaStream_t stream) {
    SLIMWIRE_PAYLOAD(Recv,
                     make_call(Op::kRecv, datatype, ncclSum, false, peer, count, nullptr, recvbuff,
                               comm, stream),
                     recvbuff, count, datatype, peer, comm, stream);
}

}  // extern "C"
#pragma GCC visibility pop
