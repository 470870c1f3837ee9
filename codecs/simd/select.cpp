// The choice among the instruction sets of the host tables. Constant-initialised: nothing runs when
// the library is loaded.
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include <atomic>
#include <string>

#include "codecs/base/isa.h"

namespace slimwire {
namespace {

constexpr const char* kNames[kIsaCount] = {"scalar", "avx2", "avx512"};

constinit std::atomic<int> g_active{-1};

#ifdef __x86_64__
constexpr bool has(unsigned word, unsigned bits) noexcept {
    return (word & bits) == bits;
}

// Intel SDM volume 1, 13.2 and 14.3: what the processor offers and the system saves. Not by
// __builtin_cpu_supports, whose table libgcc fills in every process that loads the library; CPUID
// is slow in virtual machines.
bool offered(Isa isa) noexcept {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 ||
        !has(ecx, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C)) {
        return false;
    }
    unsigned saved = 0;
    unsigned high = 0;
    asm volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    constexpr unsigned kYmm = 0x06;
    constexpr unsigned kZmm = 0xe6;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) {
        return false;
    }
    const bool avx2 = has(saved, kYmm) && has(ebx, bit_AVX2 | bit_BMI2);
    if (isa != Isa::kAvx512) {
        return avx2;
    }
    return avx2 && has(saved, kZmm) &&
           has(ebx, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL) &&
           has(ecx, bit_AVX512VBMI | bit_AVX512VBMI2 | bit_AVX512VPOPCNTDQ | bit_AVX512BITALG |
                        bit_GFNI);
}
#endif

}  // namespace

const char* isa_name(Isa isa) noexcept {
    return kNames[static_cast<int>(isa)];
}

bool isa_supported(Isa isa) noexcept {
#ifdef __x86_64__
    return isa == Isa::kScalar || offered(isa);
#else
    return isa == Isa::kScalar;
#endif
}

Isa active_isa() noexcept {
    int active = g_active.load(std::memory_order_relaxed);
    if (active < 0) {
        int best = kIsaCount - 1;
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
