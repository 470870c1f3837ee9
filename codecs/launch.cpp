// Puts codec operations on a stream, and makes the kernels known to the CUDA runtime.
#include "codecs/launch.h"

#include <mutex>

#include "codecs/codec.h"

// Bounds of nvcc's registration functions, collected by codecs/gpu/lazy_registration.sh. Weak: a
// program that no kernels are linked into has none to register, and the bounds are null.
using Registration = void (*)();
extern "C"
    [[gnu::weak, gnu::visibility("hidden")]] const Registration __start_slimwire_kernel_init[];
extern "C"
    [[gnu::weak, gnu::visibility("hidden")]] const Registration __stop_slimwire_kernel_init[];

namespace slimwire {

void register_cuda_kernels() {
    // Constant-initialised, so this costs processes that never launch nothing.
    static std::once_flag once;
    std::call_once(once, [] {
        for (const Registration* run = __start_slimwire_kernel_init;
             run != __stop_slimwire_kernel_init; ++run) {
            (*run)();
        }
    });
}

namespace {

// As enqueue_operation(), for an operation that the codec may lack.
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
    return enqueue_operation(api, {what, spec.codec->name, host, kernel}, args, stream);
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

Status enqueue(const DeviceApi& api,
               const CodecSpec& spec,
               const DecodeReduceArgs& args,
               cudaStream_t stream) {
    return put(api, spec, spec.codec->host.decode_reduce, spec.codec->cuda.decode_reduce, args,
               stream, "decode_reduce");
}

}  // namespace slimwire
