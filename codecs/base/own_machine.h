// The machine this build is for, as an ELF header names it.
#pragma once

#include <elf.h>

#include <cstdint>

namespace slimwire {

#if defined(__x86_64__)
inline constexpr uint16_t kOwnMachine = EM_X86_64;
#elif defined(__aarch64__)
inline constexpr uint16_t kOwnMachine = EM_AARCH64;
#else
#error "slimwire runs on x86-64 and aarch64"
#endif

}  // namespace slimwire
