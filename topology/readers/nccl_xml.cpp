// NCCL's topology XML, as NCCL_TOPO_DUMP_FILE writes it, and RCCL's version 2 (<xgmi>, gcn=...);
// dumps of multi-node NVLink domains (host_hash), cards that show as several GPUs (several <gpu> in
// one <pci>), and files for NCCL_TOPO_FILE that have no <gpu> and <nic>, classes only.
#include <algorithm>
#include <set>
#include <utility>

#include "topology/machine/machine.h"
#include "topology/machine/pci_tree.h"
#include "topology/readers/attribute_text.h"
#include "topology/readers/machine_xml.h"

namespace slimwire {
namespace {

constexpr double kLargestMbitS = 1e7;  // above it, a file counts in kbit/s (seen of Slingshot)

class NcclReader {
  public:
    Result<Machine> read(const XmlElement& system) {
        const std::string_view version = system.get("version");
        machine_.source = "NCCL topology" + (version.empty() ? std::string() : ", version ") +
                          std::string(version);
        if (version != "1" && version != "2") {
            note("version '" + std::string(version) + "' of <system>; read like versions 1 and 2");
        }
        for (const XmlElement& child : system.children) {
            if (child.name == "cpu") {
                read_cpu(child);
            } else {
                misplaced(child, system);
            }
        }
        SLIMWIRE_TRY(wrong_);
        for (const Wanted& wanted : wanted_) {
            connect(wanted);
        }
        if (machine_.hosts.empty()) {
            machine_.hosts.emplace_back();
        }
        finish_machine(&machine_);
        return std::move(machine_);
    }

  private:
    struct Wanted {  // a link of a GPU, resolved when all devices are known
        int from;
        const XmlElement* element;
        std::string target;
        LinkKind kind;
    };

    void note(std::string text) {
        if (noted_.insert(text).second) {
            machine_.notes.push_back(std::move(text));
        }
    }
    // Of no use to anybody where it stands; only the first such is told.
    void refuse(const XmlElement& element, const std::string& what) {
        if (wrong_.ok()) {
            wrong_ = {Code::kInvalidArgument, position_text(element.at) + what};
        }
    }
    void misplaced(const XmlElement& element, const XmlElement& parent) {
        if (element.name == "pci" || element.name == "nic" || element.name == "gpu") {
            refuse(element, "a <" + element.name + "> in <" + parent.name +
                                ">; accepted: what NCCL_TOPO_DUMP_FILE writes");
        } else {
            unknown(element, parent);
        }
    }
    void unknown(const XmlElement& element, const XmlElement& parent) {
        if (noted_.insert("<" + element.name + ">").second) {
            note(position_text(element.at) + "<" + element.name + "> in <" + parent.name +
                 "> is not known and passed over");
        }
    }
    [[nodiscard]] Device& device(int index) { return machine_.devices[static_cast<size_t>(index)]; }
    int add(Device added) {
        if (added.parent >= 0) {
            added.host = device(added.parent).host;
        }
        machine_.devices.push_back(std::move(added));
        return static_cast<int>(machine_.devices.size()) - 1;
    }
    int host_of(std::string_view name) {
        const auto found = std::find(machine_.hosts.begin(), machine_.hosts.end(), name);
        if (found == machine_.hosts.end()) {
            machine_.hosts.emplace_back(name);
            return static_cast<int>(machine_.hosts.size()) - 1;
        }
        return static_cast<int>(found - machine_.hosts.begin());
    }
    void read_cpu(const XmlElement& element) {
        Device cpu;
        cpu.kind = DeviceKind::kCpu;
        cpu.host = host_of(element.get("host_hash"));
        cpu.number = parse_number(element.get("numaid"), -1);
        cpu.arch = element.get("arch");
        cpu.vendor = element.get("vendor");
        cpu.family = parse_number(element.get("familyid"), 0);
        cpu.model = parse_number(element.get("modelid"), 0);
        const int index = add(std::move(cpu));
        for (const XmlElement& child : element.children) {
            if (child.name == "pci") {
                read_pci(child, index);
            } else if (child.name == "nic") {
                read_loose_nic(child, index);
            } else {
                misplaced(child, element);
            }
        }
    }

    // NCCL puts socket interfaces without a PCI device under a processor.
    void read_loose_nic(const XmlElement& element, int parent) {
        Device found;
        found.kind = DeviceKind::kNic;
        found.parent = parent;
        found.up_gb_s = kLocalGbS;
        read_nic(element, &found);
        // The same interface may stand under each processor.
        for (const NetPort& port : found.ports) {
            if (!loose_ports_.insert({device(parent).host, port.name}).second) {
                note("interface " + port.name + " stands under several processors; the first is " +
                     "taken");
                return;
            }
        }
        add(std::move(found));
    }

