// Which network devices there are, and what /sys knows about them. Reads files; opens no device.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "codecs/base/status.h"
#include "plugin/net/ucx/sockets.h"
#include "plugin/net/wire.h"

namespace slimwire::net {

struct NetDevice : WireDevice {  // by the name that UCX calls it: "eth0", "mlx5_0:1"
    std::string interface;       // the network interface with the device's address, may be ""
    bool rdma = false;
    bool link_alone = false;  // has an address of the link alone, for which UCX has no transport
};

// Devices in use order: RDMA ports that are up; else network interfaces. `interfaces` is the user's
// list (NCCL's spelling), "" for all but loopback and container bridges, which are taken when there
// is nothing else. `ucx_devices` is UCX_NET_DEVICES: names by comma, "" or "all" for any.
Result<std::vector<NetDevice>> find_devices(std::string_view interfaces,
                                            std::string_view ucx_devices,
                                            const std::string& sys = "/sys");

// The interfaces of the first of these groups that is not empty, of the user's: real ones; bridges
// of containers; those with an address of the link alone; loopback, unless the user names it.
[[nodiscard]] std::vector<Interface> choose(const std::vector<Interface>& all,
                                            std::string_view wanted);

// Where to listen for connections to `device`: at an interface of the user's list, else at the
// device's own interface, else at the first one that is no loopback. The port is 0.
Result<SocketAddress> listening_address(const NetDevice& device, std::string_view interfaces);

}  // namespace slimwire::net
