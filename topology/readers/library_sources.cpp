// hwloc, libibverbs and NVML by their stable binary interfaces; no header of theirs is needed.
#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <string>

#include "topology/machine/machine.h"
#include "topology/readers/attribute_text.h"
#include "topology/readers/sources.h"

namespace slimwire::sources {
namespace {

// A library opened at run time that may be missing.
class DynamicLibrary {
  public:
    explicit DynamicLibrary(const std::string& name)
        : handle_(name.empty() ? nullptr : dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL)) {}
    ~DynamicLibrary() {
        if (handle_ != nullptr) {
            dlclose(handle_);
        }
    }
    DynamicLibrary(const DynamicLibrary&) = delete;
    DynamicLibrary& operator=(const DynamicLibrary&) = delete;

    [[nodiscard]] bool opened() const noexcept { return handle_ != nullptr; }
    // Sets `*function`; false when the library has no such symbol.
    template <class Function>
    bool find(const char* symbol, Function** function) const noexcept {
        *function =
            handle_ == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(handle_, symbol));
        return *function != nullptr;
    }

  private:
    void* handle_;
};

Status missing(const std::string& library) {
    return {Code::kNotFound, library.empty() ? "not asked" : library + " is missing"};
}

Status lacks(const std::string& library, const char* symbol) {
    return {Code::kNotFound, library + " has no " + symbol};
}

// --- libibverbs

// The head of ibv_port_attr, which has only grown at its end.
struct VerbsPort {
    int state;
    int max_mtu, active_mtu;
    int gid_tbl_len;
    uint32_t port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
    uint16_t pkey_tbl_len, lid, sm_lid;
    uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply;
    uint8_t active_width, active_speed, phys_state, link_layer;
    uint8_t rest[64];
};

constexpr int kPortActive = 4;

// Of one lane, in Gbit/s; names as rate classes have them, SDR to XDR.
double lane_gbit_s(uint8_t speed) {
    switch (speed) {
        case 1:
            return 2.5;
        case 2:
            return 5;
        case 4:
        case 8:
            return 10;
        case 16:
            return 14;
        case 32:
            return 25;
        case 64:
            return 50;
        case 128:
            return 100;
        default:
            return 0;
    }
}

int lanes(uint8_t width) {
    return width == 1 ? 1 : width == 2 ? 4 : width == 4 ? 8 : width == 8 ? 12 : width == 16 ? 2 : 0;
}

// --- NVML

