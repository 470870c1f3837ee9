// The choice among the instruction sets of the host tables. Constant-initialised: nothing runs when
// the library is loaded.
#ifdef SLIMWIRE_HAVE_X86_TABLES
#include <cpuid.h>
#endif

#include <atomic>
#include <string>

#include "codecs/base/isa.h"

namespace slimwire {
namespace {

constexpr const char* kNames[kIsaCount] = {"scalar", "avx2", "avx512"};

constinit std::atomic<int> g_active{-1};

#ifdef SLIMWIRE_HAVE_X86_TABLES
// Not every compiler's __builtin_cpu_supports knows this word.
bool has_f16c() noexcept {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

}  // namespace

const char* isa_name(Isa isa) noexcept {
    return kNames[static_cast<int>(isa)];
}

bool isa_supported(Isa isa) noexcept {
#ifdef SLIMWIRE_HAVE_X86_TABLES
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      has_f16c() && __builtin_cpu_supports("bmi2");
    switch (isa) {
        case Isa::kScalar:
            return true;
        case Isa::kAvx2:
            return avx2;
        case Isa::kAvx512:
            return avx2 && __builtin_cpu_supports("avx512f") &&
                   __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
                   __builtin_cpu_supports("avx512vbmi2") &&
                   __builtin_cpu_supports("avx512vpopcntdq") &&
                   __builtin_cpu_supports("avx512bitalg") && __builtin_cpu_supports("gfni");
    }
#endif
    return isa == Isa::kScalar;
}

Isa active_isa() noexcept {
    int active = g_active.load(std::memory_order_relaxed);
    if (active < 0) {
        int best = static_cast<int>(Isa::kAvx512);
        while (best > 0 && !isa_supported(static_cast<Isa>(best))) {
            --best;
        }
        // A choice forced meanwhile by another thread stays.
        active = g_active.compare_exchange_strong(active, best) ? best : active;
    }
    return static_cast<Isa>(active);
}

Status force_isa(Isa isa) {
    if (!isa_supported(isa)) {
        return {Code::kUnsupported, std::string("instruction set ") + isa_name(isa) +
                                        " is not offered by this build or this processor"};
    }
    g_active.store(static_cast<int>(isa), std::memory_order_relaxed);
    return {};
}

Status force_isa(std::string_view name) {
    for (int i = 0; i < kIsaCount; ++i) {
        if (name == kNames[i]) {
            return force_isa(static_cast<Isa>(i));
        }
    }
    return {Code::kInvalidArgument, "unknown instruction set \"" + std::string(name) +
                                        "\"; accepted: scalar, avx2, avx512"};
}

}  // namespace slimwire
