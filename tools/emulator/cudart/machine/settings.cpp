#include "tools/emulator/cudart/machine/settings.h"

#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string_view>

#include "codecs/base/number_text.h"
#include "collectives/call/launcher_names.h"
#include "tools/emulator/fault_plan.h"

namespace slimwire::emulator {

namespace {

// A whole decimal number in [low, high]; false when `text` is anything else.
bool parse_count(const char* text, int low, int high, int* value) {
    char* end = nullptr;
    if (text == nullptr || *text < '0' || *text > '9') {
        return false;
    }
    const long parsed = std::strtol(text, &end, 10);
    if (*end != '\0' || parsed < low || parsed > high) {
        return false;
    }
    *value = static_cast<int>(parsed);
    return true;
}

// "NxM": N nodes of M devices, each of which is a rank.
bool parse_nodes(const char* text, int* ranks_per_node) {
    char* end = nullptr;
    const long nodes = *text >= '0' && *text <= '9' ? std::strtol(text, &end, 10) : 0;
    return nodes >= 1 && nodes <= 65536 && *end == 'x' &&
           parse_count(end + 1, 1, 65536, ranks_per_node);
}

// The first of these variables that is a number in [0, 2^24]; -1 without one.
template <size_t N>
int first_count(const char* const (&names)[N]) {
    int value = -1;
    for (const char* name : names) {
        if (parse_count(std::getenv(name), 0, 1 << 24, &value)) {
            return value;
        }
    }
    return -1;
}

int first_device_index(int rank, int devices_per_process) {
    if (rank < 0) {
        return 0;
    }
    const int local_ranks = first_count(kLocalSizeNames);
    const int local_rank = first_count(kLocalRankNames);
    const bool shared = devices_per_process > 1 && local_ranks == devices_per_process &&
                        local_rank >= 0 && local_rank < local_ranks && local_rank <= rank;
    return shared ? rank - local_rank : rank * devices_per_process;
}

// The sanitizer's shadow leaves less room for mappings.
#if defined(__SANITIZE_THREAD__)
constexpr size_t kDeviceMemoryBytes = size_t{8} << 30;
#else
constexpr size_t kDeviceMemoryBytes = size_t{80} << 30;
#endif

// Null where it is absent or empty.
const char* filled_getenv(const char* name) {
    const char* const text = std::getenv(name);
    return text == nullptr || *text == '\0' ? nullptr : text;
}

void read_strict(Settings* settings) {
    const char* text = filled_getenv("SLIMWIRE_EMU_STRICT");
    const std::string_view said = text != nullptr ? text : "";
    settings->strict = said == "1" || said == "calls";
    settings->may_wait_in_calls = said != "calls";
    if (!settings->strict && !said.empty() && said != "0") {
        say("SLIMWIRE_EMU_STRICT=%s is none of 0, 1, calls", text);
        settings->error = cudaErrorInitializationError;
    }
    // As CUDA, which takes its default for what is none.
    constexpr int kConnections = 8, kMostConnections = 32;
    const char* connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    if (settings->strict && connections != nullptr &&
        !parse_count(connections, 1, kMostConnections, &settings->connections)) {
        settings->connections = kConnections;
    }
}

// Whole pages, at least what the smallest program needs and at most what a device reports.
bool parse_bytes(const char* text, size_t* bytes) {
    const auto [number, unit] = leading_number(text);
    const double factor = unit.empty()    ? 1.0
                          : unit == "KiB" ? 1024.0
                          : unit == "MiB" ? 1048576.0
                          : unit == "GiB" ? 1073741824.0
                                          : 0;
    const double wanted = number * factor;
    if (!(wanted >= 65536 && wanted <= static_cast<double>(kDeviceMemoryBytes))) {
        return false;
    }
    *bytes = static_cast<size_t>(wanted) / 4096 * 4096;
    return true;
}

bool parse_fraction(const char* text, double* fraction) {
    const auto [number, rest] = leading_number(text);
    if (*text == '\0' || !rest.empty() || !(number >= 0 && number < 1)) {
        return false;
    }
    *fraction = number;
    return true;
}

}  // namespace

void say(const char* format, ...) {
    char line[1024];
    int used = std::snprintf(line, sizeof line, "slimwire emulator: ");
    va_list arguments;
    va_start(arguments, format);
    used += std::vsnprintf(line + used, sizeof line - static_cast<size_t>(used), format, arguments);
    va_end(arguments);
    const size_t length =
        used < static_cast<int>(sizeof line) - 1 ? static_cast<size_t>(used) : sizeof line - 2;
    line[length] = '\n';
    // One write, so that lines of several ranks do not mix.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line, length + 1);
}

Settings read_settings() {
    Settings settings;
    settings.device_memory_bytes = kDeviceMemoryBytes;
    if (const char* devices = filled_getenv("SLIMWIRE_EMU_DEVICES"); devices != nullptr) {
        if (!parse_count(devices, 0, kMaxDevices, &settings.device_count)) {
            say("SLIMWIRE_EMU_DEVICES=%s is not a number of devices from 0 to %d", devices,
                kMaxDevices);
            settings.error = cudaErrorInitializationError;
        } else if (settings.device_count == 0) {
            settings.error = cudaErrorNoDevice;
        }
    }
    read_strict(&settings);
    if (const char* memory = filled_getenv("SLIMWIRE_EMU_MEMORY");
        memory != nullptr && !parse_bytes(memory, &settings.device_memory_bytes)) {
        say("SLIMWIRE_EMU_MEMORY=%s is not a size from 64KiB to 80GiB, such as 256MiB", memory);
        settings.error = cudaErrorInitializationError;
    }
    if (const char* text = filled_getenv("SLIMWIRE_EMU_CHECK_ERROR");
        text != nullptr && !parse_fraction(text, &settings.check_error)) {
        say("SLIMWIRE_EMU_CHECK_ERROR=%s is not a number from 0 to 1, such as 0.03", text);
        settings.error = cudaErrorInitializationError;
    }
    if (const char* faults = filled_getenv("SLIMWIRE_EMU_FAULT"); faults != nullptr) {
        settings.faults = faults;
        if (!FaultPlan().parse(faults)) {
            say("SLIMWIRE_EMU_FAULT=%s is not %s", faults, FaultPlan::kAccepted);
            settings.error = cudaErrorInitializationError;
        }
    }
    settings.rank = first_count(kRankNames);
    settings.first_device_index = first_device_index(settings.rank, settings.device_count);
    const char* const nodes = filled_getenv("SLIMWIRE_EMU_NODES");
    if (nodes != nullptr && !parse_nodes(nodes, &settings.ranks_per_node)) {
        say("SLIMWIRE_EMU_NODES=%s is not NxM, nodes times devices per node, such as 2x4", nodes);
        settings.error = cudaErrorInitializationError;
    }
    return settings;
}

PciAddress pci_address(const Settings& settings, int device) {
    // With a launcher the address is the same in every run; without one the process id keeps
    // processes apart.
    const auto process = static_cast<unsigned int>(settings.rank >= 0 ? settings.rank : getpid());
    const unsigned int base = settings.rank >= 0 ? 0x80 : 0;
    return {process & 0xffff, base + ((process >> 16) & 0x3f) + (device >= 32 ? 0x40u : 0u),
            static_cast<unsigned int>(device) & 31};
}

cudaDeviceProp device_properties(const Settings& settings, int device) {
    cudaDeviceProp prop;
    std::memset(&prop, 0, sizeof prop);
    const PciAddress pci = pci_address(settings, device);
    std::strcpy(prop.name, "slimwire emulated device");
    const uint32_t identity[4] = {0x736c696d, pci.domain, pci.bus, pci.device};
    static_assert(sizeof identity == sizeof prop.uuid);
    std::memcpy(prop.uuid.bytes, identity, sizeof identity);
    prop.totalGlobalMem = settings.device_memory_bytes;
    prop.sharedMemPerBlock = 48 << 10;
    prop.regsPerBlock = 65536;
    prop.warpSize = 32;
    prop.memPitch = 2147483647;
    prop.maxThreadsPerBlock = 1024;
    prop.maxThreadsDim[0] = 1024;
    prop.maxThreadsDim[1] = 1024;
    prop.maxThreadsDim[2] = 64;
    prop.maxGridSize[0] = 2147483647;
    prop.maxGridSize[1] = 65535;
    prop.maxGridSize[2] = 65535;
    prop.totalConstMem = 65536;
    prop.major = 9;
    prop.minor = 0;
    prop.textureAlignment = 512;
    prop.texturePitchAlignment = 32;
    prop.multiProcessorCount = 132;
    prop.canMapHostMemory = 1;
    prop.surfaceAlignment = 512;
    prop.concurrentKernels = 1;
    prop.ECCEnabled = 1;
    prop.pciDomainID = static_cast<int>(pci.domain);
    prop.pciBusID = static_cast<int>(pci.bus);
    prop.pciDeviceID = static_cast<int>(pci.device);
    prop.asyncEngineCount = 3;
    prop.unifiedAddressing = 1;
    prop.memoryBusWidth = 5120;
    prop.l2CacheSize = 50 << 20;
    prop.maxThreadsPerMultiProcessor = 2048;
    prop.streamPrioritiesSupported = 1;
    prop.globalL1CacheSupported = 1;
    prop.localL1CacheSupported = 1;
    prop.sharedMemPerMultiprocessor = 228 << 10;
    prop.regsPerMultiprocessor = 65536;
    prop.managedMemory = 1;
    prop.concurrentManagedAccess = 1;
    prop.computePreemptionSupported = 1;
    prop.canUseHostPointerForRegisteredMem = 1;
    prop.sharedMemPerBlockOptin = 227 << 10;
    prop.maxBlocksPerMultiProcessor = 32;
    prop.reservedSharedMemPerBlock = 1024;
    prop.hostRegisterSupported = 1;
    prop.memoryPoolsSupported = 1;
    prop.unifiedFunctionPointers = 1;
    prop.deviceNumaId = -1;
    prop.hostNumaId = -1;
    return prop;
}

namespace {

struct Attribute {
    template <class Value>
    Attribute(cudaDeviceAttr of, Value value) : attribute(of), value(static_cast<int>(value)) {}
    cudaDeviceAttr attribute;
    int value;
};

}  // namespace

bool device_attribute(const Settings& settings, int device, cudaDeviceAttr attribute, int* value) {
    const cudaDeviceProp p = device_properties(settings, device);
    const Attribute attributes[] = {
        {cudaDevAttrMaxThreadsPerBlock, p.maxThreadsPerBlock},
        {cudaDevAttrMaxBlockDimX, p.maxThreadsDim[0]},
        {cudaDevAttrMaxBlockDimY, p.maxThreadsDim[1]},
        {cudaDevAttrMaxBlockDimZ, p.maxThreadsDim[2]},
        {cudaDevAttrMaxGridDimX, p.maxGridSize[0]},
        {cudaDevAttrMaxGridDimY, p.maxGridSize[1]},
        {cudaDevAttrMaxGridDimZ, p.maxGridSize[2]},
        {cudaDevAttrMaxSharedMemoryPerBlock, p.sharedMemPerBlock},
        {cudaDevAttrTotalConstantMemory, p.totalConstMem},
        {cudaDevAttrWarpSize, p.warpSize},
        {cudaDevAttrMaxPitch, p.memPitch},
        {cudaDevAttrMaxRegistersPerBlock, p.regsPerBlock},
        {cudaDevAttrClockRate, 1980000},
        {cudaDevAttrTextureAlignment, p.textureAlignment},
        {cudaDevAttrGpuOverlap, 1},
        {cudaDevAttrMultiProcessorCount, p.multiProcessorCount},
        {cudaDevAttrCanMapHostMemory, p.canMapHostMemory},
        {cudaDevAttrSurfaceAlignment, p.surfaceAlignment},
        {cudaDevAttrConcurrentKernels, p.concurrentKernels},
        {cudaDevAttrEccEnabled, p.ECCEnabled},
        {cudaDevAttrPciBusId, p.pciBusID},
        {cudaDevAttrPciDeviceId, p.pciDeviceID},
        {cudaDevAttrPciDomainId, p.pciDomainID},
        {cudaDevAttrMemoryClockRate, 2619000},
        {cudaDevAttrGlobalMemoryBusWidth, p.memoryBusWidth},
        {cudaDevAttrL2CacheSize, p.l2CacheSize},
        {cudaDevAttrMaxThreadsPerMultiProcessor, p.maxThreadsPerMultiProcessor},
        {cudaDevAttrAsyncEngineCount, p.asyncEngineCount},
        {cudaDevAttrUnifiedAddressing, p.unifiedAddressing},
        {cudaDevAttrTexturePitchAlignment, p.texturePitchAlignment},
        {cudaDevAttrComputeCapabilityMajor, p.major},
        {cudaDevAttrComputeCapabilityMinor, p.minor},
        {cudaDevAttrStreamPrioritiesSupported, p.streamPrioritiesSupported},
        {cudaDevAttrGlobalL1CacheSupported, p.globalL1CacheSupported},
        {cudaDevAttrLocalL1CacheSupported, p.localL1CacheSupported},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, p.sharedMemPerMultiprocessor},
        {cudaDevAttrMaxRegistersPerMultiprocessor, p.regsPerMultiprocessor},
        {cudaDevAttrManagedMemory, p.managedMemory},
        {cudaDevAttrSingleToDoublePrecisionPerfRatio, 2},
        {cudaDevAttrConcurrentManagedAccess, p.concurrentManagedAccess},
        {cudaDevAttrComputePreemptionSupported, p.computePreemptionSupported},
        {cudaDevAttrCanUseHostPointerForRegisteredMem, p.canUseHostPointerForRegisteredMem},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, p.sharedMemPerBlockOptin},
        {cudaDevAttrHostRegisterSupported, p.hostRegisterSupported},
        {cudaDevAttrMaxBlocksPerMultiprocessor, p.maxBlocksPerMultiProcessor},
        {cudaDevAttrReservedSharedMemoryPerBlock, p.reservedSharedMemPerBlock},
        {cudaDevAttrMemoryPoolsSupported, p.memoryPoolsSupported},
        {cudaDevAttrMemSyncDomainCount, 1},
        {cudaDevAttrNumaId, p.deviceNumaId},
        {cudaDevAttrHostNumaId, p.hostNumaId},
    };
    const auto* const found =
        std::find_if(std::begin(attributes), std::end(attributes),
                     [&](const Attribute& one) { return one.attribute == attribute; });
    // Everything else on the runtime's list is a feature that is absent here.
    *value = found != std::end(attributes) ? found->value : 0;
    return attribute > 0 && attribute < cudaDevAttrMax;
}

}  // namespace slimwire::emulator
