#include "plugin/net/abi/net_v11.h"

#include "plugin/net/tables/table.h"

SLIMWIRE_NET_TABLE(NetV11,
                   ncclNetPlugin_v11,
                   slimwire::net::tables::table_with_contexts<slimwire::net::NetV11>());
