// Which emulated node a device stands in: one rule for libcudart's and libnccl's stand-ins.
// SLIMWIRE_EMU_NODES="NxM" means N nodes of M devices (one device is one rank); unset, every device
// is a node of its own. A device's global index is the launcher's rank * devices per process + its
// ordinal; without a launcher it is the ordinal. Processes of one node may also share its devices,
// each using the one of its local rank, as launchers on real nodes arrange it: as many local ranks
// as devices per process, above 1, say so; then the index is rank - local rank + ordinal.
// Reads the environment, keeps nothing. Header only, any thread.
#pragma once

#include <cstdlib>

#include "collectives/call/launcher_names.h"

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

// The first of these variables that is a number in [0, 2^24]; -1 without one.
template <size_t N>
int first_count(const char* const (&names)[N]) {
    int value = -1;
    for (const char* name : names) {
        if (parse_count(std::getenv(name), 0, 1 << 24, &value)) {
            return value;
        }
    }
    return -1;
}

// The launcher's rank of this process, -1 without a launcher.
inline int launcher_rank() {
    return first_count(kRankNames);
}

// Global index of this process's device 0.
inline int first_device_index(int devices_per_process) {
    const int rank = launcher_rank();
    if (rank < 0) {
        return 0;
    }
    const int local_ranks = first_count(kLocalSizeNames);
    const int local_rank = first_count(kLocalRankNames);
    const bool shared = devices_per_process > 1 && local_ranks == devices_per_process &&
                        local_rank >= 0 && local_rank < local_ranks && local_rank <= rank;
    return shared ? rank - local_rank : rank * devices_per_process;
}

inline int node_of_index(const NodeMap& map, int global_index) {
    return global_index / map.ranks_per_node;
}

}  // namespace slimwire::emulator
