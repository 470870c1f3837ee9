// A network of its own for each emulated node (`slimwire run --namespaces`): the ranks of a node
// share Linux namespaces for network, IPC and host name, see one interface eth0 besides lo, and
// reach the other nodes through a switch only. So sockets, interface names and what a net plugin
// makes of them are those of separate machines; nothing of the machine's own network is seen, and
// `tc` inside can shape it. Only descriptors hold the namespaces: nothing is left when slimwire and
// the ranks end, however they end.
//
// Needs root or unprivileged user namespaces (slimwire and its ranks then see themselves as root),
// and `ip` of iproute2. For a process with one thread; used by run_command.cpp.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "codecs/base/status.h"

namespace slimwire::cli {

class NodeNetwork {
  public:
    // Namespaces for `nodes` nodes, wired and up.
    static Result<NodeNetwork> make(int nodes);
    // Address of a node's eth0.
    [[nodiscard]] static std::string address(int node);
    // The name of each node's interface.
    static constexpr char kInterface[] = "eth0";

    NodeNetwork(NodeNetwork&& other) noexcept = default;
    NodeNetwork(const NodeNetwork&) = delete;
    NodeNetwork& operator=(const NodeNetwork&) = delete;
    NodeNetwork& operator=(NodeNetwork&&) = delete;
    ~NodeNetwork();

    // Moves the calling process into a node, for good: between fork and exec. 0 or errno.
    [[nodiscard]] int enter(int node) const noexcept;

    // Descriptors of one node's namespaces, in the order of kKinds (node_network.cpp).
    using Namespaces = std::array<int, 3>;

  private:
    NodeNetwork() = default;
    Status connect(int node);

    std::vector<Namespaces> namespaces_;  // of the switch, then of each node
};

}  // namespace slimwire::cli
