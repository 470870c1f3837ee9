#include "topology/machine/places.h"

#include <algorithm>
#include <map>
#include <set>

namespace slimwire {
namespace {

// The NICs at the least class, and of these the widest.
std::vector<int> nearest_nics(const Machine& machine, const PathTable& paths, int gpu, Path* best) {
    std::vector<int> nearest;
    for (const int nic : machine.nics()) {
        const Path path = paths.between(gpu, nic);
        if (path.path_class == PathClass::kNone) {
            continue;
        }
        const bool better = nearest.empty() || path.path_class < best->path_class ||
                            (path.path_class == best->path_class && path.gb_s > best->gb_s);
        if (better) {
            *best = path;
            nearest.clear();
        }
        if (path.path_class == best->path_class && path.gb_s == best->gb_s) {
            nearest.push_back(nic);
        }
    }
    return nearest;
}

void share_out(const Machine& machine,
               const std::vector<std::vector<int>>& nearest,
               const std::vector<Path>& ways,
               Places* places) {
    std::map<std::vector<int>, std::vector<size_t>> sharing;
    for (size_t i = 0; i < nearest.size(); ++i) {
        sharing[nearest[i]].push_back(i);
    }
    for (const auto& [nics, gpus] : sharing) {
        const size_t m = gpus.size();
        const size_t n = nics.size();
        for (size_t k = 0; n > 0 && k < m; ++k) {
            GpuPlace& place = places->gpus[gpus[k]];
            const size_t begin = k * n / m;
            const size_t end = std::max(begin + 1, (k + 1) * n / m);
            place.nics.assign(nics.begin() + static_cast<std::ptrdiff_t>(begin),
                              nics.begin() + static_cast<std::ptrdiff_t>(end));
            place.nic_class = ways[gpus[k]].path_class;
            place.rail = machine.devices[static_cast<size_t>(place.nics.front())].number;
            place.net_known = true;
            double wires = 0;
            for (const int nic : place.nics) {
                const double wire = machine.devices[static_cast<size_t>(nic)].net_gbit_s() / 8;
                place.net_known = place.net_known && wire > 0;
                wires += wire > 0 ? std::min(wire, ways[gpus[k]].gb_s) : ways[gpus[k]].gb_s;
            }
            // All of a GPU's NICs are behind its own PCIe link.
            const double own = machine.devices[static_cast<size_t>(place.gpu)].up_gb_s;
            place.net_gb_s =
                place.nic_class <= PathClass::kPxb && own > 0 ? std::min(wires, own) : wires;
        }
    }
}

}  // namespace

Places find_places(const Machine& machine, const PathTable& paths) {
    Places places;
    for (const int gpu : machine.gpus()) {
        GpuPlace place;
        place.gpu = gpu;
        place.cpu = machine.cpu_of(gpu);
        const int parent = machine.devices[static_cast<size_t>(gpu)].parent;
        if (parent >= 0 &&
            machine.devices[static_cast<size_t>(parent)].kind == DeviceKind::kSwitch) {
            place.pci_switch = parent;
        }
        for (const DirectLink& link : machine.links) {
            const bool nv = link.kind == LinkKind::kNvLink || link.kind == LinkKind::kXgmi;
            place.nv_gb_s += nv && (link.a == gpu || link.b == gpu) ? link.gb_s : 0;
        }
        places.gpus.push_back(std::move(place));
    }
    const size_t count = places.gpus.size();
    for (size_t i = 0; i < count; ++i) {
        if (places.gpus[i].nv_domain >= 0) {
            continue;
        }
        // Everybody that NVLinks lead to, also over others.
        std::vector<size_t> open = {i};
        const int domain = places.nv_domains;
        while (!open.empty()) {
            const size_t at = open.back();
            open.pop_back();
            for (size_t j = 0; j < count; ++j) {
                if (j != at && places.gpus[j].nv_domain < 0 && j != i &&
                    paths.between(places.gpus[at].gpu, places.gpus[j].gpu).path_class ==
                        PathClass::kNvLink) {
                    places.gpus[j].nv_domain = domain;
                    places.gpus[i].nv_domain = domain;
                    open.push_back(j);
                }
            }
        }
        places.nv_domains += places.gpus[i].nv_domain == domain;
    }
    for (GpuPlace& place : places.gpus) {
        for (const GpuPlace& other : places.gpus) {
            if (other.gpu != place.gpu && other.nv_domain == place.nv_domain &&
                place.nv_domain >= 0) {
                const double way = paths.between(place.gpu, other.gpu).gb_s;
                place.nv_way_gb_s = place.nv_way_gb_s == 0 ? way : std::min(place.nv_way_gb_s, way);
            }
        }
    }
    std::vector<std::vector<int>> nearest;
    std::vector<Path> ways(count);
    for (size_t i = 0; i < count; ++i) {
        nearest.push_back(nearest_nics(machine, paths, places.gpus[i].gpu, &ways[i]));
    }
    share_out(machine, nearest, ways, &places);
    std::set<int> rails;
    for (const GpuPlace& place : places.gpus) {
        if (place.rail >= 0) {
            rails.insert(place.rail);
        }
    }
    places.rails = static_cast<int>(rails.size());
    return places;
}

Path gpu_path(const PathTable& paths, const GpuPlace& a, const GpuPlace& b) {
    const Path path = paths.between(a.gpu, b.gpu);
    if (path.path_class != PathClass::kNone || a.nics.empty() || b.nics.empty()) {
        return path;
    }
    return {PathClass::kNet, std::min(a.net_gb_s, b.net_gb_s)};
}

}  // namespace slimwire
