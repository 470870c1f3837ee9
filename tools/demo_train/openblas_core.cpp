#include "tools/demo_train/openblas_core.h"

#include <unistd.h>

#include <array>
#include <cstdlib>

extern "C" char* openblas_get_corename(void);

namespace demo {
namespace {

// Null: leave the choice to OpenBLAS.
const char* core_of_this_processor() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") == 0 || __builtin_cpu_supports("fma") == 0) {
        return nullptr;
    }
    const bool avx512 =
        __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
        __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
        __builtin_cpu_supports("avx512cd") != 0;
    return avx512 ? "SkylakeX" : "Haswell";
#else
    return nullptr;
#endif
}

// Whether it was missing and is set now.
bool set_if_missing(const char* name, const char* value) {
    return value != nullptr && std::getenv(name) == nullptr && ::setenv(name, value, 0) == 0;
}

}  // namespace

void restart_with_openblas_core(char** argv) {
    const bool core = set_if_missing("OPENBLAS_CORETYPE", core_of_this_processor());
    const bool threads = set_if_missing("OPENBLAS_NUM_THREADS", "1");
    std::array<char, 4096> path{};
    if ((core || threads) && ::readlink("/proc/self/exe", path.data(), path.size() - 1) > 0) {
        ::execv(path.data(), argv);
    }
}

std::string openblas_core_in_use() {
    const char* name = openblas_get_corename();
    return name != nullptr ? name : "unknown";
}

}  // namespace demo
