#include "plugin/net/abi/net_v8.h"

#include "plugin/net/tables/table.h"

namespace slimwire::net {
namespace {

// Sizes are ints here.
ncclResult_t isend(
    void* send_comm, void* data, int bytes, int tag, void* mhandle, void** request) noexcept {
    if (bytes < 0) {
        return tables::refuse(ncclInvalidArgument, "send: a negative number of bytes");
    }
    return tables::isend(send_comm, data, static_cast<size_t>(bytes), tag, mhandle, nullptr,
                         request);
}

ncclResult_t irecv(void* recv_comm,
                   int count,
                   void** data,
                   int* bytes,
                   int* tags,
                   void** mhandles,
                   void** request) noexcept {
    size_t sizes[kMaxGroupedReceives] = {};
    for (int i = 0; i < count && i < kMaxGroupedReceives; ++i) {
        if (bytes[i] < 0) {
            return tables::refuse(ncclInvalidArgument, "receive: a negative number of bytes");
        }
        sizes[i] = static_cast<size_t>(bytes[i]);
    }
    return tables::irecv(recv_comm, count, data, sizes, tags, mhandles, nullptr, request);
}

}  // namespace
}  // namespace slimwire::net

SLIMWIRE_NET_TABLE(NetV8,
                   ncclNetPlugin_v8,
                   slimwire::net::tables::table_without_class<slimwire::net::NetV8>(
                       slimwire::net::isend, slimwire::net::irecv));
