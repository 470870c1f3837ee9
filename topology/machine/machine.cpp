#include "topology/machine/machine.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "codecs/base/number_text.h"

namespace slimwire {
namespace {

// What a NIC or GPU is called by; NICs by their first port.
std::string short_name(const Device& device) {
    switch (device.kind) {
        case DeviceKind::kCpu:
            return device.number < 0 ? "CPU ?" : "CPU " + std::to_string(device.number);
        case DeviceKind::kSwitch:
            return "switch " + device.bus_id;
        case DeviceKind::kGpu:
            return "GPU " + std::to_string(device.number);
        case DeviceKind::kNic:
            return "NIC " + (!device.ports.empty() && !device.ports.front().name.empty()
                                 ? device.ports.front().name
                                 : std::to_string(device.number));
        case DeviceKind::kNvSwitch:
            return "NVSwitch";
        case DeviceKind::kOther:
            return "device " + device.bus_id;
    }
    return "device";
}

// GPUs of one host keep their CUDA ordinals where these are told and differ, else they are counted.
void number_gpus(Machine* machine) {
    for (int host = 0; host < static_cast<int>(machine->hosts.size()); ++host) {
        std::vector<Device*> gpus;
        std::set<int> numbers;
        for (Device& device : machine->devices) {
            if (device.kind == DeviceKind::kGpu && device.host == host) {
                gpus.push_back(&device);
                numbers.insert(device.number);
            }
        }
        if (numbers.size() == gpus.size() && numbers.count(-1) == 0) {
            continue;
        }
        if (numbers != std::set<int>{-1} && !gpus.empty()) {
            machine->notes.push_back(
                "CUDA ordinals of GPUs are missing or equal; GPUs are counted "
                "as they stand: " +
                std::to_string(gpus.size()));
        }
        int next = 0;
        for (Device* gpu : gpus) {
            gpu->number = next++;
        }
    }
}

}  // namespace

const char* device_kind_name(DeviceKind kind) noexcept {
    switch (kind) {
        case DeviceKind::kCpu:
            return "cpu";
        case DeviceKind::kSwitch:
            return "switch";
        case DeviceKind::kGpu:
            return "gpu";
        case DeviceKind::kNic:
            return "nic";
        case DeviceKind::kNvSwitch:
            return "nvswitch";
        case DeviceKind::kOther:
            return "other";
    }
    return "other";
}

const char* link_kind_name(LinkKind kind) noexcept {
    switch (kind) {
        case LinkKind::kNvLink:
            return "NVLink";
        case LinkKind::kXgmi:
            return "xGMI";
        case LinkKind::kC2c:
            return "C2C";
        case LinkKind::kPciPeer:
            return "PCIe peer";
    }
    return "link";
}

double Device::net_gbit_s() const noexcept {
    double sum = 0;
    for (const NetPort& port : ports) {
        sum += port.gbit_s;
    }
    return sum;
}

std::vector<int> Machine::of_kind(DeviceKind kind) const {
    std::vector<int> found;
    for (size_t i = 0; i < devices.size(); ++i) {
        if (devices[i].kind == kind) {
            found.push_back(static_cast<int>(i));
        }
    }
    return found;
}

std::vector<int> Machine::in_order(DeviceKind kind) const {
    std::vector<int> found = of_kind(kind);
    std::stable_sort(found.begin(), found.end(), [this](int left, int right) {
        const Device& a = devices[static_cast<size_t>(left)];
        const Device& b = devices[static_cast<size_t>(right)];
        return std::pair(a.host, a.number) < std::pair(b.host, b.number);
    });
    return found;
}

int Machine::find(DeviceKind kind, std::string_view bus_id, int host) const {
    const auto found = std::find_if(devices.begin(), devices.end(), [&](const Device& device) {
        return device.kind == kind && device.host == host && device.bus_id == bus_id;
    });
    return found == devices.end() ? -1 : static_cast<int>(found - devices.begin());
}

int Machine::nv_switch() {
    if (const std::vector<int> known = of_kind(DeviceKind::kNvSwitch); !known.empty()) {
        return known.front();
    }
    devices.emplace_back().kind = DeviceKind::kNvSwitch;
    return static_cast<int>(devices.size()) - 1;
}

int Machine::cpu_of(int device) const {
    int at = device;
    while (at >= 0 && devices[static_cast<size_t>(at)].kind != DeviceKind::kCpu) {
        at = devices[static_cast<size_t>(at)].parent;
    }
    return at;
}

std::string Machine::label(int device) const {
    const Device& found = devices[static_cast<size_t>(device)];
    const std::string name = short_name(found);
    return hosts.size() > 1 && found.kind != DeviceKind::kNvSwitch
               ? name + " of host " + std::to_string(found.host)
               : name;
}

void finish_machine(Machine* machine) {
    number_gpus(machine);
    std::vector<int> nics_of_host(machine->hosts.size(), 0);
    int unknown_speeds = 0;
    int unknown_devices = 0;
    std::vector<int> gpus_of_host(machine->hosts.size(), 0);
    for (Device& device : machine->devices) {
        if (device.kind == DeviceKind::kNic) {
            device.number = nics_of_host[static_cast<size_t>(device.host)]++;
        }
        unknown_devices += device.kind == DeviceKind::kOther;
        gpus_of_host[static_cast<size_t>(device.host)] += device.kind == DeviceKind::kGpu;
        if (device.parent >= 0 && device.up_gb_s <= 0) {
            device.up_assumed = device.pcie_gt_s <= 0 || device.pcie_width <= 0;
            unknown_speeds += device.up_assumed;
            device.up_gb_s = pcie_gb_s(device.pcie_gt_s, device.pcie_width);
        }
    }
    // There is nothing between the GPUs where there are no two.
    const bool pairs =
        std::any_of(gpus_of_host.begin(), gpus_of_host.end(), [](int gpus) { return gpus > 1; });
    machine->gpu_links_told = machine->gpu_links_told || (!pairs && unknown_devices == 0);
    if (unknown_speeds > 0) {
        machine->notes.push_back("no PCIe speed or width, taken as 8 GT/s or 16 lanes: devices: " +
                                 std::to_string(unknown_speeds));
    }
    if (unknown_devices > 0) {
        machine->notes.push_back("by class and content neither GPU nor NIC: devices: " +
                                 std::to_string(unknown_devices));
    }
}

double pcie_gb_s(double gt_s, int width) noexcept {
    const double rate = gt_s > 0 ? gt_s : kDefaultPcieGtS;
    // 8b/10b below the third generation, 128b/130b from there on, and what packets cost.
    const double lane = rate < 8 ? rate * 0.075 : rate * 0.09375;
    return lane * (width > 0 ? width : kDefaultPcieWidth);
}

double parse_pcie_speed(std::string_view text) noexcept {
    const auto [value, unit] = leading_number(text);
    const bool known = unit.starts_with(" GT/s") || unit.starts_with("GT/s");
    return known && value > 0 && value <= 1024 ? value : 0;
}

double pcie_generation_gt_s(int generation) noexcept {
    constexpr std::array<double, 8> kRates = {0, 2.5, 5, 8, 16, 32, 64, 128};
    return generation >= 1 && generation < static_cast<int>(kRates.size())
               ? kRates[static_cast<size_t>(generation)]
               : 0;
}

double nvlink_gb_s(int compute_capability) noexcept {
    return compute_capability >= 100  ? 40.1
           : compute_capability >= 90 ? 20.6
           : compute_capability == 86 ? 12
           : compute_capability >= 70 ? 20
           : compute_capability >= 60 ? 18
                                      : 20;
}

double xgmi_gb_s(int gcn) noexcept {
    return gcn >= 940 ? 48 : gcn >= 910 ? 36 : 24;
}

double cpu_link_gb_s(const Device& cpu) noexcept {
    if (cpu.arch == "ppc64" || cpu.arch == "ppc64le") {
        return 32;
    }
    if (cpu.arch == "arm64" || cpu.arch == "aarch64") {
        return 6;
    }
    if (cpu.vendor == "AuthenticAMD") {
        return 16;
    }
    if (cpu.vendor == "GenuineIntel" && cpu.family == 6) {
        return cpu.model >= 0xcf ? 40 : cpu.model >= 0x8f ? 22 : cpu.model >= 0x55 ? 10 : 6;
    }
    return 6;
}

}  // namespace slimwire
