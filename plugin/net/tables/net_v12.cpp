#include "plugin/net/abi/net_v12.h"

#include "plugin/net/tables/table.h"

SLIMWIRE_NET_TABLE(NetV12,
                   ncclNetPlugin_v12,
                   slimwire::net::tables::table_with_contexts<slimwire::net::NetV12>());
