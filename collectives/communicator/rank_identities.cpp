#include "collectives/communicator/rank_identities.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <utility>

#include "codecs/base/emulator_abi.h"
#include "collectives/call/hash.h"
#include "collectives/call/launcher.h"
#include "collectives/call/log.h"
#include "collectives/plan/comm_costs.h"
#include "topology/readers/discovery.h"
#include "topology/readers/machine_xml.h"

namespace slimwire {
namespace {

// Where a rank of this process sits, as it tells the others (topology/machine/comm_links.h): of the
// machine, found once a process and only when a communicator that may compress is made.
//
// NCCL_TOPO_FILE, which NCCL takes for the machine, is taken here, too; then this machine's own
// sources. On the emulator nothing is found but by such a file, whose GPUs are then the devices.

struct Found {
    Machine machine;
    Places places;
};

constexpr size_t kMostTopologyBytes = 16u << 20;

Result<Machine> read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::string text(kMostTopologyBytes, '\0');
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(std::max<std::streamsize>(0, file.gcount())));
    if (text.empty()) {
        return Status(Code::kNotFound, "cannot be read, or is empty");
    }
    return read_machine_xml(text);
}

Found find_machine(bool emulated) {
    Found found;
    bool have = false;
    if (const char* path = getenv("NCCL_TOPO_FILE"); path != nullptr && *path != 0) {
        Result<Machine> machine = read_file(path);
        have = machine.ok();
        if (have) {
            found.machine = std::move(machine).value();
        } else {
            log_line(LogLevel::kWarn, "NCCL_TOPO_FILE " + std::string(path) + ": " +
                                          machine.status().message() + "; not taken");
        }
    }
    if (!have && !emulated) {
        Discovery discovered = discover_machine();
        for (const std::string& line : discovered.log) {
            log_line(LogLevel::kInfo, line);
        }
        found.machine = std::move(discovered.machine);
    }
    found.places = find_places(found.machine, PathTable(found.machine));
    return found;
}

// "0000:17:00.0"; empty where CUDA does not say.
std::string bus_id_of(const DeviceApi& api, int device) {
    std::array<int, 3> parts{};
    constexpr std::array kAttributes = {cudaDevAttrPciDomainId, cudaDevAttrPciBusId,
                                        cudaDevAttrPciDeviceId};
    for (size_t i = 0; i < parts.size(); ++i) {
        if (!tolerate(api, api.device_get_attribute(&parts[i], kAttributes[i], device))) {
            return {};
        }
    }
    char text[32];
    std::snprintf(text, sizeof text, "%04x:%02x:%02x.0", parts[0], parts[1], parts[2]);
    return text;
}

RankPlace rank_place_of(Runtime& runtime, int device, uint64_t host_id) {
    RankPlace place;
    place.host_id = host_id;
    if (!runtime.device().ok() || !runtime.config.active) {
        return place;
    }
    const DeviceApi& api = runtime.api();
    const bool emulated = api.emulator != nullptr;
    static std::once_flag once;
    static Found* found = nullptr;  // outlives main, as the runtime does
    std::call_once(once, [&] { found = new Found(find_machine(emulated)); });
    size_t index = found->places.gpus.size();
    if (emulated) {
        index = static_cast<size_t>(device);
    } else {
        const std::string bus_id = bus_id_of(api, device);
        for (size_t i = 0; i < found->places.gpus.size(); ++i) {
            const auto gpu = static_cast<size_t>(found->places.gpus[i].gpu);
            index = found->machine.devices[gpu].bus_id == bus_id ? i : index;
        }
    }
    if (index < found->places.gpus.size()) {
        place = rank_place(found->machine, found->places, index, host_id);
    } else {
        place.gpu_id = stable_hash("device " + std::to_string(device)) ^ host_id;
    }
    if (runtime.config.settings.bandwidth_bits > 0) {
        place.net_mb_s =
            static_cast<uint32_t>(std::min(runtime.config.settings.bandwidth_bits / 8e6, 4e9));
    }
    return place;
}

// What makes ranks neighbours: NCCL_HOSTID as NCCL itself uses it, else host name and boot id; on
// the emulator the emulated node.
uint64_t host_id(const DeviceApi& api, int device) {
    if (api.emulator != nullptr) {
        return mix_key(stable_hash("emulated node"),
                       static_cast<uint64_t>(api.emulator->node_of_device(device)) + 1);
    }
    if (const char* given = getenv("NCCL_HOSTID"); given != nullptr && *given != 0) {
        return stable_hash(given);
    }
    std::string boot;
    std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
    return stable_hash(host_name() + boot);
}

}  // namespace

uint64_t mix_key(uint64_t key, uint64_t value) noexcept {
    key = (key ^ value) * 0x9e3779b97f4a7c15ull;
    return key ^ key >> 32;
}

std::string hex_key(uint64_t value) {
    char text[17];
    std::snprintf(text, sizeof text, "%016" PRIx64, value);
    return text;
}

Member member_of(Runtime& runtime, const Communicator& state, uint64_t parent_key) {
    const int device = state.device;
    Member member;
    member.place.host_id = runtime.device().ok() ? host_id(runtime.api(), device) : 0;
    member.place.device = device;
    member.place.launcher_rank = launcher_rank().value_or(-1);
    // Where every process is in a container of its own, many jobs have the same numbers.
    static const auto begun =
        static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
    member.process = mix_key(mix_key(member.place.host_id, static_cast<uint64_t>(getpid())), begun);
    member.links = rank_place_of(runtime, device, member.place.host_id);
    member.registered = state.registered_hash;
    member.name = stable_hash(state.configured.name);
    member.parent_key = parent_key;
    member.scratch_bytes = state.objects.room();
    member.saved_run = runtime.listener->saved_run();
    return member;
}

