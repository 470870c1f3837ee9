// What an emulated device says about itself: the shape of an H100, its own name, and an address on
// the PCI bus that no other device of the job has. Pure functions of the settings and the process
// id.
#pragma once

#include <driver_types.h>

#include "tools/emulator/cudart/machine/settings.h"

namespace slimwire::emulator {

inline constexpr int kGreatestPriority = -5;

struct PciAddress {
    unsigned int domain;
    unsigned int bus;
    unsigned int device;
};

PciAddress pci_address(const Settings& settings, int device);
cudaDeviceProp device_properties(const Settings& settings, int device);
// False for an attribute number that CUDA 13.0 does not have; one that has no meaning here reads 0.
bool device_attribute(const Settings& settings, int device, cudaDeviceAttr attribute, int* value);

}  // namespace slimwire::emulator
