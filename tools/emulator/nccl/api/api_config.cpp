// The twins of the collectives that NCCL 2.31 has, with a configuration of the call: checked as
// NCCL does, and without an effect, because the emulator has no channels and one algorithm.
#include <nccl_later.h>

#include <string>

#include "tools/emulator/nccl/api/api.h"
#include "tools/emulator/nccl/execution/group.h"

namespace slimwire::emu {
namespace {

ncclResult_t check(const ncclCollConfig_t* config, const char* function) noexcept {
    return guarded(
        [=]() -> Status {
            if (config == nullptr) {
                return {};
            }
            const ncclCollConfig_t expected = NCCL_COLLCONFIG_INITIALIZER;
            if (config->magic != expected.magic || config->size < sizeof(size_t) * 3) {
                return group_error(
                    {Code::kInvalidArgument,
                     std::string(function) +
                         ": the configuration was not made by NCCL_COLLCONFIG_INITIALIZER"});
            }
            if (config->algSelection != nullptr && config->algSelection[0] != 0 &&
                config->forceAlgSelection != 0) {
                return group_error(
                    {Code::kInvalidArgument, std::string(function) + ": algSelection '" +
                                                 config->algSelection + "' cannot be forced here"});
            }
            return {};
        },
        function);
}

}  // namespace
}  // namespace slimwire::emu

using slimwire::emu::check;

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclAllReduceConfig,
                     (const void* sendbuff,
                      void* recvbuff,
                      size_t count,
                      ncclDataType_t datatype,
                      ncclRedOp_t op,
                      ncclComm_t comm,
                      cudaStream_t stream,
                      const ncclCollConfig_t* config)) {
    const ncclResult_t checked = check(config, "ncclAllReduceConfig");
    return checked != ncclSuccess
               ? checked
               : pncclAllReduce(sendbuff, recvbuff, count, datatype, op, comm, stream);
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclReduceScatterConfig,
                     (const void* sendbuff,
                      void* recvbuff,
                      size_t recvcount,
                      ncclDataType_t datatype,
                      ncclRedOp_t op,
                      ncclComm_t comm,
                      cudaStream_t stream,
                      const ncclCollConfig_t* config)) {
    const ncclResult_t checked = check(config, "ncclReduceScatterConfig");
    return checked != ncclSuccess
               ? checked
               : pncclReduceScatter(sendbuff, recvbuff, recvcount, datatype, op, comm, stream);
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclReduceConfig,
                     (const void* sendbuff,
                      void* recvbuff,
                      size_t count,
                      ncclDataType_t datatype,
                      ncclRedOp_t op,
                      int root,
                      ncclComm_t comm,
                      cudaStream_t stream,
                      const ncclCollConfig_t* config)) {
    const ncclResult_t checked = check(config, "ncclReduceConfig");
    return checked != ncclSuccess
               ? checked
               : pncclReduce(sendbuff, recvbuff, count, datatype, op, root, comm, stream);
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclAllGatherConfig,
                     (const void* sendbuff,
                      void* recvbuff,
                      size_t sendcount,
                      ncclDataType_t datatype,
                      ncclComm_t comm,
                      cudaStream_t stream,
                      const ncclCollConfig_t* config)) {
    const ncclResult_t checked = check(config, "ncclAllGatherConfig");
    return checked != ncclSuccess
               ? checked
               : pncclAllGather(sendbuff, recvbuff, sendcount, datatype, comm, stream);
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclBroadcastConfig,
                     (const void* sendbuff,
                      void* recvbuff,
                      size_t count,
                      ncclDataType_t datatype,
                      int root,
                      ncclComm_t comm,
                      cudaStream_t stream,
                      const ncclCollConfig_t* config)) {
    const ncclResult_t checked = check(config, "ncclBroadcastConfig");
    return checked != ncclSuccess
               ? checked
               : pncclBroadcast(sendbuff, recvbuff, count, datatype, root, comm, stream);
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclAlltoAllConfig,
                     (const void* sendbuff,
                      void* recvbuff,
                      size_t count,
                      ncclDataType_t datatype,
                      ncclComm_t comm,
                      cudaStream_t stream,
                      const ncclCollConfig_t* config)) {
    const ncclResult_t checked = check(config, "ncclAlltoAllConfig");
    return checked != ncclSuccess
               ? checked
               : pncclAlltoAll(sendbuff, recvbuff, count, datatype, comm, stream);
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclGatherConfig,
                     (const void* sendbuff,
                      void* recvbuff,
                      size_t count,
                      ncclDataType_t datatype,
                      int root,
                      ncclComm_t comm,
                      cudaStream_t stream,
                      const ncclCollConfig_t* config)) {
    const ncclResult_t checked = check(config, "ncclGatherConfig");
    return checked != ncclSuccess
               ? checked
               : pncclGather(sendbuff, recvbuff, count, datatype, root, comm, stream);
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclScatterConfig,
                     (const void* sendbuff,
                      void* recvbuff,
                      size_t count,
                      ncclDataType_t datatype,
                      int root,
                      ncclComm_t comm,
                      cudaStream_t stream,
                      const ncclCollConfig_t* config)) {
    const ncclResult_t checked = check(config, "ncclScatterConfig");
    return checked != ncclSuccess
               ? checked
               : pncclScatter(sendbuff, recvbuff, count, datatype, root, comm, stream);
}
