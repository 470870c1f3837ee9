#include "collectives/call/backend.h"

#include <dlfcn.h>

#include "codecs/base/emulator_abi.h"
#include "collectives/call/mapped_memory.h"

#ifdef SLIMWIRE_HAVE_CUDA
extern "C" {
// In a toolkit of CUDA 12 cudaStreamGetCaptureInfo has fewer parameters than here: what it has
// been since 13 is _v3 there (from 12.3 on), or _v2, without the edges. Null in a toolkit of 13.
// Hidden, as a libcudart that the program brings is another one.
[[gnu::weak,
  gnu::visibility("hidden")]] decltype(cudaStreamGetCaptureInfo) cudaStreamGetCaptureInfo_v3;
[[gnu::weak, gnu::visibility("hidden")]] cudaError_t cudaStreamGetCaptureInfo_v2(
    cudaStream_t stream,
    cudaStreamCaptureStatus* status,
    unsigned long long* id,
    cudaGraph_t* graph,
    const cudaGraphNode_t** dependencies,
    size_t* count);
}
#endif

namespace slimwire {
namespace {

#ifdef SLIMWIRE_HAVE_CUDA
cudaError_t capture_info_without_edges(cudaStream_t stream,
                                       cudaStreamCaptureStatus* status,
                                       unsigned long long* id,
                                       cudaGraph_t* graph,
                                       const cudaGraphNode_t** dependencies,
                                       const cudaGraphEdgeData** /*edges*/,
                                       size_t* count) {
    return cudaStreamGetCaptureInfo_v2(stream, status, id, graph, dependencies, count);
}

decltype(&::cudaStreamGetCaptureInfo) linked_capture_info() noexcept {
    if (&::cudaStreamGetCaptureInfo_v3 != nullptr) {
        return &::cudaStreamGetCaptureInfo_v3;
    }
    return &::cudaStreamGetCaptureInfo_v2 != nullptr ? &capture_info_without_edges
                                                     : &::cudaStreamGetCaptureInfo;
}
#endif

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
    api.stream_get_capture_info = linked_capture_info();
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
