// Puts a codec operation on a stream: the host body on the emulator's stream worker, the kernel on
// CUDA. Called by the steps of a plan, on any thread, also under capture; allocates nothing.
#include "codecs/codec.h"

#include <mutex>

#include "codecs/base/emulator_abi.h"

#ifdef SLIMWIRE_HAVE_CUDA_KERNELS
// Bounds of nvcc's registration functions, collected by codecs/cuda/lazy_registration.sh.
using Registration = void (*)();
extern "C" [[gnu::visibility("hidden")]] const Registration __start_slimwire_kernel_init[];
extern "C" [[gnu::visibility("hidden")]] const Registration __stop_slimwire_kernel_init[];
#endif

namespace slimwire {

void register_cuda_kernels() {
#ifdef SLIMWIRE_HAVE_CUDA_KERNELS
    // Constant-initialised, so this costs processes that never launch nothing.
    static std::once_flag once;
    std::call_once(once, [] {
        for (const Registration* run = __start_slimwire_kernel_init;
             run != __stop_slimwire_kernel_init; ++run) {
            (*run)();
        }
    });
#endif
}

namespace {

// What the emulator copies: the operation and its arguments.
template <class Args>
struct Launch {
    void (*operation)(const Args&);
    Args args;
};

template <class Args>
void run_launch(const void* copy) {
    const auto& launch = *static_cast<const Launch<Args>*>(copy);
    launch.operation(launch.args);
}

template <class Args>
Status put(const DeviceApi& api,
           const CodecSpec& spec,
           void (*host)(const Args&),
           cudaError_t (*kernel)(const Args&, cudaStream_t),
           const Args& args,
           cudaStream_t stream,
           const char* what) {
    if (host == nullptr) {
        return {Code::kUnsupported, std::string("codec ") + spec.codec->name + " has no " + what};
    }
    if (api.emulator != nullptr) {
        const Launch<Args> launch{host, args};
        static_assert(sizeof(launch) <= 4096);
        return cuda_status(api,
                           api.emulator->launch(stream, run_launch<Args>, &launch, sizeof(launch),
                                                spec.codec->name),
                           what);
    }
    if (kernel == nullptr) {
        return {Code::kUnsupported, std::string(what) + " of codec " + spec.codec->name +
                                        ": this build has no CUDA kernels"};
    }
    register_cuda_kernels();
    return cuda_status(api, kernel(args, stream), what);
}

}  // namespace

Status enqueue(const DeviceApi& api,
               const CodecSpec& spec,
               const EncodeArgs& args,
               cudaStream_t stream) {
    return put(api, spec, spec.codec->host.encode, spec.codec->cuda.encode, args, stream, "encode");
}

Status enqueue(const DeviceApi& api,
               const CodecSpec& spec,
               const DecodeArgs& args,
               cudaStream_t stream) {
    return put(api, spec, spec.codec->host.decode, spec.codec->cuda.decode, args, stream, "decode");
}

Status enqueue(const DeviceApi& api,
               const CodecSpec& spec,
               const DecodeReduceEncodeArgs& args,
               cudaStream_t stream) {
    return put(api, spec, spec.codec->host.decode_reduce_encode,
               spec.codec->cuda.decode_reduce_encode, args, stream, "decode_reduce_encode");
}

}  // namespace slimwire
