/* Host bodies for kernels of programs that nvcc compiled and that know nothing of slimwire: what a
 * library loaded beside the program (LD_PRELOAD) includes to give them. C and C++.
 *
 * nvcc's launch stub hands the runtime the kernel's name and an array of pointers to its arguments,
 * whose types only the owner of the kernel knows. So a body is registered as a maker: at each
 * launch, on the launching thread, the maker copies the arguments it needs out of `args` and fills
 * in a call; the call runs on the stream's worker, in order, and is then destroyed. A captured call
 * runs once for each replay, one replay at a time, and is destroyed with the last graph that holds
 * it. Device pointers among the arguments must be turned by slimwire_emulator_api()->device_view
 * before the body reads or writes them.
 *
 * A launch of a kernel without a body returns cudaErrorInvalidDeviceFunction and names the kernel,
 * once, on stderr. Registration is meant for constructors of the library or the start of main(). */
#ifndef SLIMWIRE_EMULATOR_KERNEL_REGISTRY_H_
#define SLIMWIRE_EMULATOR_KERNEL_REGISTRY_H_

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct slimwire_emulator_kernel_call {
    /* Does what the whole grid would do. A thrown C++ exception poisons the device as a fault
     * would. */
    void (*run)(void* state, dim3 grid, dim3 block, size_t shared_bytes);
    /* Frees `state` after the run; may be null. */
    void (*destroy)(void* state);
    void* state;
} slimwire_emulator_kernel_call;

/* Fills `out` for one launch of the kernel called `mangled_name`. Returns 0; anything else makes
 * the launch fail with cudaErrorInvalidValue. */
typedef int (*slimwire_emulator_kernel_maker)(const char* mangled_name,
                                              void** args,
                                              slimwire_emulator_kernel_call* out);

/* `name` is the kernel's mangled name, or a shell pattern (* and ?) that is compared with the
 * mangled and with the demangled name: unnamed namespaces have names that depend on the build. The
 * string is copied. Later registrations win. Returns cudaErrorInvalidValue for a null argument. */
cudaError_t slimwire_emulator_register_kernel(const char* name,
                                              slimwire_emulator_kernel_maker maker);

#ifdef __cplusplus
}
#endif

#endif /* SLIMWIRE_EMULATOR_KERNEL_REGISTRY_H_ */
