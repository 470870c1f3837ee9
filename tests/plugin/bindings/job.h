// What every program of the hook matrix does with the NCCL and CUDA that it got hold of, each in
// its own way: one process, two devices, one all-reduce, its result looked at. One function is none
// that slimwire exports. Nothing here names a library.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <cmath>
#include <cstdio>
#include <vector>

namespace bindings {

struct Functions {
    decltype(&::ncclCommInitAll) comm_init_all;
    decltype(&::ncclCommCount) comm_count;
    decltype(&::ncclGroupStart) group_start;
    decltype(&::ncclAllReduce) all_reduce;
    decltype(&::ncclGroupEnd) group_end;
    decltype(&::ncclCommDestroy) comm_destroy;
    cudaError_t (*set_device)(int);
    cudaError_t (*allocate)(void**, size_t);
    cudaError_t (*release)(void*);
    cudaError_t (*copy)(void*, const void*, size_t, cudaMemcpyKind);
    cudaError_t (*synchronize)();
};

inline constexpr int kDevices = 2;
inline constexpr size_t kCount = 50000;

// 0 and a line "max error E" on success; else the step that failed. `inside` is called in the
// group, where there is one.
inline int run_job(const Functions& f, int (*inside)() = nullptr) {
    ncclComm_t comms[kDevices] = {};
    void* buffers[kDevices] = {};
    std::vector<float> values(kCount);
    const size_t bytes = kCount * sizeof(float);
    if (f.comm_init_all(comms, kDevices, nullptr) != ncclSuccess) {
        return 11;
    }
    for (int device = 0; device < kDevices; ++device) {
        for (size_t i = 0; i < kCount; ++i) {
            values[i] = static_cast<float>((device + 1) * (1 + static_cast<int>(i % 97)));
        }
        if (f.set_device(device) != cudaSuccess ||
            f.allocate(&buffers[device], bytes) != cudaSuccess ||
            f.copy(buffers[device], values.data(), bytes, cudaMemcpyHostToDevice) != cudaSuccess) {
            return 12;
        }
    }
    int ranks = 0;
    if (f.comm_count(comms[0], &ranks) != ncclSuccess || ranks != kDevices) {
        return 18;
    }
    if (f.group_start() != ncclSuccess) {
        return 13;
    }
    for (int device = 0; device < kDevices; ++device) {
        if (f.set_device(device) != cudaSuccess ||
            f.all_reduce(buffers[device], buffers[device], kCount, ncclFloat32, ncclSum,
                         comms[device], nullptr) != ncclSuccess) {
            return 14;
        }
    }
    if (const int status = inside != nullptr ? inside() : 0; status != 0) {
        return status;
    }
    if (f.group_end() != ncclSuccess) {
        return 15;
    }
    float error = 0;
    for (int device = 0; device < kDevices; ++device) {
        if (f.set_device(device) != cudaSuccess || f.synchronize() != cudaSuccess ||
            f.copy(values.data(), buffers[device], bytes, cudaMemcpyDeviceToHost) != cudaSuccess) {
            return 16;
        }
        for (size_t i = 0; i < kCount; ++i) {
            const float sum = 3 * static_cast<float>(1 + static_cast<int>(i % 97));
            error = std::fmax(error, std::fabs(values[i] - sum));
        }
        if (f.release(buffers[device]) != cudaSuccess ||
            f.comm_destroy(comms[device]) != ncclSuccess) {
            return 17;
        }
    }
    std::printf("max error %g\n", static_cast<double>(error));
    return 0;
}

}  // namespace bindings
