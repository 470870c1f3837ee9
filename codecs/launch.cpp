// Puts codec operations on a stream; makes the kernels known to the CUDA runtime and loads them.
#include "codecs/launch.h"

#include <map>
#include <mutex>
#include <vector>

#include "codecs/codec.h"

// Bounds of nvcc's registration functions, collected by codecs/gpu/lazy_registration.sh. Weak: a
// program that no kernels are linked into has none to register, and the bounds are null.
using Registration = void (*)();
extern "C"
    [[gnu::weak, gnu::visibility("hidden")]] const Registration __start_slimwire_kernel_init[];
extern "C"
    [[gnu::weak, gnu::visibility("hidden")]] const Registration __stop_slimwire_kernel_init[];

// CUDA's own (crt/host_runtime.h), weak as above, and what nvcc's registration functions call in
// its place (lazy_registration.sh).
using RegisterFunction = void(void** fatbin,
                              const char* stub,
                              char* device_function,
                              const char* name,
                              int thread_limit,
                              void* thread,
                              void* block,
                              void* block_size,
                              void* grid_size,
                              int* warp_size);
extern "C" [[gnu::weak]] RegisterFunction __cudaRegisterFunction;
extern "C" [[gnu::visibility("hidden")]] RegisterFunction slimwire_register_function;

namespace slimwire {
namespace {

// What the runtime knows kernels by. Filled once, by register_cuda_kernels().
std::vector<const void*>& kernel_stubs() {
    static auto* const stubs = new std::vector<const void*>;
    return *stubs;
}

}  // namespace

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

Status load_now(const DeviceApi& api) {
    constexpr char kWhat[] = "slimwire's kernels do not load on this device";
    if (api.emulator != nullptr) {
        return cuda_status(
            api, api.emulator->load_kernels(reinterpret_cast<const void*>(&load_cuda_kernels)),
            kWhat);
    }
    register_cuda_kernels();
    for (const void* stub : kernel_stubs()) {
        cudaFuncAttributes attributes;
        SLIMWIRE_TRY(cuda_status(api, api.func_get_attributes(&attributes, stub), kWhat));
    }
    return {};
}

}  // namespace

Status load_cuda_kernels(const DeviceApi& api) {
    int device = 0;
    SLIMWIRE_TRY(cuda_status(api, api.get_device(&device), "current device"));
    // Loading may wait for the device, which must not keep another device's thread.
    struct Loaded {
        std::once_flag once;
        Status status;
    };
    static std::mutex mutex;
    static auto* const devices = new std::map<int, Loaded>;
    Loaded* loaded = nullptr;
    {
        const std::lock_guard lock(mutex);
        loaded = &(*devices)[device];
    }
    std::call_once(loaded->once, [&] { loaded->status = load_now(api); });
    return loaded->status;
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
    return enqueue_operation(api, {what, host, kernel, spec.codec->name}, args, stream);
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
    const bool lossless = spec.traits(args.dtype).lossless;
    if (lossless && args.accumulate) {
        return {Code::kUnsupported, std::string("codec ") + spec.codec->name + " adds to nothing"};
    }
    if (args.scale != 1.0f && (spec.sums() || lossless)) {
        return {Code::kUnsupported,
                std::string("codec ") + spec.codec->name + " decodes with a scale of 1 alone"};
    }
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

void slimwire_register_function(void** fatbin,
                                const char* stub,
                                char* device_function,
                                const char* name,
                                int thread_limit,
                                void* thread,
                                void* block,
                                void* block_size,
                                void* grid_size,
                                int* warp_size) {
    slimwire::kernel_stubs().push_back(stub);
    __cudaRegisterFunction(fatbin, stub, device_function, name, thread_limit, thread, block,
                           block_size, grid_size, warp_size);
}
