#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "codecs/base/descriptor.h"
#include "topology/machine/machine.h"
#include "topology/readers/attribute_text.h"
#include "topology/readers/sources.h"

namespace slimwire::sources {
namespace {

constexpr const char* kArch =
#if defined(__x86_64__)
    "x86_64";
#elif defined(__aarch64__)
    "arm64";
#elif defined(__powerpc64__)
    "ppc64";
#else
    "";
#endif

// The first `most` bytes of a file, without white space at the end; empty when it cannot be read.
std::string read_file(const std::string& path, size_t most = 256) {
    const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    std::string text(most, '\0');
    const ssize_t bytes = file.valid() ? read(file.fd(), text.data(), text.size()) : 0;
    text.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
    while (!text.empty() && static_cast<unsigned char>(text.back()) <= ' ') {
        text.pop_back();
    }
    return text;
}

// Sorted, without those that begin with a dot.
std::vector<std::string> names_in(const std::string& folder) {
    std::vector<std::string> names;
    if (DIR* const opened = opendir(folder.c_str()); opened != nullptr) {
        while (const dirent* const entry = readdir(opened)) {
            if (entry->d_name[0] != '.') {
                names.emplace_back(entry->d_name);
            }
        }
        closedir(opened);
    }
    std::sort(names.begin(), names.end());
    return names;
}

std::string real_path(const std::string& path) {
    char* const resolved = realpath(path.c_str(), nullptr);
    std::string text = resolved == nullptr ? "" : resolved;
    std::free(resolved);
    return text;
}

bool is_bus_id(std::string_view text) {
    // Domains may have more than four digits.
    const size_t size = text.size();
    if (size < 12 || text[size - 2] != '.' || text[size - 5] != ':' || text[size - 8] != ':') {
        return false;
    }
    return std::all_of(text.begin(), text.end(), [](char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || c == ':' || c == '.';
    });
}

// The bus ids of a device's folder and those around it, the device first.
std::vector<std::string> chain_of(std::string_view path) {
    std::vector<std::string> chain;
    while (!path.empty()) {
        const size_t slash = path.rfind('/');
        const std::string_view name =
            slash == std::string_view::npos ? path : path.substr(slash + 1);
        if (is_bus_id(name)) {
            chain.emplace_back(name);
        }
        path = slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
    }
    return chain;
}

struct PcieLink {
    double gt_s = 0;
    int width = 0;
};

// What the device can do, and its port: the lesser. Links rest at a lower speed, so the current one
// says little.
PcieLink pcie_link(const std::string& folder) {
    return {parse_pcie_speed(read_file(folder + "/max_link_speed")),
            parse_number(read_file(folder + "/max_link_width"), 0, kWidestPcie)};
}

PcieLink lesser(const PcieLink& a, const PcieLink& b) {
    return {a.gt_s <= 0   ? b.gt_s
            : b.gt_s <= 0 ? a.gt_s
                          : std::min(a.gt_s, b.gt_s),
            a.width <= 0   ? b.width
            : b.width <= 0 ? a.width
                           : std::min(a.width, b.width)};
}

PcieLink pcie_link_of(const std::string& root, const std::string& bus_id) {
    const std::string folder = real_path(root + "/sys/bus/pci/devices/" + bus_id);
    if (folder.empty()) {
        return {};
    }
    const std::string port = folder.substr(0, folder.rfind('/'));
    PcieLink link = pcie_link(folder);
    if (is_bus_id(port.substr(port.rfind('/') + 1))) {
        link = lesser(link, pcie_link(port));
    }
    return link;
}

// "value" of "key : value" in /proc/cpuinfo.
std::string cpuinfo_value(const std::string& text, const std::string& key) {
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find('\n', at), text.size());
        const std::string line = text.substr(at, end - at);
        const size_t colon = line.find(':');
        if (colon != std::string::npos && line.compare(0, key.size(), key) == 0 &&
            line.find_first_not_of(" \t", key.size()) == colon && colon + 2 <= line.size()) {
            return line.substr(colon + 2);
        }
        at = end + 1;
    }
    return {};
}

}  // namespace

std::string last_bus_id(std::string_view path) {
    const std::vector<std::string> chain = chain_of(path);
    return chain.empty() ? std::string() : chain.front();
}

