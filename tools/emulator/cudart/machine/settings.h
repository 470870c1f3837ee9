// What the environment says about the emulated machine. Read once, at the first CUDA call, by
// Runtime; a variable that is set but wrong makes every CUDA call fail, after one line on stderr
// that says what would be accepted. Immutable afterwards.
#pragma once

#include <driver_types.h>

#include <cstddef>
#include <string>

namespace slimwire::emulator {

inline constexpr int kMaxDevices = 64;

struct Settings {
    int device_count = 1;  // SLIMWIRE_EMU_DEVICES
    // SLIMWIRE_EMU_STRICT: host access to device memory traps, fresh memory is full of NaN, what
    // may wait for the device does, host functions run one at a time; "calls": also nothing may
    // wait in a data call.
    bool strict = false;
    bool may_wait_in_calls = true;
    int connections = 0;  // CUDA_DEVICE_MAX_CONNECTIONS, if strict; 0: without limit
    // M of SLIMWIRE_EMU_NODES="NxM": N nodes of M devices; unset, each is a node of its own.
    int ranks_per_node = 1;
    int rank = -1;  // the launcher's, or -1 without one
    // Of device 0 among the devices of the job: rank * devices per process, 0 without a launcher.
    // Processes of a node may share its devices, each using that of its local rank: as many local
    // ranks as devices per process, above 1, say so; then it is rank - local rank.
    int first_device_index = 0;
    size_t device_memory_bytes = 0;   // SLIMWIRE_EMU_MEMORY: what each device can hand out
    double check_error = 0;           // SLIMWIRE_EMU_CHECK_ERROR: see checking/data.h
    std::string faults;               // SLIMWIRE_EMU_FAULT, checked: see fault_plan.h
    cudaError_t error = cudaSuccess;  // not success: every call returns this
};

Settings read_settings();

// One line on stderr, with the emulator's name in front. printf-like.
void say(const char* format, ...) __attribute__((format(printf, 1, 2)));

// What an emulated device says about itself: the shape of an H100, its own name, and an address on
// the PCI bus that no other device of the job has. Pure functions of the settings and the process
// id.

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
