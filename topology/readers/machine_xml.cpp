#include "topology/readers/machine_xml.h"

#include <string>

namespace slimwire {

Result<Machine> read_machine_xml(std::string_view text) {
    SLIMWIRE_TRY_ASSIGN(const XmlElement root, parse_xml(text));
    Result<Machine> machine =
        root.name == "system" ? read_nccl_xml(root)
        : root.name == "topology"
            ? read_hwloc_xml(root)
            : Result<Machine>(Status(Code::kInvalidArgument,
                                     position_text(root.at) + "the root element is <" + root.name +
                                         ">; accepted: <system> (NCCL), <topology> (hwloc)"));
    if (!machine.ok()) {
        return machine.status();
    }
    const size_t devices = machine.value().devices.size();
    const size_t endpoints = machine.value().gpus().size() + machine.value().nics().size();
    const size_t cpus = machine.value().of_kind(DeviceKind::kCpu).size();
    if (devices > kMaxDevices || endpoints > kMaxEndpoints || cpus > kMaxCpus) {
        return Status(Code::kInvalidArgument,
                      std::to_string(devices) + " devices, of these " + std::to_string(endpoints) +
                          " GPUs and NICs and " + std::to_string(cpus) +
                          " processors; accepted: " + std::to_string(kMaxDevices) + ", " +
                          std::to_string(kMaxEndpoints) + " and " + std::to_string(kMaxCpus));
    }
    return machine;
}

}  // namespace slimwire
