#include "plugin/net/abi/net_v10.h"

#include "plugin/net/tables/table.h"

namespace slimwire::net {
namespace {

ncclResult_t init(DebugLogger log, ProfilerCallback) noexcept {
    return tables::init_process(log);
}

ncclResult_t connect(int device,
                     NetCommConfigV10* config,
                     void* handle,
                     void** send_comm,
                     NetDeviceHandle**) noexcept {
    const int traffic_class = config != nullptr ? config->traffic_class : -1;
    return tables::connect_in_process(traffic_class, device, handle, send_comm);
}

constexpr NetV10 make_table() noexcept {
    auto table = tables::common_table<NetV10>();
    table.init = init;
    table.listen = tables::listen_in_process;
    table.connect = connect;
    table.isend = tables::isend;
    table.irecv = tables::irecv;
    return table;
}

}  // namespace
}  // namespace slimwire::net

SLIMWIRE_NET_TABLE(NetV10, ncclNetPlugin_v10, slimwire::net::make_table());
