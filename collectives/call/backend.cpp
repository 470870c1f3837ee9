#include "collectives/call/backend.h"

#include <dlfcn.h>

#include "codecs/base/emulator_abi.h"
#include "collectives/call/mapped_memory.h"

namespace slimwire {
namespace {

Result<DeviceApi> load_emulator(void* handle) {
    DeviceApi api;
#define SLIMWIRE_LOAD(member, function)                                              \
    api.member = reinterpret_cast<decltype(api.member)>(dlsym(handle, #function));   \
    if (api.member == nullptr) {                                                     \
        return Status(Code::kNotFound, "the emulator's libcudart lacks " #function); \
    }
    SLIMWIRE_DEVICE_FUNCTIONS(SLIMWIRE_LOAD)
#undef SLIMWIRE_LOAD
    const auto get = reinterpret_cast<EmulatorApiFunction>(dlsym(handle, kEmulatorApiSymbol));
    api.emulator = get(kEmulatorAbiVersion);
    if (api.emulator == nullptr || api.emulator->size < sizeof(EmulatorApi)) {
        return Status(
            Code::kUnsupported,
            "the emulator's libcudart and this libslimwire are of different versions; use "
            "both from one build");
    }
    set_device_view(api.emulator->device_view);
    set_driver_entry(reinterpret_cast<DriverEntry>(dlsym(handle, "cudaGetDriverEntryPoint")));
    return api;
}

}  // namespace

Result<DeviceApi> load_device_api() {
    // Global scope first; a libcudart that came in through a local dlopen is found by its name.
    if (dlsym(RTLD_DEFAULT, kEmulatorApiSymbol) != nullptr) {
        return load_emulator(RTLD_DEFAULT);
    }
    void* handle = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
    if (handle != nullptr && dlsym(handle, kEmulatorApiSymbol) != nullptr) {
        return load_emulator(handle);
    }
#ifdef SLIMWIRE_HAVE_CUDA
    DeviceApi api;
#define SLIMWIRE_LINKED(member, function) api.member = &::function;
    SLIMWIRE_DEVICE_FUNCTIONS(SLIMWIRE_LINKED)
#undef SLIMWIRE_LINKED
    set_driver_entry(&::cudaGetDriverEntryPoint);
    return api;
#else
    return Status(
        Code::kUnsupported,
        "slimwire was built without the CUDA Toolkit and runs only on the emulator (there are no "
        "kernels in it); rebuild with nvcc on PATH");
#endif
}

}  // namespace slimwire