struct NvmlPci {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

struct NvmlFabric {
    unsigned char cluster_uuid[16];
    int status;
    unsigned clique;
    unsigned char state;
    unsigned char rest[63];
};

constexpr unsigned kMaxNvLinks = 36;
constexpr int kNvmlSuccess = 0;
constexpr int kNvLinkToGpu = 0;
constexpr int kNvLinkToProcessor = 1;
constexpr int kNvLinkToSwitch = 2;
constexpr unsigned char kFabricComplete = 3;

struct Nvml {
    using Handle = void*;
    int (*init)() = nullptr;
    int (*shutdown)() = nullptr;
    int (*count)(unsigned*) = nullptr;
    int (*by_index)(unsigned, Handle*) = nullptr;
    int (*pci)(Handle, NvmlPci*) = nullptr;
    // These may be missing in old drivers.
    int (*name)(Handle, char*, unsigned) = nullptr;
    int (*capability)(Handle, int*, int*) = nullptr;
    int (*generation)(Handle, unsigned*) = nullptr;
    int (*width)(Handle, unsigned*) = nullptr;
    int (*link_state)(Handle, unsigned, unsigned*) = nullptr;
    int (*link_type)(Handle, unsigned, int*) = nullptr;
    int (*link_pci)(Handle, unsigned, NvmlPci*) = nullptr;
    int (*fabric)(Handle, NvmlFabric*) = nullptr;
};

std::string short_bus_id(const NvmlPci& pci) {
    return slimwire::short_bus_id(
        std::string_view(pci.bus_id, strnlen(pci.bus_id, sizeof pci.bus_id)));
}

// One more link of a GPU; `both_tell`: the other end will tell of it, too.
void add_link(int from, int to, double gb_s, Machine* machine, bool both_tell) {
    if (to < 0 || to == from || (both_tell && to < from)) {
        return;
    }
    for (DirectLink& link : machine->links) {
        if (link.a == from && link.b == to) {
            ++link.count;
            link.gb_s += gb_s;
            return;
        }
    }
    machine->links.push_back({from, to, LinkKind::kNvLink, 1, gb_s});
}

void read_links(const Nvml& nvml, Nvml::Handle handle, int gpu, Machine* machine) {
    const double gb_s = nvlink_gb_s(machine->devices[static_cast<size_t>(gpu)].compute_capability);
    for (unsigned i = 0; i < kMaxNvLinks && nvml.link_state != nullptr; ++i) {
        unsigned active = 0;
        if (nvml.link_state(handle, i, &active) != kNvmlSuccess || active == 0) {
            continue;
        }
        // The type first: the other end of an NVSwitch's link need not have a PCI address.
        int type = kNvLinkToGpu;
        if (nvml.link_type != nullptr && nvml.link_type(handle, i, &type) == kNvmlSuccess &&
            type == kNvLinkToSwitch) {
            add_link(gpu, machine->nv_switch(), gb_s, machine, false);
        } else if (type == kNvLinkToProcessor) {
            add_link(gpu, machine->cpu_of(gpu), gb_s, machine, false);
        } else if (NvmlPci peer{};
                   nvml.link_pci != nullptr && nvml.link_pci(handle, i, &peer) == kNvmlSuccess) {
            const int other = machine->find(DeviceKind::kGpu, short_bus_id(peer));
            // Without a type: what is no GPU of this machine is taken for an NVSwitch, as in NCCL.
            if (other >= 0) {
                add_link(gpu, other, gb_s, machine, true);
            } else if (nvml.link_type == nullptr) {
                add_link(gpu, machine->nv_switch(), gb_s, machine, false);
            }
        }
    }
}

void read_gpu(const Nvml& nvml, Nvml::Handle handle, Device* gpu) {
    std::array<char, 96> name{};
    if (nvml.name != nullptr && nvml.name(handle, name.data(), name.size() - 1) == kNvmlSuccess) {
        gpu->name = name.data();
    }
    int major = 0, minor = 0;
    if (nvml.capability != nullptr && nvml.capability(handle, &major, &minor) == kNvmlSuccess) {
        gpu->compute_capability = 10 * major + minor;
    }
    unsigned generation = 0, width = 0;
    if (nvml.generation != nullptr && nvml.width != nullptr &&
        nvml.generation(handle, &generation) == kNvmlSuccess &&
        nvml.width(handle, &width) == kNvmlSuccess && generation > 0 && width > 0) {
        gpu->pcie_gt_s = pcie_generation_gt_s(static_cast<int>(generation));
        gpu->pcie_width = static_cast<int>(width);
        gpu->up_gb_s = pcie_gb_s(gpu->pcie_gt_s, gpu->pcie_width);
    }
    NvmlFabric fabric{};
    if (nvml.fabric != nullptr && nvml.fabric(handle, &fabric) == kNvmlSuccess &&
        fabric.state == kFabricComplete && fabric.status == kNvmlSuccess) {
        constexpr char kDigits[] = "0123456789abcdef";
        bool any = false;
        std::string id;
        for (const unsigned char byte : fabric.cluster_uuid) {
            any = any || byte != 0;
            id += kDigits[byte >> 4];
            id += kDigits[byte & 15];
        }
        gpu->fabric = any ? id + "/" + std::to_string(fabric.clique) : std::string();
    }
}

}  // namespace

Result<std::string> hwloc_xml(const std::string& library) {
    const DynamicLibrary hwloc(library);
    if (!hwloc.opened()) {
        return missing(library);
    }
    int (*init)(void**) = nullptr;
    int (*set_components)(void*, unsigned long, const char*) = nullptr;
    int (*set_io_types_filter)(void*, int) = nullptr;
    int (*load)(void*) = nullptr;
    int (*export_xml)(void*, char**, int*, unsigned long) = nullptr;
    void (*free_xml)(void*, char*) = nullptr;
    void (*destroy)(void*) = nullptr;
    if (!hwloc.find("hwloc_topology_init", &init) ||
        !hwloc.find("hwloc_topology_set_io_types_filter", &set_io_types_filter) ||
        !hwloc.find("hwloc_topology_load", &load) ||
        !hwloc.find("hwloc_topology_export_xmlbuffer", &export_xml) ||
        !hwloc.find("hwloc_free_xmlbuffer", &free_xml) ||
        !hwloc.find("hwloc_topology_destroy", &destroy)) {
        return lacks(library, "functions of hwloc 2");
    }
    void* topology = nullptr;
    if (init(&topology) != 0) {
        return Status(Code::kSystemError, library + " did not start");
    }
    constexpr unsigned long kLeaveOut = 1;
    if (hwloc.find("hwloc_topology_set_components", &set_components)) {
        for (const char* component : {"cuda", "nvml", "opencl", "rsmi", "levelzero", "gl"}) {
            (void)set_components(topology, kLeaveOut, component);
        }
    }
    constexpr int kImportant = 3;
    char* buffer = nullptr;
    int bytes = 0;
    const bool read = set_io_types_filter(topology, kImportant) == 0 && load(topology) == 0 &&
                      export_xml(topology, &buffer, &bytes, 0) == 0 && buffer != nullptr;
    Result<std::string> xml = Status(Code::kSystemError, library + " could not read the machine");
    if (read) {
        // The length counts the zero byte at the end.
        xml = std::string(buffer, strnlen(buffer, bytes > 0 ? static_cast<size_t>(bytes) : 0));
        free_xml(topology, buffer);
    }
    destroy(topology);
    return xml;
}

