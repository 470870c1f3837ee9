// The calling thread's floating-point settings, on the processors for which there is a
// FloatEnvironment (codecs/simd/float_environment.h). Used by the tests that set them to what no
// operation may notice.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <cstdint>

#if defined(__x86_64__) || defined(__aarch64__)
#define SLIMWIRE_HAVE_FLOAT_CONTROL

namespace slimwire::testing {

#if defined(__x86_64__)
constexpr uint64_t kFlushing = 0x8040;     // results, and denormals taken for zero
constexpr uint64_t kTowardsZero = 0x6000;  // rounding
constexpr uint64_t kTraps = 0;             // they do where their masks are not set
constexpr uint64_t kSticky = 0x3F;
inline uint64_t float_control() {
    return _mm_getcsr();
}
inline void set_float_control(uint64_t bits) {
    _mm_setcsr(static_cast<unsigned>(bits));
}
#else
constexpr uint64_t kFlushing = 1u << 24;
constexpr uint64_t kTowardsZero = 3u << 22;
constexpr uint64_t kTraps = 0x9F00;  // set: exceptions trap, on processors that can
constexpr uint64_t kSticky = 0;      // they are in a register of their own
inline uint64_t float_control() {
    uint64_t bits;
    asm volatile("mrs %0, fpcr" : "=r"(bits));
    return bits;
}
inline void set_float_control(uint64_t bits) {
    asm volatile("msr fpcr, %0" : : "r"(bits));
}
#endif

}  // namespace slimwire::testing

#endif
