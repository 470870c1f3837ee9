// Puts a device operation on a stream: the host body on the emulator's stream worker, the kernel on
// CUDA. What every enqueue() of this room ends in. Called by the steps of a plan, on any thread,
// also under capture; allocates nothing.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <type_traits>

#include "codecs/base/device.h"
#include "codecs/base/emulator_abi.h"
#include "codecs/base/status.h"
#include "codecs/codec.h"

namespace slimwire {

// The two bodies of an operation and what it is called in errors and reports.
template <class Args>
struct Operation {
    const char* what;  // "encode"
    void (*host)(const Args&);
    cudaError_t (*kernel)(const Args&, cudaStream_t);  // null where no kernels are linked
    const char* owner = what;  // the codec's name, of an operation that does not stand alone
};

// What the emulator copies: the host body and its arguments.
template <class Args>
struct HostLaunch {
    void (*host)(const Args&);
    Args args;
};

template <class Args>
void run_host_launch(const void* copy) {
    const auto& launch = *static_cast<const HostLaunch<Args>*>(copy);
    launch.host(launch.args);
}

// The arguments are copied before return. kUnsupported when this build has no kernel for the
// backend; kCudaError with the runtime's text when the launch fails.
template <class Args>
Status enqueue_operation(const DeviceApi& api,
                         const std::type_identity_t<Operation<Args>>& operation,
                         const Args& args,
                         cudaStream_t stream) {
    if (api.emulator != nullptr) {
        const HostLaunch<Args> launch{operation.host, args};
        static_assert(sizeof(launch) <= 4096);
        return cuda_status(api,
                           api.emulator->launch(stream, run_host_launch<Args>, &launch,
                                                sizeof(launch), operation.owner),
                           operation.what);
    }
    if (operation.kernel == nullptr) {
        return {Code::kUnsupported, std::string(operation.owner) +
                                        ": this build has no CUDA kernel of " + operation.what};
    }
    register_cuda_kernels();
    return cuda_status(api, operation.kernel(args, stream), operation.what);
}

// Defines the enqueue() that SLIMWIRE_OPERATION (args.h) declares.
#define SLIMWIRE_ENQUEUE(name, Args)                                                          \
    Status enqueue(const DeviceApi& api, const Args& args, cudaStream_t stream) {             \
        return enqueue_operation(api, {#name, name##_on_host, name##_on_cuda}, args, stream); \
    }

}  // namespace slimwire
