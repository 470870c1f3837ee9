#include "tools/emulator/cudart/machine/device_properties.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

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
        {cudaDevAttrComputeMode, cudaComputeModeDefault},
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
