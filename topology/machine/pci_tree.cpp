#include "topology/machine/pci_tree.h"

#include <algorithm>
#include <map>

#include "topology/machine/machine.h"

namespace slimwire {
namespace {

std::string hex4(uint32_t value) {
    constexpr char kDigits[] = "0123456789abcdef";
    std::string text = "0x";
    for (int shift = 12; shift >= 0; shift -= 4) {
        text += kDigits[value >> shift & 15];
    }
    return text;
}

int cpu_for(int numa, Machine* machine) {
    int first = -1;
    for (const int cpu : machine->of_kind(DeviceKind::kCpu)) {
        first = first < 0 ? cpu : first;
        if (machine->devices[static_cast<size_t>(cpu)].number == numa) {
            return cpu;
        }
    }
    if (first >= 0) {
        return first;
    }
    Device& cpu = machine->devices.emplace_back();
    cpu.kind = DeviceKind::kCpu;
    cpu.number = numa < 0 ? 0 : numa;
    return static_cast<int>(machine->devices.size()) - 1;
}

}  // namespace

bool is_gpu(const PciFunction& function) noexcept {
    // A display controller of another maker is a board's console.
    const bool maker = function.vendor == 0x10de || function.vendor == 0x1002;
    return function.pci_class == 0x0302 || function.pci_class >> 8 == 0x12 ||
           (function.pci_class >> 8 == 0x03 && maker);
}

bool is_nic(const PciFunction& function) noexcept {
    return function.pci_class >> 8 == 0x02;
}

void add_functions(std::vector<PciFunction> functions, Machine* machine) {
    std::sort(functions.begin(), functions.end(),
              [](const PciFunction& a, const PciFunction& b) { return a.bus_id < b.bus_id; });
    std::map<std::string, int> switches;
    for (PciFunction& function : functions) {
        if (!is_gpu(function) && !is_nic(function)) {
            continue;
        }
        int parent = cpu_for(function.numa, machine);
        double narrowest = 0;
        const size_t bridges = function.bridges.size();
        for (size_t i = bridges; i-- > 0;) {
            if (i % 2 == 0) {
                continue;
            }
            const PciBridge& bridge = function.bridges[i];
            const auto [where, is_new] = switches.try_emplace(bridge.bus_id, -1);
            if (is_new) {
                Device& added = machine->devices.emplace_back();
                added.kind = DeviceKind::kSwitch;
                added.parent = parent;
                added.bus_id = bridge.bus_id;
                added.pcie_gt_s = bridge.gt_s;
                added.pcie_width = bridge.width;
                added.up_gb_s = bridge.up_gb_s;
                where->second = static_cast<int>(machine->devices.size()) - 1;
            }
            parent = where->second;
        }
        // A port that is slower than the device in it.
        if (!function.bridges.empty() && function.bridges.front().gt_s > 0 && function.gt_s > 0) {
            narrowest = pcie_gb_s(std::min(function.gt_s, function.bridges.front().gt_s),
                                  function.width > 0 && function.bridges.front().width > 0
                                      ? std::min(function.width, function.bridges.front().width)
                                      : std::max(function.width, function.bridges.front().width));
        }
        Device& added = machine->devices.emplace_back();
        added.kind = is_gpu(function) ? DeviceKind::kGpu : DeviceKind::kNic;
        added.parent = parent;
        added.bus_id = function.bus_id;
        added.name = function.name;
        added.vendor = hex4(function.vendor);
        added.pcie_gt_s = function.gt_s;
        added.pcie_width = function.width;
        added.up_gb_s = function.up_gb_s > 0 ? function.up_gb_s : narrowest;
        added.ports = std::move(function.ports);
    }
}

}  // namespace slimwire
