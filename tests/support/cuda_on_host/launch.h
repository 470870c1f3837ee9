// What kernels' host side calls: the launch and the few runtime functions beside it. Everything is
// done when the call returns, whatever the stream. Kernel sources reach these by the runtime's own
// names.
#pragma once

#include <cuda_runtime_api.h>

#include <cstring>
#include <type_traits>

#include "tests/support/cuda_on_host/machine.h"

namespace cuda_on_host {

constexpr size_t kMostThreads = 1024;
constexpr size_t kSharedBytes = 48 << 10;

// Few, so that a thread takes several units of work; as the seed draws.
inline cudaError_t processor_count(int* count) {
    *count = Machine::get().processors();
    return cudaSuccess;
}

// Takes the place of a kernel launch. Errors are those of a real one; what a thread throws comes
// out.
template <class... Parameters>
cudaError_t start_kernel(void (*kernel)(Parameters...),
                         dim3 grid,
                         dim3 block,
                         size_t shared_bytes,
                         cudaStream_t,
                         const std::type_identity_t<Parameters>&... parameters) {
    static_assert((sizeof(Parameters) + ... + 0) <= 4096);
    const size_t threads = size_t{block.x} * block.y * block.z;
    if (threads == 0 || threads > kMostThreads || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
        grid.x > 0x7FFFFFFFu || grid.y > 65535 || grid.z > 65535) {
        return cudaErrorInvalidConfiguration;
    }
    if (shared_bytes > kSharedBytes) {
        return cudaErrorInvalidValue;
    }
    Machine::get().run(grid, block, shared_bytes, [&] { kernel(parameters...); });
    return cudaSuccess;
}

inline cudaError_t memset_async(void* to, int value, size_t bytes, cudaStream_t) {
    std::memset(to, value, bytes);
    return cudaSuccess;
}

inline cudaError_t memcpy_async(
    void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
    std::memcpy(to, from, bytes);
    return cudaSuccess;
}

}  // namespace cuda_on_host

// With arguments, so that the functions' plain names stay what they are.
#define cudaMemsetAsync(...) cuda_on_host::memset_async(__VA_ARGS__)
#define cudaMemcpyAsync(...) cuda_on_host::memcpy_async(__VA_ARGS__)
