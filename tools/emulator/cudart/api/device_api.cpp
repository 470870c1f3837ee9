// Devices: selection, properties, limits, peers, synchronisation, reset.
#include <cstdio>

#include "tools/emulator/cudart/api/exports.h"
#include "tools/emulator/cudart/machine/runtime.h"
#include "tools/emulator/cudart/machine/settings.h"

using namespace slimwire::emulator;

cudaError_t cudaGetDeviceCount(int* count) {
    return call([&](Runtime& runtime) { return give(count, runtime.settings().device_count); });
}

cudaError_t cudaGetDevice(int* device) {
    return call([&](Runtime&) { return give(device, current_device()); });
}

cudaError_t cudaSetDevice(int device) {
    return call([&](Runtime& runtime) {
        if (!runtime.valid_device(device)) {
            return cudaErrorInvalidDevice;
        }
        set_current_device(device);
        runtime.device(device).use();
        return cudaSuccess;
    });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
    return call([&](Runtime& runtime) {
        return runtime.valid_device(device)
                   ? give(prop, device_properties(runtime.settings(), device))
                   : cudaErrorInvalidDevice;
    });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attr, int device) {
    return call([&](Runtime& runtime) {
        if (value == nullptr) {
            return cudaErrorInvalidValue;
        }
        if (!runtime.valid_device(device)) {
            return cudaErrorInvalidDevice;
        }
        return device_attribute(runtime.settings(), device, attr, value) ? cudaSuccess
                                                                         : cudaErrorInvalidValue;
    });
}

cudaError_t cudaDeviceSynchronize() {
    return unsafe_call([](Runtime& runtime) {
        if (Stream::on_worker()) {
            return cudaErrorNotPermitted;
        }
        Device& device = runtime.device(current_device());
        SLIMWIRE_EMU_TRY(runtime.captures.forbid_captured(device));
        may_wait(runtime, "cudaDeviceSynchronize");
        device.synchronize();
        return device.sticky();
    });
}

cudaError_t cudaDeviceReset() {
    return call([](Runtime& runtime) {
        if (Stream::on_worker()) {
            return cudaErrorNotPermitted;
        }
        Device& device = runtime.device(current_device());
        SLIMWIRE_EMU_TRY(runtime.captures.forbid_unsafe());
        SLIMWIRE_EMU_TRY(runtime.captures.forbid_captured(device));
        device.synchronize();
        runtime.streams.remove_if([&](Stream& stream) {
            const bool of_this_device = &stream.device() == &device;
            if (of_this_device) {
                stream.retire();
            }
            return of_this_device;
        });
        runtime.events.remove_if([&](Event& event) { return event.device() == device.ordinal(); });
        runtime.pools.remove_if([&](Pool& pool) { return pool.device() == device.ordinal(); });
        runtime.make_default_pool(device.ordinal());
        runtime.memory.reset(device.ordinal());
        device.clear_sticky();
        (void)last_error(true);
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least_priority, int* greatest_priority) {
    return device_call([&](Runtime&) {
        if (least_priority != nullptr) {
            *least_priority = 0;
        }
        if (greatest_priority != nullptr) {
            *greatest_priority = kGreatestPriority;
        }
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetPCIBusId(char* pci_bus_id, int len, int device) {
    return call([&](Runtime& runtime) {
        if (pci_bus_id == nullptr || len < 13) {
            return cudaErrorInvalidValue;
        }
        if (!runtime.valid_device(device)) {
            return cudaErrorInvalidDevice;
        }
        const PciAddress address = pci_address(runtime.settings(), device);
        std::snprintf(pci_bus_id, static_cast<size_t>(len), "%04x:%02x:%02x.0", address.domain,
                      address.bus, address.device);
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* pci_bus_id) {
    return call([&](Runtime& runtime) {
        unsigned int domain = 0;
        unsigned int bus = 0;
        unsigned int slot = 0;
        if (device == nullptr || pci_bus_id == nullptr) {
            return cudaErrorInvalidValue;
        }
        if (std::sscanf(pci_bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
            domain = 0;
            if (std::sscanf(pci_bus_id, "%x:%x", &bus, &slot) != 2) {
                return cudaErrorInvalidValue;
            }
        }
        for (int candidate = 0; candidate < runtime.settings().device_count; ++candidate) {
            const PciAddress address = pci_address(runtime.settings(), candidate);
            if (address.domain == domain && address.bus == bus && address.device == slot) {
                *device = candidate;
                return cudaSuccess;
            }
        }
        return cudaErrorInvalidDevice;
    });
}

cudaError_t cudaDeviceCanAccessPeer(int* can_access_peer, int device, int peer_device) {
    return call([&](Runtime& runtime) {
        return runtime.valid_device(device) && runtime.valid_device(peer_device)
                   ? give(can_access_peer, device != peer_device ? 1 : 0)
                   : cudaErrorInvalidDevice;
    });
}

namespace {

// Bit p of entry d: device d may reach device p.
std::atomic<uint64_t> g_peers[kMaxDevices];

}  // namespace

cudaError_t cudaDeviceEnablePeerAccess(int peer_device, unsigned int flags) {
    return device_call([&](Runtime& runtime) {
        if (!runtime.valid_device(peer_device) || peer_device == current_device()) {
            return cudaErrorInvalidDevice;
        }
        if (flags != 0) {
            return cudaErrorInvalidValue;
        }
        const uint64_t bit = uint64_t{1} << peer_device;
        return (g_peers[current_device()].fetch_or(bit) & bit) != 0
                   ? cudaErrorPeerAccessAlreadyEnabled
                   : cudaSuccess;
    });
}
