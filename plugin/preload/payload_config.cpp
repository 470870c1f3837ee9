// NCCL 2.31's twins of the collectives, which take a configuration of the call: as payload.cpp.
// Native calls get the configuration untouched; under an NCCL without the twins they go to the
// plain function. The configuration's members are hints.
#include <nccl_later.h>

#include "collectives/dispatch/dispatch.h"
#include "plugin/preload/payload.h"

namespace slimwire::preload {
namespace {

template <class Twin, class Plain, class... Args>
ncclResult_t forward_configured(Twin* twin,
                                Plain* plain,
                                const ncclCollConfig_t* config,
                                Args... args) noexcept {
    return twin != nullptr ? forward(twin, args..., config) : forward(plain, args...);
}

}  // namespace
}  // namespace slimwire::preload

using namespace slimwire;
using namespace slimwire::preload;

#define SLIMWIRE_CONFIGURED(name, call, ...)                                                      \
    SLIMWIRE_ENTER(name##Config, __VA_ARGS__, config)                                             \
    if (dispatch_state(*rt).observer != nullptr) {                                                \
        return observed(rt, call, [&] {                                                           \
            return forward_configured(rt->nccl.name##Config, rt->nccl.name, config, __VA_ARGS__); \
        });                                                                                       \
    }                                                                                             \
    if (const auto taken = offer(rt, call); taken.has_value()) {                                  \
        return *taken;                                                                            \
    }                                                                                             \
    return forwarded(                                                                             \
        rt, comm, forward_configured(rt->nccl.name##Config, rt->nccl.name, config, __VA_ARGS__))

#pragma GCC visibility push(default)
extern "C" {

ncclResult_t ncclAllReduceConfig(const void* sendbuff,
                                 void* recvbuff,
                                 size_t count,
                                 ncclDataType_t datatype,
                                 ncclRedOp_t op,
                                 ncclComm_t comm,
                                 cudaStream_t stream,
                                 const ncclCollConfig_t* config) {
    SLIMWIRE_CONFIGURED(
        AllReduce,
        make_call(Op::kAllReduce, datatype, op, true, 0, count, sendbuff, recvbuff, comm, stream),
        sendbuff, recvbuff, count, datatype, op, comm, stream);
}

ncclResult_t ncclReduceScatterConfig(const void* sendbuff,
                                     void* recvbuff,
                                     size_t recvcount,
                                     ncclDataType_t datatype,
                                     ncclRedOp_t op,
                                     ncclComm_t comm,
                                     cudaStream_t stream,
                                     const ncclCollConfig_t* config) {
    SLIMWIRE_CONFIGURED(ReduceScatter,
                        make_call(Op::kReduceScatter, datatype, op, true, 0, recvcount, sendbuff,
                                  recvbuff, comm, stream),
                        sendbuff, recvbuff, recvcount, datatype, op, comm, stream);
}

ncclResult_t ncclReduceConfig(const void* sendbuff,
                              void* recvbuff,
                              size_t count,
                              ncclDataType_t datatype,
                              ncclRedOp_t op,
                              int root,
                              ncclComm_t comm,
                              cudaStream_t stream,
                              const ncclCollConfig_t* config) {
    SLIMWIRE_CONFIGURED(
        Reduce,
        make_call(Op::kReduce, datatype, op, true, root, count, sendbuff, recvbuff, comm, stream),
        sendbuff, recvbuff, count, datatype, op, root, comm, stream);
}

ncclResult_t ncclAllGatherConfig(const void* sendbuff,
                                 void* recvbuff,
                                 size_t sendcount,
                                 ncclDataType_t datatype,
                                 ncclComm_t comm,
                                 cudaStream_t stream,
                                 const ncclCollConfig_t* config) {
    SLIMWIRE_CONFIGURED(AllGather,
                        make_call(Op::kAllGather, datatype, ncclSum, false, 0, sendcount, sendbuff,
                                  recvbuff, comm, stream),
                        sendbuff, recvbuff, sendcount, datatype, comm, stream);
}

ncclResult_t ncclBroadcastConfig(const void* sendbuff,
                                 void* recvbuff,
                                 size_t count,
                                 ncclDataType_t datatype,
                                 int root,
                                 ncclComm_t comm,
                                 cudaStream_t stream,
                                 const ncclCollConfig_t* config) {
    SLIMWIRE_CONFIGURED(Broadcast,
                        make_call(Op::kBroadcast, datatype, ncclSum, false, root, count, sendbuff,
                                  recvbuff, comm, stream),
                        sendbuff, recvbuff, count, datatype, root, comm, stream);
}

ncclResult_t ncclAlltoAllConfig(const void* sendbuff,
                                void* recvbuff,
                                size_t count,
                                ncclDataType_t datatype,
                                ncclComm_t comm,
                                cudaStream_t stream,
                                const ncclCollConfig_t* config) {
    SLIMWIRE_CONFIGURED(AlltoAll,
                        make_call(Op::kAllToAll, datatype, ncclSum, false, 0, count, sendbuff,
                                  recvbuff, comm, stream),
                        sendbuff, recvbuff, count, datatype, comm, stream);
}

ncclResult_t ncclGatherConfig(const void* sendbuff,
                              void* recvbuff,
                              size_t count,
                              ncclDataType_t datatype,
                              int root,
                              ncclComm_t comm,
                              cudaStream_t stream,
                              const ncclCollConfig_t* config) {
    SLIMWIRE_CONFIGURED(Gather,
                        make_call(Op::kGather, datatype, ncclSum, false, root, count, sendbuff,
                                  recvbuff, comm, stream),
                        sendbuff, recvbuff, count, datatype, root, comm, stream);
}

ncclResult_t ncclScatterConfig(const void* sendbuff,
                               void* recvbuff,
                               size_t count,
                               ncclDataType_t datatype,
                               int root,
                               ncclComm_t comm,
                               cudaStream_t stream,
                               const ncclCollConfig_t* config) {
    SLIMWIRE_CONFIGURED(Scatter,
                        make_call(Op::kScatter, datatype, ncclSum, false, root, count, sendbuff,
                                  recvbuff, comm, stream),
                        sendbuff, recvbuff, count, datatype, root, comm, stream);
}

}  // extern "C"
#pragma GCC visibility pop
