// Of jobs without marks that save by SLIMWIRE_STATE.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "plugin/capi/slimwire.h"
#include "tests/support/nccl_program.h"

namespace slimwire::test {

// Waits for the memory of what the next step saves, which a thread of slimwire's gets: another
// saving needs as much, and fails until it is there.
inline void await_room_of_ring() {
    const char* const ring = std::getenv("SLIMWIRE_STATE");
    const std::string other = std::string(ring, std::strcspn(ring, ",")) + "-before.%r";
    for (int ms = 0; slimwire_save_state(other.c_str()) != SLIMWIRE_OK; ++ms) {
        EXPECT_THAT(ms < 60000, "%s", slimwire_last_error());
        ::usleep(1000);
    }
}

}  // namespace slimwire::test