Result<std::vector<PortOfFunction>> verbs_ports(const std::string& library,
                                                const std::string& root) {
    const DynamicLibrary verbs(library);
    if (!verbs.opened()) {
        return missing(library);
    }
    void** (*get_list)(int*) = nullptr;
    void (*free_list)(void**) = nullptr;
    const char* (*get_name)(void*) = nullptr;
    void* (*open_device)(void*) = nullptr;
    int (*close_device)(void*) = nullptr;
    int (*query_port)(void*, uint8_t, VerbsPort*) = nullptr;
    if (!verbs.find("ibv_get_device_list", &get_list) ||
        !verbs.find("ibv_free_device_list", &free_list) ||
        !verbs.find("ibv_get_device_name", &get_name) ||
        !verbs.find("ibv_open_device", &open_device) ||
        !verbs.find("ibv_close_device", &close_device) ||
        !verbs.find("ibv_query_port", &query_port)) {
        return lacks(library, "functions of libibverbs 1");
    }
    std::vector<PortOfFunction> ports;
    int count = 0;
    void** const list = get_list(&count);
    if (list == nullptr) {
        return Status(Code::kSystemError, library + " has no list of devices");
    }
    for (int i = 0; i < count; ++i) {
        const char* const name = get_name(list[i]);
        void* const context = open_device(list[i]);
        if (name == nullptr || context == nullptr) {
            continue;
        }
        char* const place =
            realpath((root + "/sys/class/infiniband/" + name + "/device").c_str(), nullptr);
        const std::string bus_id = last_bus_id(place == nullptr ? "" : place);
        std::free(place);
        // Ports count from 1; a number beyond the last one is an error.
        for (uint8_t number = 1; number <= 8; ++number) {
            VerbsPort attributes{};
            if (query_port(context, number, &attributes) != 0) {
                break;
            }
            NetPort port;
            port.name = name;
            port.port = number;
            port.rdma = true;
            port.gbit_s = attributes.state == kPortActive ? lane_gbit_s(attributes.active_speed) *
                                                                lanes(attributes.active_width)
                                                          : 0;
            ports.emplace_back(bus_id, std::move(port));
        }
        close_device(context);
    }
    free_list(list);
    return ports;
}

Status read_nvml(const std::string& library, Machine* machine) {
    const DynamicLibrary opened(library);
    if (!opened.opened()) {
        return missing(library);
    }
    Nvml nvml;
    if (!opened.find("nvmlInit_v2", &nvml.init) || !opened.find("nvmlShutdown", &nvml.shutdown) ||
        !opened.find("nvmlDeviceGetCount_v2", &nvml.count) ||
        !opened.find("nvmlDeviceGetHandleByIndex_v2", &nvml.by_index) ||
        !opened.find("nvmlDeviceGetPciInfo_v3", &nvml.pci)) {
        return lacks(library, "functions of NVML 9 or later");
    }
    (void)opened.find("nvmlDeviceGetName", &nvml.name);
    (void)opened.find("nvmlDeviceGetCudaComputeCapability", &nvml.capability);
    (void)opened.find("nvmlDeviceGetMaxPcieLinkGeneration", &nvml.generation);
    (void)opened.find("nvmlDeviceGetMaxPcieLinkWidth", &nvml.width);
    (void)opened.find("nvmlDeviceGetNvLinkState", &nvml.link_state);
    (void)opened.find("nvmlDeviceGetNvLinkRemoteDeviceType", &nvml.link_type);
    (void)opened.find("nvmlDeviceGetNvLinkRemotePciInfo_v2", &nvml.link_pci);
    (void)opened.find("nvmlDeviceGetGpuFabricInfo", &nvml.fabric);
    if (const int failed = nvml.init(); failed != kNvmlSuccess) {
        return {Code::kSystemError,
                library + " did not start: NVML error " + std::to_string(failed)};
    }
    unsigned count = 0;
    (void)nvml.count(&count);
    std::vector<std::pair<Nvml::Handle, int>> found;
    for (unsigned i = 0; i < count && i < 1024; ++i) {
        Nvml::Handle handle = nullptr;
        NvmlPci pci{};
        if (nvml.by_index(i, &handle) != kNvmlSuccess || nvml.pci(handle, &pci) != kNvmlSuccess) {
            continue;
        }
        const std::string bus_id = short_bus_id(pci);
        int gpu = machine->find(DeviceKind::kGpu, bus_id);
        if (gpu < 0) {
            // A container may show the GPU's driver and hide its place.
            PciFunction function;
            function.bus_id = bus_id;
            function.pci_class = 0x0302;
            function.vendor = 0x10de;
            add_functions({function}, machine);
            gpu = machine->find(DeviceKind::kGpu, bus_id);
        }
        Device& device = machine->devices[static_cast<size_t>(gpu)];
        device.number = static_cast<int>(i);
        read_gpu(nvml, handle, &device);
        found.emplace_back(handle, gpu);
    }
    for (const auto& [handle, gpu] : found) {
        read_links(nvml, handle, gpu, machine);
    }
    (void)nvml.shutdown();
    return {};
}

}  // namespace slimwire::sources
