// On the emulator: pinned memory that another thread of the process gets.
#pragma once

#include <unistd.h>

#include <cstddef>

#include "tests/support/nccl_program.h"

extern "C" size_t slimwire_emulator_pinned();

namespace slimwire::test {

// Until there is what a step saves, beside the `before` bytes that there were.
inline void await_pinned(size_t before) {
    constexpr size_t kLeast = 64 << 10;
    for (int ms = 0; slimwire_emulator_pinned() < before + kLeast; ++ms) {
        EXPECT_THAT(ms < 60000, "%zu bytes", slimwire_emulator_pinned());
        ::usleep(1000);
    }
}

}  // namespace slimwire::test
