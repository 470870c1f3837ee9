#include "tools/emulator/cudart/machine/device_properties.h"

#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace slimwire::emulator {

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
    cudaDeviceAttr attribute;
    int (*value)(const cudaDeviceProp& prop);
};

constexpr Attribute kAttributes[] = {
    {cudaDevAttrMaxThreadsPerBlock, [](const cudaDeviceProp& p) { return p.maxThreadsPerBlock; }},
    {cudaDevAttrMaxBlockDimX, [](const cudaDeviceProp& p) { return p.maxThreadsDim[0]; }},
    {cudaDevAttrMaxBlockDimY, [](const cudaDeviceProp& p) { return p.maxThreadsDim[1]; }},
    {cudaDevAttrMaxBlockDimZ, [](const cudaDeviceProp& p) { return p.maxThreadsDim[2]; }},
    {cudaDevAttrMaxGridDimX, [](const cudaDeviceProp& p) { return p.maxGridSize[0]; }},
    {cudaDevAttrMaxGridDimY, [](const cudaDeviceProp& p) { return p.maxGridSize[1]; }},
    {cudaDevAttrMaxGridDimZ, [](const cudaDeviceProp& p) { return p.maxGridSize[2]; }},
    {cudaDevAttrMaxSharedMemoryPerBlock,
     [](const cudaDeviceProp& p) { return static_cast<int>(p.sharedMemPerBlock); }},
    {cudaDevAttrTotalConstantMemory,
     [](const cudaDeviceProp& p) { return static_cast<int>(p.totalConstMem); }},
    {cudaDevAttrWarpSize, [](const cudaDeviceProp& p) { return p.warpSize; }},
    {cudaDevAttrMaxPitch, [](const cudaDeviceProp& p) { return static_cast<int>(p.memPitch); }},
    {cudaDevAttrMaxRegistersPerBlock, [](const cudaDeviceProp& p) { return p.regsPerBlock; }},
    {cudaDevAttrClockRate, [](const cudaDeviceProp&) { return 1980000; }},
    {cudaDevAttrTextureAlignment,
     [](const cudaDeviceProp& p) { return static_cast<int>(p.textureAlignment); }},
    {cudaDevAttrGpuOverlap, [](const cudaDeviceProp&) { return 1; }},
    {cudaDevAttrMultiProcessorCount, [](const cudaDeviceProp& p) { return p.multiProcessorCount; }},
    {cudaDevAttrCanMapHostMemory, [](const cudaDeviceProp& p) { return p.canMapHostMemory; }},
    {cudaDevAttrComputeMode,
     [](const cudaDeviceProp&) { return static_cast<int>(cudaComputeModeDefault); }},
    {cudaDevAttrSurfaceAlignment,
     [](const cudaDeviceProp& p) { return static_cast<int>(p.surfaceAlignment); }},
    {cudaDevAttrConcurrentKernels, [](const cudaDeviceProp& p) { return p.concurrentKernels; }},
    {cudaDevAttrEccEnabled, [](const cudaDeviceProp& p) { return p.ECCEnabled; }},
    {cudaDevAttrPciBusId, [](const cudaDeviceProp& p) { return p.pciBusID; }},
    {cudaDevAttrPciDeviceId, [](const cudaDeviceProp& p) { return p.pciDeviceID; }},
    {cudaDevAttrPciDomainId, [](const cudaDeviceProp& p) { return p.pciDomainID; }},
    {cudaDevAttrMemoryClockRate, [](const cudaDeviceProp&) { return 2619000; }},
    {cudaDevAttrGlobalMemoryBusWidth, [](const cudaDeviceProp& p) { return p.memoryBusWidth; }},
    {cudaDevAttrL2CacheSize, [](const cudaDeviceProp& p) { return p.l2CacheSize; }},
    {cudaDevAttrMaxThreadsPerMultiProcessor,
     [](const cudaDeviceProp& p) { return p.maxThreadsPerMultiProcessor; }},
    {cudaDevAttrAsyncEngineCount, [](const cudaDeviceProp& p) { return p.asyncEngineCount; }},
    {cudaDevAttrUnifiedAddressing, [](const cudaDeviceProp& p) { return p.unifiedAddressing; }},
    {cudaDevAttrTexturePitchAlignment,
     [](const cudaDeviceProp& p) { return static_cast<int>(p.texturePitchAlignment); }},
    {cudaDevAttrComputeCapabilityMajor, [](const cudaDeviceProp& p) { return p.major; }},
    {cudaDevAttrComputeCapabilityMinor, [](const cudaDeviceProp& p) { return p.minor; }},
    {cudaDevAttrStreamPrioritiesSupported,
     [](const cudaDeviceProp& p) { return p.streamPrioritiesSupported; }},
    {cudaDevAttrGlobalL1CacheSupported,
     [](const cudaDeviceProp& p) { return p.globalL1CacheSupported; }},
    {cudaDevAttrLocalL1CacheSupported,
     [](const cudaDeviceProp& p) { return p.localL1CacheSupported; }},
    {cudaDevAttrMaxSharedMemoryPerMultiprocessor,
     [](const cudaDeviceProp& p) { return static_cast<int>(p.sharedMemPerMultiprocessor); }},
    {cudaDevAttrMaxRegistersPerMultiprocessor,
     [](const cudaDeviceProp& p) { return p.regsPerMultiprocessor; }},
    {cudaDevAttrManagedMemory, [](const cudaDeviceProp& p) { return p.managedMemory; }},
    {cudaDevAttrSingleToDoublePrecisionPerfRatio, [](const cudaDeviceProp&) { return 2; }},
    {cudaDevAttrConcurrentManagedAccess,
     [](const cudaDeviceProp& p) { return p.concurrentManagedAccess; }},
    {cudaDevAttrComputePreemptionSupported,
     [](const cudaDeviceProp& p) { return p.computePreemptionSupported; }},
    {cudaDevAttrCanUseHostPointerForRegisteredMem,
     [](const cudaDeviceProp& p) { return p.canUseHostPointerForRegisteredMem; }},
    {cudaDevAttrMaxSharedMemoryPerBlockOptin,
     [](const cudaDeviceProp& p) { return static_cast<int>(p.sharedMemPerBlockOptin); }},
    {cudaDevAttrHostRegisterSupported,
     [](const cudaDeviceProp& p) { return p.hostRegisterSupported; }},
    {cudaDevAttrMaxBlocksPerMultiprocessor,
     [](const cudaDeviceProp& p) { return p.maxBlocksPerMultiProcessor; }},
    {cudaDevAttrReservedSharedMemoryPerBlock,
     [](const cudaDeviceProp& p) { return static_cast<int>(p.reservedSharedMemPerBlock); }},
    {cudaDevAttrMemoryPoolsSupported,
     [](const cudaDeviceProp& p) { return p.memoryPoolsSupported; }},
    {cudaDevAttrMemSyncDomainCount, [](const cudaDeviceProp&) { return 1; }},
    {cudaDevAttrNumaId, [](const cudaDeviceProp& p) { return p.deviceNumaId; }},
    {cudaDevAttrHostNumaId, [](const cudaDeviceProp& p) { return p.hostNumaId; }},
};

}  // namespace

bool device_attribute(const Settings& settings, int device, cudaDeviceAttr attribute, int* value) {
    for (const Attribute& one : kAttributes) {
        if (one.attribute == attribute) {
            *value = one.value(device_properties(settings, device));
            return true;
        }
    }
    // Everything else on the runtime's list is a feature that is absent here.
    *value = 0;
    return attribute > 0 && attribute < cudaDevAttrMax;
}

}  // namespace slimwire::emulator
