// The network interfaces of this machine, and NCCL's lists of them. One reading for whoever listens
// for other ranks: the agreement and the net plugin.
#pragma once

#include <netinet/in.h>

#include <string>
#include <string_view>
#include <vector>

#include "codecs/base/status.h"

struct ifaddrs;

namespace slimwire {

union SocketAddress {
    sockaddr any;
    sockaddr_in v4;
    sockaddr_in6 v6;
};

[[nodiscard]] std::string to_string(const SocketAddress& address);

// A running network interface with the address that it would be reached at; the port is 0.
struct Interface {
    std::string name;
    SocketAddress address;
    bool loopback;
};
// The kind of address that NCCL_SOCKET_FAMILY asks for, AF_INET or AF_INET6; else AF_UNSPEC.
[[nodiscard]] int wanted_family();
// One entry for each, IPv4 before IPv6, global before link-local addresses; only of the wanted
// family.
Result<std::vector<Interface>> running_interfaces();
// The same of what getifaddrs() gave.
[[nodiscard]] std::vector<Interface> running_in(const ifaddrs* list);

// NCCL's interface lists: "eth,ib" by prefix, "=eth0,eth1" exactly, "^docker,lo" all but those.
// A port behind an entry ("eth0:1") counts for cards only.
inline constexpr std::string_view kInterfaceLists =
    "names by comma, '=' before the first for exact ones, '^' for all but these";
[[nodiscard]] bool interface_matches(std::string_view list, std::string_view name);

// Where nothing of `running` is left; `chosen_by` says what should have named one.
Status no_interface(const std::vector<Interface>& running, const std::string& chosen_by);

// The first interface that the list names, loopback last; `variable`: where the list stands.
Result<Interface> listed_interface(const std::string& list, const std::string& variable);

}  // namespace slimwire
