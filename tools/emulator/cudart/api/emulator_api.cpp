// The emulator's own interface, codecs/base/emulator_abi.h: how slimwire's device operations run
// here.
#include "codecs/base/emulator_abi.h"

#include <dlfcn.h>

#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tools/emulator/cudart/api/exports.h"
#include "tools/emulator/cudart/machine/runtime.h"

using namespace slimwire::emulator;

namespace {

constexpr size_t kMaxArgumentBytes = 4096;

// Which kernels are loaded on which devices.
class LoadedKernels {
  public:
    static LoadedKernels& instance() {
        static auto* const kernels = new LoadedKernels;
        return *kernels;
    }

    void load_module(const void* code, int device) {
        const std::lock_guard lock(mutex_);
        modules_.emplace(module_of(code), device);
    }
    // Whether the kernel was loaded already; it is now.
    bool launched(void (*body)(const void*), const char* name, int device) {
        const std::lock_guard lock(mutex_);
        return !kernels_.emplace(body, name, device).second ||
               modules_.contains({module_of(reinterpret_cast<const void*>(body)), device});
    }

  private:
    static const void* module_of(const void* code) {
        Dl_info info;
        return dladdr(code, &info) != 0 ? info.dli_fbase : nullptr;
    }

    std::mutex mutex_;
    std::set<std::pair<const void*, int>> modules_;
    std::set<std::tuple<void (*)(const void*), std::string, int>> kernels_;
};

cudaError_t launch(cudaStream_t handle,
                   void (*body)(const void*),
                   const void* args,
                   size_t bytes,
                   const char* name) {
    return work_call(handle, [&](Runtime& runtime, Stream& stream) {
        if (body == nullptr || name == nullptr || (args == nullptr && bytes != 0) ||
            bytes > kMaxArgumentBytes) {
            return cudaErrorInvalidValue;
        }
        // A kernel launch needs a stream of the current device.
        if (stream.device().ordinal() != current_device()) {
            return cudaErrorInvalidResourceHandle;
        }
        if (runtime.settings().strict && !Stream::on_worker() &&
            !LoadedKernels::instance().launched(body, name, stream.device().ordinal())) {
            wait_for_device(runtime, name);
        }
        const auto* const first = static_cast<const unsigned char*>(args);
        std::vector<unsigned char> copied(first, first + bytes);  // aligned as by operator new
        return submit(
            runtime, stream, cudaGraphNodeTypeKernel,
            make_operation(name, [body, args = std::move(copied)] { body(args.data()); }));
    });
}

void* device_view(const void* pointer) {
    cudaError_t error = cudaSuccess;
    Runtime* runtime = Runtime::get(&error);
    return runtime != nullptr ? runtime->memory.alias(pointer) : const_cast<void*>(pointer);
}

int node_of_device(int device) {
    cudaError_t error = cudaSuccess;
    Runtime* runtime = Runtime::get(&error);
    if (runtime == nullptr || !runtime->valid_device(device)) {
        return -1;
    }
    const Settings& settings = runtime->settings();
    return (settings.first_device_index + device) / settings.ranks_per_node;
}

cudaError_t load_kernels(const void* code) {
    return device_call([&](Runtime&) {
        LoadedKernels::instance().load_module(code, current_device());
        return cudaSuccess;
    });
}

void may_wait_here(const char* what) {
    cudaError_t error = cudaSuccess;
    if (const Runtime* runtime = Runtime::get(&error)) {
        may_wait(*runtime, what);
    }
}

constexpr slimwire::EmulatorApi kApi = {sizeof(slimwire::EmulatorApi),
                                        launch,
                                        device_view,
                                        node_of_device,
                                        load_kernels,
                                        change_data_calls,
                                        may_wait_here};

}  // namespace

SLIMWIRE_EMU_EXPORT const slimwire::EmulatorApi* slimwire_emulator_api(uint32_t version) {
    return version == slimwire::kEmulatorAbiVersion ? &kApi : nullptr;
}

// For tests: of how many devices this process has made the context, as the first call on a device
// does, cudaSetDevice included.
SLIMWIRE_EMU_EXPORT int slimwire_emulator_contexts() {
    cudaError_t error = cudaSuccess;
    Runtime* runtime = Runtime::get(&error);
    int contexts = 0;
    for (int i = 0; runtime != nullptr && i < runtime->settings().device_count; ++i) {
        contexts += runtime->device(i).has_context() ? 1 : 0;
    }
    return contexts;
}
