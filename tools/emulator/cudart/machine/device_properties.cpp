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

bool device_attribute(const Settings& settings, int device, cudaDeviceAttr attribute, int* value) {
    const cudaDeviceProp prop = device_properties(settings, device);
    switch (attribute) {
        case cudaDevAttrMaxThreadsPerBlock:
            *value = prop.maxThreadsPerBlock;
            return true;
        case cudaDevAttrMaxBlockDimX:
            *value = prop.maxThreadsDim[0];
            return true;
        case cudaDevAttrMaxBlockDimY:
            *value = prop.maxThreadsDim[1];
            return true;
        case cudaDevAttrMaxBlockDimZ:
            *value = prop.maxThreadsDim[2];
            return true;
        case cudaDevAttrMaxGridDimX:
            *value = prop.maxGridSize[0];
            return true;
        case cudaDevAttrMaxGridDimY:
            *value = prop.maxGridSize[1];
            return true;
        case cudaDevAttrMaxGridDimZ:
            *value = prop.maxGridSize[2];
            return true;
        case cudaDevAttrMaxSharedMemoryPerBlock:
            *value = static_cast<int>(prop.sharedMemPerBlock);
            return true;
        case cudaDevAttrTotalConstantMemory:
            *value = static_cast<int>(prop.totalConstMem);
            return true;
        case cudaDevAttrWarpSize:
            *value = prop.warpSize;
            return true;
        case cudaDevAttrMaxPitch:
            *value = static_cast<int>(prop.memPitch);
            return true;
        case cudaDevAttrMaxRegistersPerBlock:
            *value = prop.regsPerBlock;
            return true;
        case cudaDevAttrClockRate:
            *value = 1980000;
            return true;
        case cudaDevAttrTextureAlignment:
            *value = static_cast<int>(prop.textureAlignment);
            return true;
        case cudaDevAttrGpuOverlap:
            *value = 1;
            return true;
        case cudaDevAttrMultiProcessorCount:
            *value = prop.multiProcessorCount;
            return true;
        case cudaDevAttrCanMapHostMemory:
            *value = prop.canMapHostMemory;
            return true;
        case cudaDevAttrComputeMode:
            *value = cudaComputeModeDefault;
            return true;
        case cudaDevAttrSurfaceAlignment:
            *value = static_cast<int>(prop.surfaceAlignment);
            return true;
        case cudaDevAttrConcurrentKernels:
            *value = prop.concurrentKernels;
            return true;
        case cudaDevAttrEccEnabled:
            *value = prop.ECCEnabled;
            return true;
        case cudaDevAttrPciBusId:
            *value = prop.pciBusID;
            return true;
        case cudaDevAttrPciDeviceId:
            *value = prop.pciDeviceID;
            return true;
        case cudaDevAttrPciDomainId:
            *value = prop.pciDomainID;
            return true;
        case cudaDevAttrMemoryClockRate:
            *value = 2619000;
            return true;
        case cudaDevAttrGlobalMemoryBusWidth:
            *value = prop.memoryBusWidth;
            return true;
        case cudaDevAttrL2CacheSize:
            *value = prop.l2CacheSize;
            return true;
        case cudaDevAttrMaxThreadsPerMultiProcessor:
            *value = prop.maxThreadsPerMultiProcessor;
            return true;
        case cudaDevAttrAsyncEngineCount:
            *value = prop.asyncEngineCount;
            return true;
        case cudaDevAttrUnifiedAddressing:
            *value = prop.unifiedAddressing;
            return true;
        case cudaDevAttrTexturePitchAlignment:
            *value = static_cast<int>(prop.texturePitchAlignment);
            return true;
        case cudaDevAttrComputeCapabilityMajor:
            *value = prop.major;
            return true;
        case cudaDevAttrComputeCapabilityMinor:
            *value = prop.minor;
            return true;
        case cudaDevAttrStreamPrioritiesSupported:
            *value = prop.streamPrioritiesSupported;
            return true;
        case cudaDevAttrGlobalL1CacheSupported:
            *value = prop.globalL1CacheSupported;
            return true;
        case cudaDevAttrLocalL1CacheSupported:
            *value = prop.localL1CacheSupported;
            return true;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
            *value = static_cast<int>(prop.sharedMemPerMultiprocessor);
            return true;
        case cudaDevAttrMaxRegistersPerMultiprocessor:
            *value = prop.regsPerMultiprocessor;
            return true;
        case cudaDevAttrManagedMemory:
            *value = prop.managedMemory;
            return true;
        case cudaDevAttrSingleToDoublePrecisionPerfRatio:
            *value = 2;
            return true;
        case cudaDevAttrConcurrentManagedAccess:
            *value = prop.concurrentManagedAccess;
            return true;
        case cudaDevAttrComputePreemptionSupported:
            *value = prop.computePreemptionSupported;
            return true;
        case cudaDevAttrCanUseHostPointerForRegisteredMem:
            *value = prop.canUseHostPointerForRegisteredMem;
            return true;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin:
            *value = static_cast<int>(prop.sharedMemPerBlockOptin);
            return true;
        case cudaDevAttrHostRegisterSupported:
            *value = prop.hostRegisterSupported;
            return true;
        case cudaDevAttrMaxBlocksPerMultiprocessor:
            *value = prop.maxBlocksPerMultiProcessor;
            return true;
        case cudaDevAttrReservedSharedMemoryPerBlock:
            *value = static_cast<int>(prop.reservedSharedMemPerBlock);
            return true;
        case cudaDevAttrMemoryPoolsSupported:
            *value = prop.memoryPoolsSupported;
            return true;
        case cudaDevAttrMemSyncDomainCount:
            *value = 1;
            return true;
        case cudaDevAttrNumaId:
            *value = prop.deviceNumaId;
            return true;
        case cudaDevAttrHostNumaId:
            *value = prop.hostNumaId;
            return true;
        default:  // the runtime's list, not ours: everything else is a feature that is absent here
            *value = 0;
            return attribute > 0 && attribute < cudaDevAttrMax;
    }
}

}  // namespace slimwire::emulator
