// An ordinary nvcc program, linked with the shared runtime: its registration code and launch stubs
// meet the emulator's. The kernel's host body is registered by the program itself, through a symbol
// that only the emulator has. Prints what went wrong and returns 1; on a real device it would
// return 0 as well.
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstdio>

#include "codecs/base/emulator_abi.h"
#include "tools/emulator/cudart/machine/kernel_registry.h"

namespace {

template <class T>
__global__ void add(T* data, T value, int count) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) {
        data[i] += value;
    }
}

// The address at which a host body may touch what `pointer` names to the program.
float* view(float* pointer) {
    const auto find = reinterpret_cast<slimwire::EmulatorApiFunction>(
        dlsym(RTLD_DEFAULT, slimwire::kEmulatorApiSymbol));
    return static_cast<float*>(find(slimwire::kEmulatorAbiVersion)->device_view(pointer));
}

struct Add {
    float* data;
    float value;
    int count;
};

int make_add(const char*, void** args, slimwire_emulator_kernel_call* out) {
    out->state = new Add{*static_cast<float**>(args[0]), *static_cast<float*>(args[1]),
                         *static_cast<int*>(args[2])};
    out->run = [](void* state, dim3, dim3, size_t) {
        const Add* call = static_cast<const Add*>(state);
        float* const data = view(call->data);
        for (int i = 0; i < call->count; ++i) {
            data[i] += call->value;
        }
    };
    out->destroy = [](void* state) { delete static_cast<Add*>(state); };
    return 0;
}

int fail(const char* what, cudaError_t error) {
    std::printf("%s: %s\n", what, cudaGetErrorString(error));
    return 1;
}

}  // namespace

int main() {
    using Register = cudaError_t (*)(const char*, slimwire_emulator_kernel_maker);
    const auto add_body =
        reinterpret_cast<Register>(dlsym(RTLD_DEFAULT, "slimwire_emulator_register_kernel"));
    if (add_body != nullptr) {
        add_body("*::add<float>(*", make_add);
    }
    constexpr int kCount = 1000;
    float* data = nullptr;
    cudaStream_t stream = nullptr;
    cudaStreamCreate(&stream);
    if (const cudaError_t error = cudaMallocAsync(&data, kCount * sizeof(float), stream)) {
        return fail("cudaMallocAsync", error);
    }
    cudaMemsetAsync(data, 0, kCount * sizeof(float), stream);
    add<float><<<(kCount + 127) / 128, 128, 0, stream>>>(data, 2.5F, kCount);
    add<float><<<(kCount + 127) / 128, 128, 0, stream>>>(data, 0.5F, kCount);
    if (const cudaError_t error = cudaGetLastError()) {
        return fail("launch", error);
    }
    static float host[kCount];
    cudaMemcpyAsync(host, data, sizeof host, cudaMemcpyDeviceToHost, stream);
    if (const cudaError_t error = cudaStreamSynchronize(stream)) {
        return fail("synchronize", error);
    }
    for (const float value : host) {
        if (value != 3.0F) {
            std::printf("expected 3, got %g\n", static_cast<double>(value));
            return 1;
        }
    }
    add<double><<<1, 1, 0, stream>>>(nullptr, 0.0, 0);
    const cudaError_t expected = add_body != nullptr ? cudaErrorInvalidDeviceFunction : cudaSuccess;
    if (const cudaError_t error = cudaGetLastError(); error != expected) {
        return fail("launch of a kernel without a body", error);
    }
    cudaFreeAsync(data, stream);
    cudaStreamDestroy(stream);
    return 0;
}
