// The floating-point environment of a host operation: round to nearest, denormals kept, exceptions
// masked, whatever the thread that runs it was set to (frameworks flush denormals, some programs
// trap on invalid operations). Restored on destruction. Built on the stack of each host operation.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif defined(__aarch64__)
#include <cstdint>
#endif

namespace slimwire {

class FloatEnvironment {
  public:
    FloatEnvironment(const FloatEnvironment&) = delete;
    FloatEnvironment& operator=(const FloatEnvironment&) = delete;

#if defined(__x86_64__)
    FloatEnvironment() noexcept : saved_(_mm_getcsr()) {
        _mm_setcsr(kDefault);
    }
    ~FloatEnvironment() {
        _mm_setcsr(saved_);
    }

  private:
    static constexpr unsigned kDefault = 0x1F80;  // all masked, nearest, no flushing
    unsigned saved_;
#elif defined(__aarch64__)
    FloatEnvironment() noexcept {
        asm volatile("mrs %0, fpcr" : "=r"(saved_));
        asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
    }
    ~FloatEnvironment() {
        asm volatile("msr fpcr, %0" : : "r"(saved_));
    }

  private:
    uint64_t saved_;
#else
    FloatEnvironment() noexcept {}
    ~FloatEnvironment() {}
#endif
};

}  // namespace slimwire
