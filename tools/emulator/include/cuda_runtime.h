// cuda_runtime_api.h plus the C++ conveniences of the CUDA Runtime that host programs rely on:
// typed pointers for the allocation calls, one-argument stream and event creation, typed kernel
// addresses. Under nvcc the toolkit's own file is used instead. Source: CUDA Runtime 13.0 C++ API.
#pragma once

#if defined(__CUDACC__)
#include_next <cuda_runtime.h>
#else

#include "cuda_runtime_api.h"

#if defined(__cplusplus)

template <class T>
inline cudaError_t cudaMalloc(T** pointer, size_t bytes) {
    return ::cudaMalloc(reinterpret_cast<void**>(pointer), bytes);
}

template <class T>
inline cudaError_t cudaMallocHost(T** pointer, size_t bytes, unsigned int flags = 0) {
    return ::cudaHostAlloc(reinterpret_cast<void**>(pointer), bytes, flags);
}

template <class T>
inline cudaError_t cudaHostAlloc(T** pointer, size_t bytes, unsigned int flags) {
    return ::cudaHostAlloc(reinterpret_cast<void**>(pointer), bytes, flags);
}

template <class T>
inline cudaError_t cudaHostGetDevicePointer(T** device_pointer,
                                            void* host_pointer,
                                            unsigned int flags) {
    return ::cudaHostGetDevicePointer(reinterpret_cast<void**>(device_pointer), host_pointer,
                                      flags);
}

template <class T>
inline cudaError_t cudaMallocAsync(T** pointer, size_t bytes, cudaStream_t stream) {
    return ::cudaMallocAsync(reinterpret_cast<void**>(pointer), bytes, stream);
}

template <class T>
inline cudaError_t cudaMallocAsync(T** pointer,
                                   size_t bytes,
                                   cudaMemPool_t pool,
                                   cudaStream_t stream) {
    return ::cudaMallocFromPoolAsync(reinterpret_cast<void**>(pointer), bytes, pool, stream);
}

template <class T>
inline cudaError_t cudaMallocFromPoolAsync(T** pointer,
                                           size_t bytes,
                                           cudaMemPool_t pool,
                                           cudaStream_t stream) {
    return ::cudaMallocFromPoolAsync(reinterpret_cast<void**>(pointer), bytes, pool, stream);
}

inline cudaError_t cudaEventCreate(cudaEvent_t* event, unsigned int flags) {
    return ::cudaEventCreateWithFlags(event, flags);
}

template <class T>
inline cudaError_t cudaLaunchKernel(T* kernel,
                                    dim3 grid,
                                    dim3 block,
                                    void** args,
                                    size_t shared_bytes = 0,
                                    cudaStream_t stream = nullptr) {
    return ::cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, args,
                              shared_bytes, stream);
}

template <class T>
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, T* kernel) {
    return ::cudaFuncGetAttributes(attributes, reinterpret_cast<const void*>(kernel));
}

template <class T>
inline cudaError_t cudaFuncSetAttribute(T* kernel, cudaFuncAttribute attribute, int value) {
    return ::cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}

#endif  // __cplusplus

#endif  // __CUDACC__
