// hwloc's XML, of version 2: NUMA nodes, PCI functions with their bridges, network
// interfaces. GPUs are known by PCI class, so the file of a machine without a GPU's tools will do.
#include <algorithm>
#include <set>

#include "topology/machine/pci_tree.h"
#include "topology/readers/attribute_text.h"
#include "topology/readers/machine_xml.h"

namespace slimwire {
namespace {

// hwloc tells the rate of a link's signals; what transfers reach is 12 of 15.75 GB/s
// (machine.h).
constexpr double kOfSignalRate = 12 / 15.753846;

std::string_view info(const XmlElement& object, std::string_view name) {
    for (const XmlElement& child : object.children) {
        if (child.name == "info" && child.get("name") == name) {
            return child.get("value");
        }
    }
    return {};
}

// The only bit of "0x00000002" or "0x1,,0x0"; -1: none or several.
int single_bit(std::string_view set) {
    int found = -1;
    int base = 0;
    // The last word holds the lowest bits.
    while (!set.empty() && base < (1 << 20)) {
        const size_t comma = set.rfind(',');
        const std::string_view word = comma == std::string_view::npos ? set : set.substr(comma + 1);
        const uint64_t bits = parse_hex(word).value_or(0);
        for (int i = 0; i < 32; ++i) {
            if ((bits >> i & 1) != 0) {
                if (found >= 0) {
                    return -1;
                }
                found = base + i;
            }
        }
        base += 32;
        set = comma == std::string_view::npos ? std::string_view() : set.substr(0, comma);
    }
    return found;
}

struct Package {
    std::string vendor;
    int family = 0, model = 0;
};

class HwlocReader {
  public:
    Result<Machine> read(const XmlElement& topology) {
        const std::string_view version = topology.get("version");
        if (version.empty()) {
            return Status(Code::kInvalidArgument,
                          position_text(topology.at) +
                              "<topology> has no version, as hwloc 1 writes it; accepted: what "
                              "lstopo --of xml of hwloc 2 writes");
        }
        machine_.source = "hwloc " + std::string(version);
        machine_.hosts.emplace_back();
        int objects = 0;
        for (const XmlElement& child : topology.children) {
            if (child.name == "object") {
                ++objects;
                arch_ = info(child, "Architecture");
                find_nodes(child, {});
            }
        }
        if (objects == 0) {
            return Status(Code::kInvalidArgument,
                          position_text(topology.at) +
                              "<topology> has no <object>; accepted: what lstopo --of xml writes");
        }
        for (const XmlElement& child : topology.children) {
            if (child.name == "object") {
                std::vector<PciBridge> bridges;
                find_functions(child, -1, &bridges);
            }
        }
        if (unknown_node_ > 0 && machine_.of_kind(DeviceKind::kCpu).size() > 1) {
            machine_.notes.push_back("the NUMA node of " + std::to_string(unknown_node_) +
                                     " PCI functions is not told; taken as the first");
        }
        add_functions(std::move(functions_), &machine_);
        machine_.gpu_links_told = false;
        finish_machine(&machine_);
        return std::move(machine_);
    }

  private:
    // All NUMA nodes become processors, with what their package says.
    void find_nodes(const XmlElement& object, Package package) {
        const std::string_view type = object.get("type");
        if (type == "Package" || type == "Machine") {
            package.vendor =
                info(object, "CPUVendor").empty() ? package.vendor : info(object, "CPUVendor");
            package.family = parse_number(info(object, "CPUFamilyNumber"), package.family);
            package.model = parse_number(info(object, "CPUModelNumber"), package.model);
        }
        if (type == "NUMANode") {
            const int number = parse_number(object.get("os_index"), -1);
            const std::string_view cpuset = object.get("cpuset");
            const bool memory_only =
                !cpuset.empty() && cpuset.find_first_not_of("0x,") == std::string_view::npos;
            if (!memory_only && nodes_.insert(number).second) {
                Device cpu;
                cpu.kind = DeviceKind::kCpu;
                cpu.number = number;
                cpu.arch = arch_;
                cpu.vendor = package.vendor;
                cpu.family = package.family;
                cpu.model = package.model;
                machine_.devices.push_back(std::move(cpu));
            }
        }
        for (const XmlElement& child : object.children) {
            if (child.name == "object") {
                find_nodes(child, package);
            }
        }
    }

