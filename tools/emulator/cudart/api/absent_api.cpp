// The rest of the runtime's exported names (../absent.txt): arrays, textures, graphics, other
// processes, variables of kernels, unusual graph nodes and others that have no meaning on the
// emulator. A program that only mentions them loads; one that calls one gets cudaErrorNotSupported
// and, once, a line that names the function. To add a function: implement it in the file of its
// topic and take its name off that list.
//
// Defined here without their arguments, which are never looked at: the calling convention lets a
// callee ignore them. So nothing here may include the declarations.
#include <atomic>
#include <cstring>

#include "tools/emulator/cudart/machine/runtime.h"

using namespace slimwire::emulator;

namespace {

cudaError_t absent(const char* function, std::atomic<bool>& said) {
    if (!said.exchange(true)) {
        const bool variable = std::strstr(function, "Symbol") != nullptr;
        say("%s: %s", function,
            variable ? "the emulator has no __device__ variables" : "not in the emulator");
    }
    return remember(cudaErrorNotSupported);
}

}  // namespace

#define SLIMWIRE_EMU_DEFINE(name) \
    extern "C" __attribute__((visibility("default"))) cudaError_t name()
#define SLIMWIRE_EMU_ABSENT(name)             \
    SLIMWIRE_EMU_DEFINE(name) {               \
        static std::atomic<bool> said{false}; \
        return absent(#name, said);           \
    }
#include "absent_functions.inc"

// Hints and limits are harmless where nothing looks at them.
#define SLIMWIRE_EMU_HARMLESS(name) \
    SLIMWIRE_EMU_DEFINE(name) {     \
        return cudaSuccess;         \
    }
SLIMWIRE_EMU_HARMLESS(cudaCtxResetPersistingL2Cache)
SLIMWIRE_EMU_HARMLESS(cudaDeviceSetCacheConfig)
SLIMWIRE_EMU_HARMLESS(cudaDeviceSetLimit)
SLIMWIRE_EMU_HARMLESS(cudaFuncSetCacheConfig)
SLIMWIRE_EMU_HARMLESS(cudaMemAdvise)
SLIMWIRE_EMU_HARMLESS(cudaMemPrefetchAsync)
SLIMWIRE_EMU_HARMLESS(cudaMemPrefetchAsync_ptsz)
SLIMWIRE_EMU_HARMLESS(cudaProfilerStart)
SLIMWIRE_EMU_HARMLESS(cudaProfilerStop)
SLIMWIRE_EMU_HARMLESS(cudaSetDeviceFlags)

// Describes a texture's element; needs no texture.
struct ChannelFormat {
    int x, y, z, w;
    int kind;
};
extern "C" __attribute__((visibility("default"))) ChannelFormat cudaCreateChannelDesc(
    int x, int y, int z, int w, int kind) {
    return {x, y, z, w, kind};
}
