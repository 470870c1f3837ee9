// hwloc, libibverbs and NVML for tests of discovery, in one library: they tell what the file named
// by TEST_FAKE_MACHINE says, one item a line, and fail where it says nothing:
//   xml FILE                          hwloc's export
//   rdma NAME PORT STATE WIDTH SPEED  as libibverbs numbers them
//   gpu BUS_ID MODEL CAPABILITY GENERATION WIDTH FABRIC
//   link GPU switch|cpu|BUS_ID        one active NVLink
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct Rdma {
    std::string name;
    int port = 0, state = 0, width = 0, speed = 0;
};
struct Gpu {
    std::string bus_id, model, fabric;
    int capability = 0;
    unsigned generation = 0, width = 0;
    std::vector<std::string> links;
};
struct Machine {
    bool told = false;
    std::string xml;
    std::vector<Rdma> rdma;
    std::vector<Gpu> gpus;
};

Machine& machine() {
    static Machine kept;
    kept = Machine{};
    const char* const path = std::getenv("TEST_FAKE_MACHINE");
    std::ifstream file(path == nullptr ? "" : path);
    for (std::string line; std::getline(file, line);) {
        kept.told = true;
        std::istringstream words(line);
        std::string kind;
        words >> kind;
        if (kind == "xml") {
            std::string name;
            words >> name;
            std::ifstream xml(name);
            kept.xml.assign(std::istreambuf_iterator<char>(xml), {});
        } else if (kind == "rdma") {
            Rdma& rdma = kept.rdma.emplace_back();
            words >> rdma.name >> rdma.port >> rdma.state >> rdma.width >> rdma.speed;
        } else if (kind == "gpu") {
            Gpu& gpu = kept.gpus.emplace_back();
            words >> gpu.bus_id >> gpu.model >> gpu.capability >> gpu.generation >> gpu.width >>
                gpu.fabric;
        } else if (kind == "link") {
            size_t gpu = 0;
            std::string to;
            words >> gpu >> to;
            kept.gpus.at(gpu).links.push_back(to);
        }
    }
    return kept;
}

// nvmlPciInfo_t and nvmlGpuFabricInfo_t, as NVML 12 has them.
struct Pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
};
struct Fabric {
    unsigned char uuid[16];
    int status;
    unsigned clique;
    unsigned char state;
};

Machine started;

Gpu* gpu_of(void* handle) {
    return static_cast<Gpu*>(handle);
}
void name_bus(const std::string& bus_id, Pci* pci) {
    std::memset(pci, 0, sizeof *pci);
    // NVML writes eight digits of domain.
    std::snprintf(pci->bus_id, sizeof pci->bus_id, "0000%s", bus_id.c_str());
}

}  // namespace

#define FAKE extern "C" __attribute__((visibility("default")))

FAKE int hwloc_topology_init(void** topology) {
    *topology = new int(7);
    return 0;
}
FAKE int hwloc_topology_set_components(void*, unsigned long, const char*) {
    return 0;
}
FAKE int hwloc_topology_set_io_types_filter(void*, int filter) {
    return filter == 3 ? 0 : -1;
}
FAKE int hwloc_topology_load(void*) {
    return machine().xml.empty() ? -1 : 0;
}
FAKE int hwloc_topology_export_xmlbuffer(void*, char** buffer, int* bytes, unsigned long) {
    const std::string xml = machine().xml;
    *buffer = strdup(xml.c_str());
    *bytes = static_cast<int>(xml.size()) + 1;
    return 0;
}
FAKE void hwloc_free_xmlbuffer(void*, char* buffer) {
    std::free(buffer);
}
FAKE void hwloc_topology_destroy(void* topology) {
    delete static_cast<int*>(topology);
}

