// What steers the UCX wire, read once from the environment. UCX's own UCX_* variables are read by
// UCX; of the options that the wire would set itself, the user's wins for those named here.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace slimwire::net {

struct UcxSettings {
    std::string transports;        // UCX_TLS; "" for the device's own
    std::string interfaces;        // SLIMWIRE_SOCKET_IFNAME, else NCCL_SOCKET_IFNAME
    std::string devices;           // UCX_NET_DEVICES
    bool user_rendezvous = false;  // UCX_RNDV_THRESH is set
    bool sockets = false;          // not UCX, as for interfaces that it cannot use
    // A connection that has not said its hello after this long is a stranger's.
    uint64_t handshake_ns = 30'000'000'000;
    // A message that a peer had sent before it closed counts as lost when it has been looked for
    // this long and nothing else came meanwhile.
    uint64_t promise_ns = 60'000'000'000;
    // Gets one line for each refused peer; slimwire's log by default.
    std::function<void(const std::string&)> warn;
};

UcxSettings read_ucx_settings();

}  // namespace slimwire::net
