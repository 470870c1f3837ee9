#include "plugin/net/abi/net_v9.h"

#include "plugin/net/tables/table.h"

namespace slimwire::net {
namespace {

ncclResult_t isend(
    void* send_comm, void* data, size_t bytes, int tag, void* mhandle, void** request) noexcept {
    return tables::isend(send_comm, data, bytes, tag, mhandle, nullptr, request);
}

ncclResult_t irecv(void* recv_comm,
                   int count,
                   void** data,
                   size_t* bytes,
                   int* tags,
                   void** mhandles,
                   void** request) noexcept {
    return tables::irecv(recv_comm, count, data, bytes, tags, mhandles, nullptr, request);
}

}  // namespace
}  // namespace slimwire::net

SLIMWIRE_NET_TABLE(NetV9,
                   ncclNetPlugin_v9,
                   slimwire::net::tables::table_without_class<slimwire::net::NetV9>(
                       slimwire::net::isend, slimwire::net::irecv));
