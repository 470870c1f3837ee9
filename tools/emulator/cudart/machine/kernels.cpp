// Kernels of foreign programs: what nvcc's registration code and launch stubs call, and the
// registry of host bodies (kernel_registry.h); checking/ has bodies for some well-known ones.
// Registration runs before main(), so nothing here may touch the Runtime then.
#include <cxxabi.h>
#include <fnmatch.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "tools/emulator/checking/kernels.h"
#include "tools/emulator/cudart/api/exports.h"
#include "tools/emulator/cudart/machine/runtime.h"

using namespace slimwire::emulator;

namespace {

struct Kernel {
    std::string mangled;
    std::string demangled;
    bool reported = false;  // that it has no body
    std::set<int> loaded;   // devices
};

struct Registry {
    struct Body {
        std::string pattern;
        slimwire_emulator_kernel_maker maker;
    };
    std::mutex mutex;
    std::deque<Kernel> kernels;  // addresses stay: they are the cudaKernel_t handles
    std::unordered_map<const void*, Kernel*> by_host_function;
    std::vector<Body> bodies;
};

Registry& registry() {
    static auto* instance = new Registry;
    return *instance;
}

std::string demangle(const char* name) {
    int status = 0;
    char* text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
    std::string result = status == 0 ? text : name;
    std::free(text);
    return result;
}

// A kernel by the address of its host stub or by its handle; null when it is neither.
Kernel* find_kernel(const void* function) {
    Registry& all = registry();
    const auto found = all.by_host_function.find(function);
    if (found != all.by_host_function.end()) {
        return found->second;
    }
    for (Kernel& kernel : all.kernels) {
        if (&kernel == function) {
            return &kernel;
        }
    }
    return nullptr;
}

// Whether the kernel is loaded on the device only now.
bool loads(const void* function, int device) {
    const std::lock_guard lock(registry().mutex);
    return find_kernel(function)->loaded.insert(device).second;
}

checking::KernelMaker find_maker(const Kernel& kernel) {
    const auto& bodies = registry().bodies;
    for (auto body = bodies.rbegin(); body != bodies.rend(); ++body) {
        if (body->pattern == kernel.mangled || body->pattern == kernel.demangled ||
            fnmatch(body->pattern.c_str(), kernel.mangled.c_str(), 0) == 0 ||
            fnmatch(body->pattern.c_str(), kernel.demangled.c_str(), 0) == 0) {
            return [&kernel, maker = body->maker](void** args, slimwire_emulator_kernel_call* out) {
                return maker(kernel.mangled.c_str(), args, out);
            };
        }
    }
    return checking::find_checking_kernel(kernel.demangled);
}

bool valid_shape(dim3 grid, dim3 block) {
    return grid.x > 0 && grid.y > 0 && grid.z > 0 && block.x > 0 && block.y > 0 && block.z > 0 &&
           grid.y <= 65535 && grid.z <= 65535 && block.x <= 1024 && block.y <= 1024 &&
           block.z <= 64 && size_t{block.x} * block.y * block.z <= 1024;
}

cudaError_t make_launch(const void* function,
                        dim3 grid,
                        dim3 block,
                        void** args,
                        size_t shared_bytes,
                        OperationRef* out) {
    if (!valid_shape(grid, block)) {
        return cudaErrorInvalidConfiguration;
    }
    Kernel* kernel = nullptr;
    checking::KernelMaker maker;
    {
        const std::lock_guard lock(registry().mutex);
        kernel = find_kernel(function);
        maker = kernel != nullptr ? find_maker(*kernel) : nullptr;
        if (maker == nullptr) {
            if (kernel != nullptr && !std::exchange(kernel->reported, true)) {
                say("kernel %s has no host body (see "
                    "tools/emulator/cudart/machine/kernel_registry.h)",
                    kernel->demangled.c_str());
            }
            return cudaErrorInvalidDeviceFunction;
        }
    }
    slimwire_emulator_kernel_call body{};
    if (maker(args, &body) != 0 || body.run == nullptr) {
        return cudaErrorInvalidValue;
    }
    const auto keep = [](void*) {};
    const std::shared_ptr<void> state(body.state, body.destroy != nullptr ? body.destroy : keep);
    *out = make_operation(kernel->demangled.c_str(),
                          [=, run = body.run] { run(state.get(), grid, block, shared_bytes); });
    return cudaSuccess;
}

cudaError_t launch(const void* function,
                   dim3 grid,
                   dim3 block,
                   void** args,
                   size_t shared_bytes,
                   cudaStream_t handle) {
    return work_call(
        handle,
        [&](Runtime& runtime, Stream& stream) {
            if (stream.device().ordinal() != current_device()) {
                return valid_shape(grid, block) ? cudaErrorInvalidResourceHandle
                                                : cudaErrorInvalidConfiguration;
            }
            OperationRef operation;
            SLIMWIRE_EMU_TRY(make_launch(function, grid, block, args, shared_bytes, &operation));
            if (loads(function, current_device())) {
                wait_for_device(runtime, operation->name);
            }
            return submit(runtime, stream, cudaGraphNodeTypeKernel, std::move(operation));
        },
        "cudaLaunchKernel");
}

struct Configuration {
    dim3 grid;
    dim3 block;
    size_t shared_bytes;
    cudaStream_t stream;
};

// <<<...>>> pushes, the stub pops: one level, except where an argument's evaluation launches too.
constexpr size_t kMaxConfigurations = 16;
thread_local Configuration t_configurations[kMaxConfigurations];
thread_local size_t t_configuration_count = 0;

cudaError_t known_function(const void* function) {
    const std::lock_guard lock(registry().mutex);
    return find_kernel(function) != nullptr ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}

}  // namespace