namespace {

// "2 nodes, NET 3125 MB/s at the slowest", for the log.
std::string links_text(const CommLinks& links) {
    const RankLink& slowest = links.slowest();
    return std::to_string(links.shape.nodes) + (links.shape.nodes == 1 ? " node" : " nodes") +
           ", slowest link " + path_class_name(slowest.path_class) +
           (slowest.mb_s > 0 ? " " + std::to_string(slowest.mb_s) + " MB/s" : "") +
           (links.rails > 0 ? ", " + std::to_string(links.rails) + " rails" : "");
}

}  // namespace

void adopt_costs(const std::shared_ptr<const std::vector<Calibration>>& calibrations,
                 const char* how,
                 Communicator* state) {
    state->shape.costs = CommCosts::make(calibrations, state->shape.ranks, state->stats->nodes,
                                         state->shape.slowest_mb_s, how);
    if (state->shape.costs != nullptr) {
        state->stats->thresholds = state->shape.costs->thresholds();
    }
}

// The communicator's key: its members, and `token`; 0: how many were made of them before.
Status adopt_members(Runtime& runtime, uint64_t token, Communicator* state) {
    uint64_t members = state->members.front().parent_key;
    std::vector<RankIdentity> places;
    std::vector<RankPlace> links;
    uint64_t scratch = state->members.front().scratch_bytes;
    for (const Member& member : state->members) {
        scratch = std::min(scratch, member.scratch_bytes);
        members = mix_key(mix_key(members, member.place.host_id), member.process);
        members = mix_key(members, static_cast<uint64_t>(member.place.device));
        places.push_back(member.place);
        links.push_back(member.links);
        links.back().host_id = member.place.host_id;
    }
    SLIMWIRE_TRY_ASSIGN(const CommShape shape, make_comm_shape(places));
    state->shape.scratch_bytes = scratch;
    state->shape.scope = shape.scope;
    state->shape.max_ranks_per_node = shape.max_ranks_per_node;
    state->shape.nodes = std::make_shared<const NodeTable>(shape);
    state->stats->nodes = shape.nodes;
    SLIMWIRE_TRY_ASSIGN(state->stats->links, make_comm_links(links));
    state->shape.slowest_mb_s = state->stats->links.slowest().mb_s;
    const std::shared_ptr<const CommCosts> parents = std::exchange(state->shape.costs, nullptr);
    if (runtime.config.calibrations != nullptr) {
        adopt_costs(runtime.config.calibrations, "as calibrated", state);
    } else if (parents != nullptr) {
        adopt_costs(parents->calibrations(), parents->how(), state);
    }
    // Ranks of one process count their communicators of these members apart; where a creation was
    // given up on some ranks they count differently.
    const uint64_t ordinal =
        token != 0
            ? token
            : runtime.comms.next_ordinal(mix_key(members, static_cast<uint64_t>(state->rank)));
    state->comm_key = mix_key(members, ordinal);
    state->state_key = mix_key(state->comm_key, static_cast<uint64_t>(state->rank) + 1);
    state->stats->comm = hex_key(state->comm_key);
    if (log_enabled(LogLevel::kInfo)) {
        log_line(LogLevel::kInfo, log_prefix(*state) + ": " + links_text(state->stats->links));
    }
    // Hosts, processes and devices may be others in the next process.
    uint64_t lasting = stable_hash("lasting communicator");
    for (const Member& member : state->members) {
        lasting = mix_key(lasting, static_cast<uint64_t>(member.place.launcher_rank) + 2);
    }
    lasting = mix_key(lasting, static_cast<uint64_t>(state->rank));
    const uint64_t lasting_ordinal = runtime.comms.next_ordinal(lasting);
    state->checkpoint_key = std::max<uint64_t>(1, mix_key(lasting, lasting_ordinal));
    std::vector<int> ranks;
    for (const Member& member : state->members) {
        ranks.push_back(member.place.launcher_rank);
    }
    state->group = group_of(ranks, launcher_size().value_or(0));
    if (state->group.of_some()) {
        // Of other numbers of ranks other groups may be such ones, whose order says which are
        // which.
        state->group.number += static_cast<uint32_t>(
            runtime.comms.next_ordinal(stable_hash("communicators of some ranks")));
    } else if (state->group.of_all()) {
        state->group.number += static_cast<uint32_t>(lasting_ordinal);
    }
    return {};
}

void adopt_name(Communicator* state) {
    const uint64_t mine = state->members[static_cast<size_t>(state->rank)].name;
    const auto other = std::find_if(state->members.begin(), state->members.end(),
                                    [&](const Member& member) { return member.name != mine; });
    if (other == state->members.end()) {
        state->shape.name = state->configured.name;
        return;
    }
    log_line(LogLevel::kWarn, log_prefix(*state) + " is '" + state->configured.name +
                                  "' here and has another name on rank " +
                                  std::to_string(other - state->members.begin()) +
                                  "; rules with 'comm' or 'role' take it as without a name");
}

}  // namespace slimwire
