// NCCL 2.31's twins of the collectives, which take a configuration of the call: as payload.cpp, and
// what the configuration asks of slimwire enters the call (collectives/call_choice.h). What goes
// native gets the configuration untouched; under an NCCL without the twins it goes to the plain
// function, for which the configuration's other members are hints.
#include <nccl_later.h>

#include "collectives/call_choice.h"
#include "collectives/dispatch.h"
#include "collectives/log.h"
#include "plugin/preload/payload.h"

namespace slimwire::preload {
namespace {

// As offer(); an error when the configuration cannot be read.
std::optional<ncclResult_t> offer_configured(Runtime* runtime,
                                             const char* function,
                                             CollectiveCall call,
                                             const ncclCollConfig_t* config) noexcept {
    if (runtime->config.active && config != nullptr) {
        try {
            const Result<uint64_t> asked = read_choice(*config, function);
            if (!asked.ok()) {
                return call_failed(*runtime, runtime->fail(asked.status()));
            }
            call.facts.asked = asked.value();
        } catch (const std::exception& error) {
            return call_failed(*runtime, runtime->fail({Code::kInternalError, error.what()}));
        }
    }
    return offer(runtime, call);
}

// What mode on would take the call for. A configuration that it would refuse is the job's own here.
CollectiveCall with_choice(const Runtime* runtime,
                           const char* function,
                           CollectiveCall call,
                           const ncclCollConfig_t* config) noexcept {
    if (runtime->config.settings.mode == Mode::kShadow && config != nullptr) {
        try {
            const Result<uint64_t> asked = read_choice(*config, function);
            if (asked.ok()) {
                call.facts.asked = asked.value();
            } else {
                log_once(LogLevel::kWarn, "choice", asked.status().message());
            }
        } catch (const std::exception& error) {
            log_once(LogLevel::kWarn, "choice", error.what());
        }
    }
    return call;
}

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
    if (rt->observer != nullptr) {                                                                \
        return observed(rt, with_choice(rt, "nccl" #name "Config", call, config), [&] {           \
            return forward_configured(rt->nccl.name##Config, rt->nccl.name, config, __VA_ARGS__); \
        });                                                                                       \
    }                                                                                             \
    if (const auto taken = offer_configured(rt, "nccl" #name "Config", call, config)) {           \
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