    // `node`: what the objects around say; `bridges`: those around, the nearest last.
    void find_functions(const XmlElement& object, int node, std::vector<PciBridge>* bridges) {
        const std::string_view type = object.get("type");
        if (const int single = single_bit(object.get("nodeset")); single >= 0) {
            node = single;
        } else {
            int nodes = 0;
            int last = node;
            for (const XmlElement& child : object.children) {
                if (child.get("type") == "NUMANode") {
                    ++nodes;
                    last = parse_number(child.get("os_index"), node);
                }
            }
            node = nodes == 1 ? last : node;
        }
        const bool pci_bridge = type == "Bridge" && object.get("bridge_type") == "1-1";
        if (type == "PCIDev") {
            read_function(object, node, *bridges);
            return;
        }
        if (type == "OSDev" && bridges->empty()) {
            return;  // an interface without a PCI device
        }
        if (pci_bridge) {
            bridges->push_back({short_bus_id(object.get("pci_busid")), 0, 0,
                                parse_real(object.get("pci_link_speed"), 0) * kOfSignalRate});
        }
        for (const XmlElement& child : object.children) {
            if (child.name == "object") {
                find_functions(child, node, bridges);
            }
        }
        if (pci_bridge) {
            bridges->pop_back();
        }
    }

    void read_function(const XmlElement& object, int node, const std::vector<PciBridge>& bridges) {
        PciFunction function;
        function.bus_id = short_bus_id(object.get("pci_busid"));
        // "0302 [10de:20b0] [10de:134f] a1"
        const std::string_view type = object.get("pci_type");
        function.pci_class = static_cast<uint32_t>(parse_hex(type.substr(0, 4)).value_or(0));
        const size_t bracket = type.find('[');
        if (bracket != std::string_view::npos) {
            function.vendor =
                static_cast<uint32_t>(parse_hex(type.substr(bracket + 1, 4)).value_or(0));
        }
        function.numa = node;
        function.name = info(object, "PCIDevice");
        function.up_gb_s = parse_real(object.get("pci_link_speed"), 0) * kOfSignalRate;
        function.bridges.assign(bridges.rbegin(), bridges.rend());
        for (const XmlElement& child : object.children) {
            if (child.get("type") == "OSDev") {
                read_interface(child, &function);
            }
        }
        if (is_gpu(function) || is_nic(function)) {
            unknown_node_ += node < 0;
            functions_.push_back(std::move(function));
        }
    }

    // An InfiniBand card has a network interface and an RDMA device: one port of the latter's name.
    static void read_interface(const XmlElement& object, PciFunction* function) {
        const std::string_view kind = object.get("osdev_type");
        const bool rdma = kind == "3";
        if (kind != "2" && !rdma) {
            return;
        }
        NetPort port;
        port.name = object.get("name");
        port.rdma = rdma;
        if (rdma) {
            std::erase_if(function->ports, [](const NetPort& other) { return !other.rdma; });
        } else if (std::any_of(function->ports.begin(), function->ports.end(),
                               [](const NetPort& other) { return other.rdma; })) {
            return;
        }
        function->ports.push_back(std::move(port));
    }

    Machine machine_;
    std::string arch_;
    std::set<int> nodes_;
    std::vector<PciFunction> functions_;
    int unknown_node_ = 0;
};

}  // namespace

Result<Machine> read_hwloc_xml(const XmlElement& topology) {
    return HwlocReader().read(topology);
}

}  // namespace slimwire
