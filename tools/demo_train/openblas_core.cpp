#include "tools/demo_train/openblas_core.h"

#include <unistd.h>

#include <array>
#include <cstdlib>

extern "C" char* openblas_get_corename(void);

namespace demo {

CpuFeatures detect_cpu() {
    CpuFeatures cpu;
#if defined(__x86_64__)
    __builtin_cpu_init();
    cpu.avx2_fma = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
    cpu.avx512 = __builtin_cpu_supports("avx512f") != 0 &&
                 __builtin_cpu_supports("avx512dq") != 0 &&
                 __builtin_cpu_supports("avx512bw") != 0 &&
                 __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512cd") != 0;
#endif
    return cpu;
}

std::string openblas_core(const CpuFeatures& cpu) {
    if (cpu.avx512 && cpu.avx2_fma) {
        return "SkylakeX";
    }
    return cpu.avx2_fma ? "Haswell" : "";
}

void restart_with_openblas_core(char** argv) {
    const std::string core = openblas_core(detect_cpu());
    bool changed = false;
    if (!core.empty() && std::getenv("OPENBLAS_CORETYPE") == nullptr) {
        changed = ::setenv("OPENBLAS_CORETYPE", core.c_str(), 0) == 0;
    }
    if (std::getenv("OPENBLAS_NUM_THREADS") == nullptr) {
        changed = ::setenv("OPENBLAS_NUM_THREADS", "1", 0) == 0 || changed;
    }
    if (!changed) {
        return;
    }
    std::array<char, 4096> path{};
    const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
    if (length > 0) {
        ::execv(path.data(), argv);
    }
}

std::string openblas_core_in_use() {
    const char* name = openblas_get_corename();
    return name != nullptr ? name : "unknown";
}

}  // namespace demo
