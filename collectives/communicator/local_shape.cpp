#include "collectives/communicator/local_shape.h"

#include <cstdlib>
#include <optional>
#include <vector>

#include "collectives/call/launcher.h"

namespace slimwire {
namespace {

// Ranks of a node. The emulator has its own nodes, whatever the launcher says of the machine.
std::optional<int> ranks_per_node(const DeviceApi* api, GetenvFunction getenv_function) {
    if (api == nullptr || api->emulator == nullptr) {
        return launcher_local_size(getenv_function);
    }
    const char* const nodes = getenv_function("SLIMWIRE_EMU_NODES");
    if (nodes == nullptr || *nodes == '\0') {
        return 1;
    }
    char* end = nullptr;
    (void)std::strtol(nodes, &end, 10);
    const long each = *end == 'x' ? std::strtol(end + 1, &end, 10) : 0;
    return each >= 1 && each <= INT32_MAX && *end == '\0' ? std::optional(static_cast<int>(each))
                                                          : std::nullopt;
}

}  // namespace

LocalShape local_shape(const DeviceApi* api, int ranks, int rank, GetenvFunction getenv_function) {
    const int per_node = ranks_per_node(api, getenv_function).value_or(0);
    const int all = launcher_size(getenv_function).value_or(0);
    int in_a_row = 1;  // ranks of the communicator that share a node
    LocalShape local;
    if (per_node >= 1 && all == per_node) {
        local.known = true;
        in_a_row = ranks;
    } else if (per_node == 1) {
        local.known = true;
    } else if (per_node > 1 && ranks == all && ranks % per_node == 0 &&
               launcher_rank(getenv_function) == rank) {
        local.known = true;
        in_a_row = per_node;
    }
    std::vector<RankIdentity> places(static_cast<size_t>(ranks));
    for (int i = 0; i < ranks; ++i) {
        places[static_cast<size_t>(i)].host_id = static_cast<uint64_t>(i / in_a_row) + 1;
    }
    Result<CommShape> shape = make_comm_shape(places);
    if (shape.ok()) {
        local.shape = std::move(shape).value();
    }
    return local;
}

}  // namespace slimwire
