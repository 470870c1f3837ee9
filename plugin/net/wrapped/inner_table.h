// Another net plugin's table, whatever its version: one interface over ncclNet v8 to v12, for the
// wrapped wire. Calls are those of version 12 without what no older one has; results are the
// plugin's own. The library stays open for the process, as plugins expect of NCCL.
//
// Thread contract: as ncclNet's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "codecs/base/status.h"
#include "plugin/net/abi/net_types.h"
#include "plugin/net/wire.h"

namespace slimwire::net {

inline constexpr int kOldestTable = 8;
inline constexpr int kNewestTable = 12;

class InnerTable {
  public:
    // Opens `library` as NCCL does: the name as it is, then libnccl-net-<name>.so. The newest table
    // is taken, or the one of `only_version`. kNotFound says what is missing.
    static Result<std::unique_ptr<InnerTable>> open(const std::string& library,
                                                    int only_version = 0);
    virtual ~InnerTable() = default;

    [[nodiscard]] virtual int version() const noexcept = 0;
    [[nodiscard]] virtual const char* name() const noexcept = 0;

    // Before version 11 the plugin's init is called once; the context then only holds the traffic
    // class. Every context that init gave is given to finalize.
    virtual ncclResult_t init(void** context,
                              uint64_t comm_id,
                              int traffic_class,
                              DebugLogger log) = 0;
    virtual ncclResult_t finalize(void* context) = 0;
    virtual ncclResult_t devices(int* count) = 0;
    // With what NCCL assumes where an older version says nothing.
    virtual ncclResult_t properties(int device, WireDevice* said, NetDeviceType* type) = 0;
    virtual ncclResult_t listen(void* context, int device, void* handle, void** listen_comm) = 0;
    virtual ncclResult_t connect(void* context, int device, void* handle, void** send_comm) = 0;
    virtual ncclResult_t accept(void* listen_comm, void** recv_comm) = 0;
    virtual ncclResult_t reg_mr(void* comm, void* data, size_t bytes, int type, void** mhandle) = 0;
    virtual ncclResult_t dereg_mr(void* comm, void* mhandle) = 0;
    virtual ncclResult_t isend(
        void* send_comm, void* data, size_t bytes, int tag, void* mhandle, void** request) = 0;
    // `count` entries each; *request may come in as kOptionalReceiveCompletion from version 9 on.
    virtual ncclResult_t irecv(void* recv_comm,
                               int count,
                               void** data,
                               const size_t* bytes,
                               const int* tags,
                               void** mhandles,
                               void** request) = 0;
    virtual ncclResult_t test(void* request, int* done, int* bytes) = 0;
    virtual ncclResult_t close_send(void* send_comm) = 0;
    virtual ncclResult_t close_recv(void* recv_comm) = 0;
    virtual ncclResult_t close_listen(void* listen_comm) = 0;
};

}  // namespace slimwire::net
