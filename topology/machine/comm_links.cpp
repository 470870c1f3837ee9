#include "topology/machine/comm_links.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "topology/machine/machine.h"

namespace slimwire {
namespace {

// The lesser of what is known.
uint32_t lesser(uint32_t a, uint32_t b) {
    return a == 0 ? b : b == 0 ? a : std::min(a, b);
}

// The farther class; of one class the lesser known bandwidth.
void take_slower(const RankLink& link, RankLink* slowest) {
    if (slowest->path_class == PathClass::kNone || link.path_class > slowest->path_class) {
        const uint32_t known = slowest->path_class == PathClass::kNone ? 0 : slowest->mb_s;
        const bool one_rail = slowest->path_class == PathClass::kNone || slowest->same_rail;
        *slowest = {link.path_class, lesser(known, link.mb_s), link.same_rail && one_rail};
    } else {
        slowest->mb_s = lesser(slowest->mb_s, link.mb_s);
        slowest->same_rail = slowest->same_rail && link.same_rail;
    }
}

// FNV-1a: equal on all machines.
uint64_t name_hash(uint64_t seed, std::string_view kind, std::string_view name) {
    uint64_t hash = 0xcbf29ce484222325u;
    const auto add = [&hash](unsigned char byte) { hash = (hash ^ byte) * 0x100000001b3u; };
    for (int shift = 0; shift < 64; shift += 8) {
        add(static_cast<unsigned char>(seed >> shift));
    }
    for (const char c : kind) {
        add(static_cast<unsigned char>(c));
    }
    for (const char c : name) {
        add(static_cast<unsigned char>(c));
    }
    return hash == 0 ? 1 : hash;
}

uint32_t in_mb_s(double gb_s) {
    return gb_s <= 0 ? 0 : gb_s >= 4e6 ? 4000000000u : static_cast<uint32_t>(gb_s * 1000 + 0.5);
}

void find_domains(const std::vector<RankPlace>& places, CommLinks* links) {
    std::unordered_map<uint64_t, int> members;
    for (const RankPlace& place : places) {
        members[place.nv_domain_id] += place.nv_domain_id != 0 ? 1 : 0;
    }
    // A domain of one of its GPUs leads nowhere in this communicator.
    links->nv_domains = static_cast<int>(std::count_if(
        members.begin(), members.end(), [](const auto& domain) { return domain.second > 1; }));
}

void find_rails(const std::vector<RankPlace>& places, CommLinks* links) {
    std::map<int32_t, std::vector<int>> ranks_of;  // by rail and node
    links->rails_aligned = true;
    for (size_t rank = 0; rank < places.size(); ++rank) {
        const int32_t rail = places[rank].rail;
        if (rail < 0) {
            links->rails_aligned = false;
            continue;
        }
        std::vector<int>& nodes = ranks_of[rail];
        nodes.resize(static_cast<size_t>(links->shape.nodes));
        ++nodes[static_cast<size_t>(links->shape.node_of_rank[rank])];
    }
    links->rails = static_cast<int>(ranks_of.size());
    for (const auto& [rail, nodes] : ranks_of) {
        links->rails_aligned =
            links->rails_aligned && std::count(nodes.begin(), nodes.end(), nodes[0]) ==
                                        static_cast<std::ptrdiff_t>(nodes.size());
    }
}

// Between nodes the slowest pair has the slowest rank that has a partner there at all, so pairs
// need not be visited: communicators have thousands of ranks.
void find_slowest_between(const std::vector<RankPlace>& places, CommLinks* links) {
    std::unordered_map<uint64_t, size_t> on_host, in_domain;
    std::map<std::pair<uint64_t, uint64_t>, size_t> in_both;
    for (const RankPlace& place : places) {
        ++on_host[place.host_id];
        ++in_domain[place.nv_domain_id];
        ++in_both[{place.host_id, place.nv_domain_id}];
    }
    int32_t rail = -1;
    bool one_rail = true;
    for (const RankPlace& place : places) {
        const bool has_domain = place.nv_domain_id != 0;
        const size_t near = in_both[{place.host_id, place.nv_domain_id}];
        // In its domain on other hosts; elsewhere on other hosts.
        const size_t domain = has_domain ? in_domain[place.nv_domain_id] - near : 0;
        const size_t far = places.size() - on_host[place.host_id] - domain;
        if (domain > 0) {
            take_slower({PathClass::kNvLink, place.nv_mb_s, false}, &links->slowest_between_nodes);
        }
        if (far > 0) {
            one_rail = one_rail && place.rail >= 0 && (rail < 0 || rail == place.rail);
            rail = place.rail;
            take_slower({PathClass::kNet, place.net_mb_s, false}, &links->slowest_between_nodes);
        }
    }
    links->slowest_between_nodes.same_rail =
        links->slowest_between_nodes.path_class == PathClass::kNet && one_rail;
}

}  // namespace

RankLink rank_link(const RankPlace& a, const RankPlace& b) noexcept {
    const bool same_host = a.host_id == b.host_id;
    if (same_host && a.gpu_id != 0 && a.gpu_id == b.gpu_id) {
        return {PathClass::kLocal, in_mb_s(kLocalGbS), false};
    }
    if (a.nv_domain_id != 0 && a.nv_domain_id == b.nv_domain_id) {
        return {PathClass::kNvLink, lesser(a.nv_mb_s, b.nv_mb_s), false};
    }
    if (!same_host) {
        return {PathClass::kNet, lesser(a.net_mb_s, b.net_mb_s), a.rail >= 0 && a.rail == b.rail};
    }
    const uint32_t pcie = lesser(a.pcie_mb_s, b.pcie_mb_s);
    if (a.switch_id != 0 && a.switch_id == b.switch_id) {
        return {PathClass::kPix, pcie, false};
    }
    if (a.numa >= 0 && a.numa == b.numa) {
        return {PathClass::kPhb, pcie, false};
    }
    return {PathClass::kSys, lesser(pcie, lesser(a.cpu_mb_s, b.cpu_mb_s)), false};
}

Result<CommLinks> make_comm_links(const std::vector<RankPlace>& places) {
    std::vector<RankIdentity> identities;
    identities.reserve(places.size());
    for (const RankPlace& place : places) {
        identities.push_back({place.host_id, 0, 0});
    }
    CommLinks links;
    SLIMWIRE_TRY_ASSIGN(links.shape, make_comm_shape(identities));
    std::vector<std::vector<size_t>> ranks_of_node(static_cast<size_t>(links.shape.nodes));
    for (size_t rank = 0; rank < places.size(); ++rank) {
        ranks_of_node[static_cast<size_t>(links.shape.node_of_rank[rank])].push_back(rank);
    }
    for (const std::vector<size_t>& ranks : ranks_of_node) {
        links.ranks_on_node.push_back(static_cast<int>(ranks.size()));
        for (size_t i = 0; i < ranks.size(); ++i) {
            for (size_t j = i + 1; j < ranks.size(); ++j) {
                const RankLink link = rank_link(places[ranks[i]], places[ranks[j]]);
                links.shared_gpus = links.shared_gpus || link.path_class == PathClass::kLocal;
                take_slower(link, &links.slowest_in_node);
            }
        }
    }
    find_domains(places, &links);
    find_rails(places, &links);
    find_slowest_between(places, &links);
    return links;
}

RankPlace rank_place(const Machine& machine, const Places& places, size_t index, uint64_t host_id) {
    const GpuPlace& place = places.gpus[index];
    const Device& gpu = machine.devices[static_cast<size_t>(place.gpu)];
    RankPlace said;
    said.host_id = host_id;
    said.gpu_id =
        name_hash(host_id, "gpu", gpu.bus_id.empty() ? machine.label(place.gpu) : gpu.bus_id);
    if (!gpu.fabric.empty()) {
        said.nv_domain_id = name_hash(0, "fabric", gpu.fabric);  // equal on all hosts of the domain
    } else if (place.nv_domain >= 0) {
        said.nv_domain_id = name_hash(host_id, "domain", std::to_string(place.nv_domain));
    }
    if (place.pci_switch >= 0) {
        said.switch_id = name_hash(host_id, "switch",
                                   machine.devices[static_cast<size_t>(place.pci_switch)].bus_id);
    }
    if (place.cpu >= 0) {
        const Device& cpu = machine.devices[static_cast<size_t>(place.cpu)];
        said.numa = cpu.number;
        said.cpu_mb_s = in_mb_s(cpu_link_gb_s(cpu));
    }
    said.rail = place.rail;
    // A GPU alone in its machine may share a domain with other machines'.
    said.nv_mb_s = in_mb_s(place.nv_way_gb_s > 0 ? place.nv_way_gb_s : place.nv_gb_s);
    said.pcie_mb_s = in_mb_s(gpu.up_gb_s);
    said.net_mb_s = place.net_known ? in_mb_s(place.net_gb_s) : 0;
    return said;
}

}  // namespace slimwire
