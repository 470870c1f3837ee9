#include "topology/readers/discovery.h"

#include <initializer_list>
#include <set>
#include <utility>

#include "topology/readers/machine_xml.h"
#include "topology/readers/sources.h"

namespace slimwire {
namespace {

using sources::PortOfFunction;

// Processors and PCI: hwloc, else sysfs.
Machine read_tree(const DiscoverySources& from, std::vector<std::string>* log) {
    Result<std::string> xml = sources::hwloc_xml(from.hwloc);
    Status status = xml.status();
    if (xml.ok()) {
        Result<Machine> machine = read_machine_xml(xml.value());
        if (machine.ok()) {
            return std::move(machine).value();
        }
        status = Status(machine.status().code(), "its XML: " + machine.status().message());
    }
    log->push_back("hwloc: " + status.message() + "; devices are read from " + from.root + "/sys");
    Machine machine;
    machine.hosts.emplace_back();
    Result<std::vector<Device>> processors = sources::sysfs_processors(from.root);
    if (processors.ok()) {
        machine.devices = std::move(processors).value();
    } else {
        log->push_back("processors: " + processors.status().message() + "; one is assumed");
        machine.devices.emplace_back().kind = DeviceKind::kCpu;
        machine.devices.front().number = 0;
    }
    Result<std::vector<PciFunction>> functions = sources::sysfs_functions(from.root);
    if (functions.ok()) {
        add_functions(std::move(functions).value(), &machine);
    } else {
        log->push_back("PCI: " + functions.status().message() + "; no devices are known of it");
    }
    return machine;
}

// What hwloc said of interfaces is replaced: it knows no speeds.
void read_ports(const DiscoverySources& from, Machine* machine, std::vector<std::string>* log) {
    std::vector<PortOfFunction> rdma;
    if (Result<std::vector<PortOfFunction>> told = sources::verbs_ports(from.verbs, from.root);
        told.ok()) {
        rdma = std::move(told).value();
    } else {
        log->push_back("RDMA: " + told.status().message() + "; ports are read from " + from.root +
                       "/sys/class/infiniband");
        rdma = sources::sysfs_rdma_ports(from.root);
    }
    const auto interfaces = sources::sysfs_interfaces(from.root);
    std::set<int> replaced;
    for (const std::vector<PortOfFunction>* ports :
         std::initializer_list<const std::vector<PortOfFunction>*>{&rdma, &interfaces}) {
        for (const auto& [bus_id, port] : *ports) {
            const int nic = machine->find(DeviceKind::kNic, bus_id);
            if (nic < 0) {
                continue;
            }
            std::vector<NetPort>& known = machine->devices[static_cast<size_t>(nic)].ports;
            if (replaced.insert(nic).second) {
                known.clear();
            }
            // An RDMA device's own interfaces are the same wire.
            if (port.rdma || known.empty() || !known.front().rdma) {
                known.push_back(port);
            }
        }
    }
}

}  // namespace

Discovery discover_machine(const DiscoverySources& from) {
    Discovery found;
    found.machine = read_tree(from, &found.log);
    Machine& machine = found.machine;
    machine.source = "this machine";
    for (Device& device : machine.devices) {
        if (device.up_assumed) {  // by hwloc's reader
            device.up_gb_s = 0;
            device.up_assumed = false;
        }
        if (!device.bus_id.empty()) {
            sources::read_sysfs_pcie(from.root, &device);
        }
        if (device.kind == DeviceKind::kGpu) {
            device.number = -1;  // hwloc's reader counted them; NVML knows better
        }
    }
    read_ports(from, &machine, &found.log);
    const Status status = sources::read_nvml(from.nvml, &machine);
    machine.gpu_links_told = status.ok();
    if (!status.ok()) {
        found.log.push_back("NVML: " + status.message() +
                            "; NVLinks of GPUs and their models are not known");
    }
    machine.notes.clear();
    finish_machine(&machine);
    return found;
}

}  // namespace slimwire
