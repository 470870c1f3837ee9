#include "topology/machine/paths.h"

#include <algorithm>
#include <array>
#include <queue>
#include <tuple>

namespace slimwire {
namespace {

// Of a link between a device and its parent. A way has the class of its farthest link.
PathClass tree_class(DeviceKind child, DeviceKind parent) {
    if (parent == DeviceKind::kCpu) {
        return PathClass::kPhb;
    }
    return child == DeviceKind::kSwitch && parent == DeviceKind::kSwitch ? PathClass::kPxb
                                                                         : PathClass::kPix;
}

// Only these pass on what comes in. GPUs do for NVLink, which find_hops() sees to.
bool passes_on(DeviceKind kind) {
    return kind == DeviceKind::kCpu || kind == DeviceKind::kSwitch || kind == DeviceKind::kNvSwitch;
}

constexpr std::array kLevels = {PathClass::kLocal, PathClass::kNvLink, PathClass::kC2c,
                                PathClass::kPix,   PathClass::kPxb,    PathClass::kPhb,
                                PathClass::kSys};

void take_better(const Path& way, Path* known) {
    if (known->path_class > way.path_class ||
        (known->path_class == way.path_class && known->gb_s < way.gb_s)) {
        *known = way;
    }
}

}  // namespace

const char* path_class_name(PathClass path_class) noexcept {
    switch (path_class) {
        case PathClass::kLocal:
            return "LOC";
        case PathClass::kNvLink:
            return "NVL";
        case PathClass::kNvHop:
            return "NVB";
        case PathClass::kC2c:
            return "C2C";
        case PathClass::kPix:
            return "PIX";
        case PathClass::kPxb:
            return "PXB";
        case PathClass::kPxn:
            return "PXN";
        case PathClass::kPhb:
            return "PHB";
        case PathClass::kSys:
            return "SYS";
        case PathClass::kNet:
            return "NET";
        case PathClass::kNone:
            return "DIS";
    }
    return "DIS";
}

PathTable::PathTable(const Machine& machine)
    : edges_(machine.devices.size()), place_(machine.devices.size(), -1) {
    const auto& devices = machine.devices;
    const auto connect = [this](int a, int b, PathClass path_class, double gb_s) {
        edges_[static_cast<size_t>(a)].push_back({b, path_class, gb_s});
        edges_[static_cast<size_t>(b)].push_back({a, path_class, gb_s});
    };
    for (size_t i = 0; i < devices.size(); ++i) {
        const Device& device = devices[i];
        if (device.parent >= 0) {
            const DeviceKind parent = devices[static_cast<size_t>(device.parent)].kind;
            connect(static_cast<int>(i), device.parent, tree_class(device.kind, parent),
                    device.up_gb_s);
        }
        if (device.kind == DeviceKind::kGpu || device.kind == DeviceKind::kNic) {
            place_[i] = static_cast<int>(endpoints_.size());
            endpoints_.push_back(static_cast<int>(i));
        }
    }
    const std::vector<int> cpus = machine.of_kind(DeviceKind::kCpu);
    for (size_t i = 0; i < cpus.size(); ++i) {
        for (size_t j = i + 1; j < cpus.size(); ++j) {
            const Device& a = devices[static_cast<size_t>(cpus[i])];
            const Device& b = devices[static_cast<size_t>(cpus[j])];
            if (a.host == b.host) {
                connect(cpus[i], cpus[j], PathClass::kSys,
                        std::min(cpu_link_gb_s(a), cpu_link_gb_s(b)));
            }
        }
    }
    for (const DirectLink& link : machine.links) {
        connect(link.a, link.b,
                link.kind == LinkKind::kC2c       ? PathClass::kC2c
                : link.kind == LinkKind::kPciPeer ? PathClass::kLocal
                                                  : PathClass::kNvLink,
                link.gb_s);
    }
    paths_.resize(endpoints_.size() * endpoints_.size());
    for (const int source : endpoints_) {
        find_from(source, machine);
    }
    find_hops(machine);
    find_pxn(machine);
}

Path& PathTable::at(int from, int to) noexcept {
    return paths_[static_cast<size_t>(place_[static_cast<size_t>(from)]) * endpoints_.size() +
                  static_cast<size_t>(place_[static_cast<size_t>(to)])];
}

Path PathTable::between(int from, int to) const noexcept {
    const int row = place_[static_cast<size_t>(from)];
    const int column = place_[static_cast<size_t>(to)];
    return row < 0 || column < 0
               ? Path{}
               : paths_[static_cast<size_t>(row) * endpoints_.size() + static_cast<size_t>(column)];
}

// Level by level: the widest way (then the shortest) of links no farther than the level, for those
// that no nearer level reached.
void PathTable::find_from(int source, const Machine& machine) {
    const Device& own = machine.devices[static_cast<size_t>(source)];
    size_t found = 0;
    for (const int other : endpoints_) {
        const Device& device = machine.devices[static_cast<size_t>(other)];
        const bool same_card = own.kind == DeviceKind::kGpu && device.kind == DeviceKind::kGpu &&
                               own.host == device.host && !own.bus_id.empty() &&
                               own.bus_id == device.bus_id;
        if (other == source || same_card) {
            at(source, other) = {PathClass::kLocal, kLocalGbS};
            ++found;
        }
    }
    struct Reached {
        double gb_s;
        int hops;
        int device;
        bool operator<(const Reached& other) const {  // the best on top
            return std::tuple(gb_s, -hops, -device) <
                   std::tuple(other.gb_s, -other.hops, -other.device);
        }
    };
    for (const PathClass level : kLevels) {
        if (found == endpoints_.size()) {
            return;
        }
        std::vector<bool> done(machine.devices.size(), false);
        std::priority_queue<Reached> open;
        open.push({kLocalGbS, 0, source});
        while (!open.empty()) {
            const Reached reached = open.top();
            open.pop();
            const auto device = static_cast<size_t>(reached.device);
            if (done[device]) {
                continue;
            }
            done[device] = true;
            if (place_[device] >= 0 && at(source, reached.device).path_class == PathClass::kNone) {
                at(source, reached.device) = {level, reached.gb_s};
                ++found;
            }
            if (reached.device != source && !passes_on(machine.devices[device].kind)) {
                continue;
            }
            for (const Edge& edge : edges_[device]) {
                if (edge.path_class <= level && !done[static_cast<size_t>(edge.to)]) {
                    open.push({std::min(reached.gb_s, edge.gb_s), reached.hops + 1, edge.to});
                }
            }
        }
    }
}

// Two GPUs without a link, and a third that has one with both.
void PathTable::find_hops(const Machine& machine) {
    std::vector<Path> better = paths_;
    const std::vector<int> gpus = machine.of_kind(DeviceKind::kGpu);
    for (const int a : gpus) {
        for (const Edge& first : edges_[static_cast<size_t>(a)]) {
            const auto middle = static_cast<size_t>(first.to);
            if (first.path_class != PathClass::kNvLink ||
                machine.devices[middle].kind != DeviceKind::kGpu) {
                continue;
            }
            for (const Edge& second : edges_[middle]) {
                if (second.path_class != PathClass::kNvLink || second.to == a ||
                    machine.devices[static_cast<size_t>(second.to)].kind != DeviceKind::kGpu) {
                    continue;
                }
                take_better({PathClass::kNvHop, std::min(first.gb_s, second.gb_s)},
                            &better[static_cast<size_t>(&at(a, second.to) - paths_.data())]);
            }
        }
    }
    paths_ = std::move(better);
}

// A NIC behind a processor, and a GPU with NVLink that has the NIC on its own PCIe.
void PathTable::find_pxn(const Machine& machine) {
    std::vector<Path> better = paths_;
    const std::vector<int> gpus = machine.of_kind(DeviceKind::kGpu);
    for (const int nic : machine.of_kind(DeviceKind::kNic)) {
        for (const int helper : gpus) {
            const Path last = at(helper, nic);
            if (last.path_class > PathClass::kPxb) {
                continue;
            }
            for (const int gpu : gpus) {
                const Path first = at(gpu, helper);
                if (gpu == helper || first.path_class != PathClass::kNvLink ||
                    machine.devices[static_cast<size_t>(gpu)].host !=
                        machine.devices[static_cast<size_t>(helper)].host) {
                    continue;
                }
                for (const Path* way : {&at(gpu, nic), &at(nic, gpu)}) {
                    take_better({PathClass::kPxn, std::min(first.gb_s, last.gb_s)},
                                &better[static_cast<size_t>(way - paths_.data())]);
                }
            }
        }
    }
    paths_ = std::move(better);
}

}  // namespace slimwire