cudaError_t slimwire_emulator_register_kernel(const char* name,
                                              slimwire_emulator_kernel_maker maker) {
    if (name == nullptr || maker == nullptr) {
        return cudaErrorInvalidValue;
    }
    const std::lock_guard lock(registry().mutex);
    registry().bodies.push_back({name, maker});
    return cudaSuccess;
}

SLIMWIRE_EMU_EXPORT void** __cudaRegisterFatBinary(void* /*fat_binary*/) {
    static void* module = nullptr;
    return &module;
}

SLIMWIRE_EMU_EXPORT void __cudaRegisterFatBinaryEnd(void** /*module*/) {}

SLIMWIRE_EMU_EXPORT void __cudaUnregisterFatBinary(void** /*module*/) {}

SLIMWIRE_EMU_EXPORT char __cudaInitModule(void** /*module*/) {
    return 1;
}

SLIMWIRE_EMU_EXPORT void __cudaRegisterFunction(void** /*module*/,
                                                const char* host_function,
                                                char* /*device_function*/,
                                                const char* device_name,
                                                int /*thread_limit*/,
                                                uint3* /*tid*/,
                                                uint3* /*bid*/,
                                                dim3* /*block*/,
                                                dim3* /*grid*/,
                                                int* /*warp_size*/) {
    const std::lock_guard lock(registry().mutex);
    Kernel& kernel = registry().kernels.emplace_back();
    kernel.mangled = device_name;
    kernel.demangled = demangle(device_name);
    registry().by_host_function[host_function] = &kernel;
}

SLIMWIRE_EMU_EXPORT void __cudaRegisterVar(
    void**, char*, char*, const char*, int, size_t, int, int) {}

SLIMWIRE_EMU_EXPORT void __cudaRegisterManagedVar(
    void**, void**, char*, const char*, int, size_t, int, int) {}

SLIMWIRE_EMU_EXPORT void __cudaRegisterHostVar(void**, const char*, char*, size_t) {}

SLIMWIRE_EMU_EXPORT void __cudaRegisterUnifiedTable(void**, void*) {}

SLIMWIRE_EMU_EXPORT unsigned __cudaPushCallConfiguration(dim3 grid,
                                                         dim3 block,
                                                         size_t shared_bytes,
                                                         CUstream_st* stream) {
    if (t_configuration_count == kMaxConfigurations) {
        return static_cast<unsigned>(remember(cudaErrorLaunchMaxDepthExceeded));
    }
    t_configurations[t_configuration_count++] = {grid, block, shared_bytes, stream};
    return 0;
}

SLIMWIRE_EMU_EXPORT cudaError_t __cudaPopCallConfiguration(dim3* grid,
                                                           dim3* block,
                                                           size_t* shared_bytes,
                                                           void* stream) {
    if (t_configuration_count == 0) {
        return remember(cudaErrorMissingConfiguration);
    }
    const Configuration& top = t_configurations[--t_configuration_count];
    *grid = top.grid;
    *block = top.block;
    *shared_bytes = top.shared_bytes;
    std::memcpy(stream, &top.stream, sizeof top.stream);
    return cudaSuccess;
}

SLIMWIRE_EMU_EXPORT cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host_function) {
    const std::lock_guard lock(registry().mutex);
    Kernel* found = find_kernel(host_function);
    if (found == nullptr) {
        return remember(cudaErrorInvalidDeviceFunction);
    }
    *kernel = reinterpret_cast<cudaKernel_t>(found);
    return cudaSuccess;
}

SLIMWIRE_EMU_EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel,
                                                   dim3 grid,
                                                   dim3 block,
                                                   void** args,
                                                   size_t shared_bytes,
                                                   cudaStream_t stream) {
    return launch(kernel, grid, block, args, shared_bytes, stream);
}

SLIMWIRE_EMU_EXPORT cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel,
                                                        dim3 grid,
                                                        dim3 block,
                                                        void** args,
                                                        size_t shared_bytes,
                                                        cudaStream_t stream) {
    return launch(kernel, grid, block, args, shared_bytes,
                  stream == nullptr ? cudaStreamPerThread : stream);
}

cudaError_t cudaLaunchKernel(const void* func,
                             dim3 grid_dim,
                             dim3 block_dim,
                             void** args,
                             size_t shared_mem,
                             cudaStream_t stream) {
    return launch(func, grid_dim, block_dim, args, shared_mem, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* func, void** args) {
    if (config == nullptr) {
        return remember(cudaErrorInvalidValue);
    }
    return launch(func, config->gridDim, config->blockDim, args, config->dynamicSmemBytes,
                  config->stream);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attr, const void* func) {
    return device_call([&](Runtime& runtime) {
        if (attr == nullptr) {
            return cudaErrorInvalidValue;
        }
        SLIMWIRE_EMU_TRY(known_function(func));
        if (loads(func, current_device())) {
            wait_for_device(runtime, "cudaFuncGetAttributes");
        }
        std::memset(attr, 0, sizeof *attr);
        attr->maxThreadsPerBlock = 1024;
        attr->numRegs = 32;
        attr->ptxVersion = 90;
        attr->binaryVersion = 90;
        attr->maxDynamicSharedSizeBytes = 227 << 10;
        return cudaSuccess;
    });
}

cudaError_t cudaFuncSetAttribute(const void* func, cudaFuncAttribute /*attr*/, int /*value*/) {
    return device_call([&](Runtime&) { return known_function(func); });
}