Result<std::vector<Device>> sysfs_processors(const std::string& root) {
    const std::string folder = root + "/sys/devices/system/node";
    const std::string cpuinfo = read_file(root + "/proc/cpuinfo", 4096);
    std::vector<Device> processors;
    for (const std::string& name : names_in(folder)) {
        const int number = name.compare(0, 4, "node") == 0
                               ? parse_number(std::string_view(name).substr(4), -1)
                               : -1;
        // Memory without processors: a GPU's, or CXL.
        if (number < 0 || read_file(folder + "/" + name + "/cpulist").empty()) {
            continue;
        }
        Device& cpu = processors.emplace_back();
        cpu.kind = DeviceKind::kCpu;
        cpu.number = number;
        cpu.arch = kArch;
        cpu.vendor = cpuinfo_value(cpuinfo, "vendor_id");
        cpu.family = parse_number(cpuinfo_value(cpuinfo, "cpu family"), 0);
        cpu.model = parse_number(cpuinfo_value(cpuinfo, "model"), 0);
    }
    if (processors.empty()) {
        return Status(Code::kNotFound, folder + " has no NUMA nodes");
    }
    std::sort(processors.begin(), processors.end(),
              [](const Device& a, const Device& b) { return a.number < b.number; });
    return processors;
}

Result<std::vector<PciFunction>> sysfs_functions(const std::string& root) {
    const std::string devices = root + "/sys/bus/pci/devices";
    const std::vector<std::string> names = names_in(devices);
    if (names.empty()) {
        return Status(Code::kNotFound, devices + " is missing or empty");
    }
    std::vector<PciFunction> functions;
    for (const std::string& name : names) {
        const std::string folder = devices + "/" + name;
        PciFunction function;
        function.bus_id = name;
        function.pci_class =
            static_cast<uint32_t>(parse_hex(read_file(folder + "/class")).value_or(0) >> 8);
        function.vendor =
            static_cast<uint32_t>(parse_hex(read_file(folder + "/vendor")).value_or(0));
        if (!is_gpu(function) && !is_nic(function)) {
            continue;
        }
        function.numa = parse_number(read_file(folder + "/numa_node"), -1);
        const std::vector<std::string> chain = chain_of(real_path(folder));
        for (size_t i = 1; i < chain.size(); ++i) {
            function.bridges.push_back({chain[i], 0, 0, 0});
        }
        functions.push_back(std::move(function));
    }
    return functions;
}

void read_sysfs_pcie(const std::string& root, Device* device) {
    const PcieLink link = pcie_link_of(root, device->bus_id);
    if (link.gt_s > 0 && link.width > 0) {
        device->pcie_gt_s = link.gt_s;
        device->pcie_width = link.width;
        device->up_gb_s = pcie_gb_s(link.gt_s, link.width);
    }
}

std::vector<PortOfFunction> sysfs_interfaces(const std::string& root) {
    std::vector<PortOfFunction> ports;
    const std::string folder = root + "/sys/class/net";
    for (const std::string& name : names_in(folder)) {
        const std::string bus_id = last_bus_id(real_path(folder + "/" + name + "/device"));
        if (bus_id.empty()) {
            continue;  // loopback, bridges, tunnels
        }
        NetPort port;
        port.name = name;
        // Mbit/s; -1 or an error while the link is down.
        port.gbit_s = parse_number(read_file(folder + "/" + name + "/speed"), 0, 10000000) / 1000.0;
        ports.emplace_back(bus_id, std::move(port));
    }
    return ports;
}

std::vector<PortOfFunction> sysfs_rdma_ports(const std::string& root) {
    std::vector<PortOfFunction> ports;
    const std::string folder = root + "/sys/class/infiniband";
    for (const std::string& name : names_in(folder)) {
        const std::string bus_id = last_bus_id(real_path(folder + "/" + name + "/device"));
        for (const std::string& number : names_in(folder + "/" + name + "/ports")) {
            const std::string place = folder + "/" + name + "/ports/" + number;
            NetPort port;
            port.name = name;
            port.port = parse_number(number, 1);
            port.rdma = true;
            // "200 Gb/sec (4X HDR)"; "4: ACTIVE".
            const std::string rate = read_file(place + "/rate");
            const bool down = read_file(place + "/state").compare(0, 2, "4:") != 0;
            port.gbit_s =
                down ? 0 : parse_real(std::string_view(rate).substr(0, rate.find(' ')), 0);
            ports.emplace_back(bus_id, std::move(port));
        }
    }
    return ports;
}

}  // namespace slimwire::sources