    void read_pci(const XmlElement& element, int parent) {
        Device found;
        found.parent = parent;
        found.bus_id = short_bus_id(element.get("busid"));
        found.vendor = element.get("vendor");
        found.pcie_gt_s = parse_pcie_speed(element.get("link_speed"));
        // Virtual machines say 63 or 255 where they do not know it.
        found.pcie_width = parse_number(element.get("link_width"), 0, kWidestPcie);
        const auto has = [&element](const char* name) {
            return std::any_of(element.children.begin(), element.children.end(),
                               [name](const XmlElement& child) { return child.name == name; });
        };
        if (found.bus_id.empty()) {
            note(position_text(element.at) + "a <pci> without busid");
        }
        const uint64_t pci_class = parse_hex(element.get("class")).value_or(0);
        const uint64_t group = pci_class >> 16;
        PciFunction function;
        function.pci_class = static_cast<uint32_t>(pci_class >> 8);
        function.vendor = static_cast<uint32_t>(parse_hex(element.get("vendor")).value_or(0x10de));
        // What stands in it tells more than its class: files are written by hand, too.
        if (has("gpu")) {
            found.kind = DeviceKind::kGpu;
        } else if (has("nic")) {
            found.kind = DeviceKind::kNic;
        } else if (has("pci")) {
            found.kind = DeviceKind::kSwitch;
        } else if (is_gpu(function)) {
            found.kind = DeviceKind::kGpu;
            machine_.gpu_links_told = false;  // they stand in <gpu>
        } else if (group == 0x02) {
            found.kind = DeviceKind::kNic;
        } else if (pci_class >> 8 == 0x0604) {
            found.kind = DeviceKind::kSwitch;
        } else {
            found.kind = DeviceKind::kOther;
            machine_.gpu_links_told = machine_.gpu_links_told && pci_class != 0;
        }
        if (found.kind == DeviceKind::kGpu && !found.bus_id.empty() &&
            !gpus_at_.insert({parent < 0 ? 0 : device(parent).host, found.bus_id}).second) {
            refuse(element, "a second <pci> of a GPU with busid '" + found.bus_id +
                                "'; accepted: one on a machine, machines told apart by " +
                                "host_hash of <cpu>");
        }
        const bool device_inside = has("gpu") || has("nic");
        int index = -1;
        if (!device_inside || has("pci")) {
            // A switch, or a device that files give no content.
            if (device_inside) {
                found.kind = DeviceKind::kSwitch;
            }
            index = add(found);
        }
        for (const XmlElement& child : element.children) {
            if (child.name == "pci") {
                read_pci(child, index);
            } else if (child.name == "gpu") {
                Device gpu = found;
                gpu.kind = DeviceKind::kGpu;
                read_gpu(child, std::move(gpu));
            } else if (child.name == "nic") {
                Device nic = found;
                nic.kind = DeviceKind::kNic;
                read_nic(child, &nic);
                add(std::move(nic));
            } else if (child.name == "pcilink") {
                if (index >= 0) {
                    wanted_.push_back(
                        {index, &child, short_bus_id(child.get("target")), LinkKind::kPciPeer});
                }
            } else {
                unknown(child, element);
            }
        }
    }

    void read_gpu(const XmlElement& element, Device gpu) {
        gpu.number = parse_number(element.get("dev"), -1);
        gpu.rank = parse_number(element.get("rank"), -1);
        gpu.compute_capability = parse_number(element.get("sm"), 0, 10000);
        std::string_view gcn = element.get("gcn");  // gfx90a, gfx942:sramecc+:xnack-
        gcn = gcn.substr(0, gcn.find(':'));
        if (gcn.substr(0, 3) == "gfx") {
            gcn.remove_prefix(3);
        }
        gpu.gcn = gcn == "90a" ? 910 : parse_number(gcn, 0, 100000);
        const int index = add(std::move(gpu));
        if (element.get("sm").empty()) {
            refuse(element, "a <gpu> without sm; accepted: what NCCL_TOPO_DUMP_FILE writes");
        }
        // NCCL asks the machine for the links of such a <gpu>.
        if (element.get("rank").empty() && element.children.empty()) {
            machine_.gpu_links_told = false;
        }
        for (const XmlElement& child : element.children) {
            if (child.name == "nvlink" || child.name == "xgmi" || child.name == "c2c") {
                wanted_.push_back({index, &child, short_bus_id(child.get("target")),
                                   child.name == "nvlink" ? LinkKind::kNvLink
                                   : child.name == "xgmi" ? LinkKind::kXgmi
                                                          : LinkKind::kC2c});
            } else {
                unknown(child, element);
            }
        }
    }