FAKE void** ibv_get_device_list(int* count) {
    Machine& now = machine();
    if (!now.told) {
        return nullptr;
    }
    started = now;
    std::vector<Rdma*> devices;
    for (Rdma& rdma : started.rdma) {
        if (rdma.port == 1) {
            devices.push_back(&rdma);
        }
    }
    void** const list = new void*[devices.size() + 1]();
    for (size_t i = 0; i < devices.size(); ++i) {
        list[i] = devices[i];
    }
    *count = static_cast<int>(devices.size());
    return list;
}
FAKE void ibv_free_device_list(void** list) {
    delete[] list;
}
FAKE const char* ibv_get_device_name(void* device) {
    return static_cast<Rdma*>(device)->name.c_str();
}
FAKE void* ibv_open_device(void* device) {
    return device;
}
FAKE int ibv_close_device(void*) {
    return 0;
}
FAKE int ibv_query_port(void* context, uint8_t port, void* attributes) {
    for (const Rdma& rdma : started.rdma) {
        if (rdma.name == static_cast<Rdma*>(context)->name && rdma.port == port) {
            auto* const bytes = static_cast<unsigned char*>(attributes);
            std::memcpy(bytes, &rdma.state, sizeof rdma.state);
            // ibv_port_attr: 8 words, 3 half words, 5 bytes, then these.
            bytes[43] = static_cast<unsigned char>(rdma.width);
            bytes[44] = static_cast<unsigned char>(rdma.speed);
            return 0;
        }
    }
    return 22;
}

FAKE int nvmlInit_v2() {
    started = machine();
    return started.gpus.empty() ? 9 : 0;  // NVML_ERROR_DRIVER_NOT_LOADED
}
FAKE int nvmlShutdown() {
    return 0;
}
FAKE int nvmlDeviceGetCount_v2(unsigned* count) {
    *count = static_cast<unsigned>(started.gpus.size());
    return 0;
}
FAKE int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
    *handle = &started.gpus.at(index);
    return 0;
}
FAKE int nvmlDeviceGetPciInfo_v3(void* handle, Pci* pci) {
    name_bus(gpu_of(handle)->bus_id, pci);
    return 0;
}
FAKE int nvmlDeviceGetName(void* handle, char* name, unsigned length) {
    std::snprintf(name, length, "%s", gpu_of(handle)->model.c_str());
    return 0;
}
FAKE int nvmlDeviceGetCudaComputeCapability(void* handle, int* major, int* minor) {
    *major = gpu_of(handle)->capability / 10;
    *minor = gpu_of(handle)->capability % 10;
    return 0;
}
FAKE int nvmlDeviceGetMaxPcieLinkGeneration(void* handle, unsigned* generation) {
    *generation = gpu_of(handle)->generation;
    return 0;
}
FAKE int nvmlDeviceGetMaxPcieLinkWidth(void* handle, unsigned* width) {
    *width = gpu_of(handle)->width;
    return 0;
}
FAKE int nvmlDeviceGetNvLinkState(void* handle, unsigned link, unsigned* active) {
    *active = link < gpu_of(handle)->links.size();
    return link < 18 ? 0 : 2;
}
FAKE int nvmlDeviceGetNvLinkRemoteDeviceType(void* handle, unsigned link, int* type) {
    const std::string& to = gpu_of(handle)->links.at(link);
    *type = to == "switch" ? 2 : to == "cpu" ? 1 : 0;
    return 0;
}
FAKE int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* handle, unsigned link, Pci* pci) {
    const std::string& to = gpu_of(handle)->links.at(link);
    if (to == "switch") {
        return 3;  // as seen of switches
    }
    name_bus(to, pci);
    return 0;
}
FAKE int nvmlDeviceGetGpuFabricInfo(void* handle, Fabric* fabric) {
    std::memset(fabric, 0, sizeof *fabric);
    const std::string& name = gpu_of(handle)->fabric;
    if (name.empty() || name == "-") {
        return 3;
    }
    std::memcpy(fabric->uuid, name.data(), name.size() < 16 ? name.size() : 16);
    fabric->clique = 4;
    fabric->state = 3;
    return 0;
}
