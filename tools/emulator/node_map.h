// Which emulated node a device stands in: one rule for libcudart's and libnccl's stand-ins.
// SLIMWIRE_EMU_NODES="NxM" means N nodes of M devices (one device is one rank); unset, every device
// is a node of its own. A device's global index is RANK * devices per process + its ordinal;
// without a launcher (no RANK) it is the ordinal. Processes of one node may also share its devices,
// each using the one of its LOCAL_RANK, as launchers on real nodes arrange it: LOCAL_WORLD_SIZE,
// equal to the devices per process and above 1, says so; then the index is RANK - LOCAL_RANK +
// ordinal. Reads the environment, keeps nothing. Header only, any thread.
#pragma once

#include <cstdlib>

namespace slimwire::emulator {

struct NodeMap {
    int nodes = 0;           // 0: SLIMWIRE_EMU_NODES is unset
    int ranks_per_node = 1;  // M
    bool valid = true;       // false: the variable is set, but is not "NxM" with N, M >= 1
};

// A whole decimal number in [low, high]; false when `text` is anything else.
inline bool parse_count(const char* text, int low, int high, int* value) {
    char* end = nullptr;
    if (text == nullptr || *text < '0' || *text > '9') {
        return false;
    }
    const long parsed = std::strtol(text, &end, 10);
    if (*end != '\0' || parsed < low || parsed > high) {
        return false;
    }
    *value = static_cast<int>(parsed);
    return true;
}

inline NodeMap parse_node_map(const char* text) {
    NodeMap map;
    if (text == nullptr || *text == '\0') {
        return map;
    }
    char* end = nullptr;
    const long nodes = *text >= '0' && *text <= '9' ? std::strtol(text, &end, 10) : 0;
    int ranks = 0;
    if (nodes < 1 || nodes > 65536 || *end != 'x' || !parse_count(end + 1, 1, 65536, &ranks)) {
        map.valid = false;
        return map;
    }
    map.nodes = static_cast<int>(nodes);
    map.ranks_per_node = ranks;
    return map;
}

inline NodeMap node_map_from_environment() {
    return parse_node_map(std::getenv("SLIMWIRE_EMU_NODES"));
}

// The launcher's rank of this process, -1 without a launcher.
inline int launcher_rank() {
    int rank = -1;
    return parse_count(std::getenv("RANK"), 0, 1 << 24, &rank) ? rank : -1;
}

// Global index of this process's device 0.
inline int first_device_index(int devices_per_process) {
    const int rank = launcher_rank();
    if (rank < 0) {
        return 0;
    }
    int local_rank = 0;
    int local_ranks = 0;
    const bool shared = devices_per_process > 1 &&
                        parse_count(std::getenv("LOCAL_WORLD_SIZE"), devices_per_process,
                                    devices_per_process, &local_ranks) &&
                        parse_count(std::getenv("LOCAL_RANK"), 0, local_ranks - 1, &local_rank) &&
                        local_rank <= rank;
    return shared ? rank - local_rank : rank * devices_per_process;
}

inline int node_of_index(const NodeMap& map, int global_index) {
    return global_index / map.ranks_per_node;
}

}  // namespace slimwire::emulator