    void read_nic(const XmlElement& element, Device* nic) {
        for (const XmlElement& child : element.children) {
            if (child.name != "net") {
                unknown(child, element);
                continue;
            }
            NetPort port;
            port.name = child.get("name");
            double mbit_s = parse_real(child.get("speed"), 0);
            if (mbit_s > kLargestMbitS) {
                note("speed " + std::string(child.get("speed")) + " of " + port.name +
                     " cannot be Mbit/s; taken as kbit/s");
                mbit_s /= 1000;
            }
            port.gbit_s = mbit_s / 1000;
            port.port = parse_number(child.get("port"), 1);
            port.rdma = child.get("gdr") == "1" || parse_hex(child.get("guid")).value_or(0) != 0;
            nic->ports.push_back(std::move(port));
        }
    }

    void connect(const Wanted& wanted) {
        const XmlElement& element = *wanted.element;
        const std::string where = position_text(element.at) + "<" + element.name + "> ";
        const Device from = device(wanted.from);
        const int count = parse_number(element.get("count"), 1, 1024);
        if (count == 0) {
            return;
        }
        DirectLink link{wanted.from, -1, wanted.kind, count, 0};
        const uint64_t target_class = parse_hex(element.get("tclass")).value_or(0);
        switch (wanted.kind) {
            case LinkKind::kC2c:
                link.b = machine_.cpu_of(wanted.from);
                link.gb_s = parse_real(element.get("bw"), 0) / 1000 * count;
                if (link.gb_s <= 0) {
                    note(where + "without bandwidth, passed over");
                    return;
                }
                break;
            case LinkKind::kPciPeer:
                link.b = machine_.find(DeviceKind::kSwitch, wanted.target, from.host);
                link.gb_s = kLocalGbS;
                break;
            case LinkKind::kNvLink:
            case LinkKind::kXgmi:
                link.gb_s =
                    count * (wanted.kind == LinkKind::kXgmi ? xgmi_gb_s(from.gcn)
                                                            : nvlink_gb_s(from.compute_capability));
                if (target_class >> 8 == 0x0680) {
                    link.b = machine_.nv_switch();
                } else if (target_class >> 8 == 0x0604 || target_class >> 16 == 0x0b) {
                    link.b = machine_.cpu_of(wanted.from);
                } else {
                    link.b = machine_.find(DeviceKind::kGpu, wanted.target, from.host);
                }
                break;
        }
        if (link.b == link.a || (wanted.kind != LinkKind::kC2c && wanted.target == from.bus_id)) {
            note(where + "of " + from.bus_id + " to itself, passed over");
            return;
        }
        if (link.b < 0) {
            // A GPU that the job did not use is no loss, nor is a way between switches.
            const bool lost = wanted.kind != LinkKind::kPciPeer && target_class == 0;
            machine_.gpu_links_told = machine_.gpu_links_told && !lost;
            note(where + "to '" + wanted.target + "', which is not in the file, passed over");
            return;
        }
        merge(link);
    }

    // Both ends tell of a link between GPUs; several lines of one GPU to NVSwitches add up.
    void merge(const DirectLink& link) {
        const auto known = std::find_if(
            machine_.links.begin(), machine_.links.end(), [&](const DirectLink& other) {
                return other.kind == link.kind && ((other.a == link.a && other.b == link.b) ||
                                                   (other.a == link.b && other.b == link.a));
            });
        if (known == machine_.links.end()) {
            machine_.links.push_back(link);
        } else if (device(link.b).kind == DeviceKind::kNvSwitch) {
            known->count += link.count;
            known->gb_s += link.gb_s;
        } else {
            *known = known->gb_s >= link.gb_s ? *known : link;
        }
    }

    Machine machine_;
    std::vector<Wanted> wanted_;
    std::set<std::string> noted_;
    std::set<std::pair<int, std::string>> loose_ports_;
    std::set<std::pair<int, std::string>> gpus_at_;  // host and bus id
    Status wrong_;
};

}  // namespace

Result<Machine> read_nccl_xml(const XmlElement& system) {
    return NcclReader().read(system);
}

}  // namespace slimwire
