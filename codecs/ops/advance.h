// Adds to a device word when it runs, in the order of its stream: how state that operations read by
// pointer (RandomKey::step_ptr) moves on with every replay of a captured graph.
//
// Called by the steps of a plan in collectives/. A host body and a kernel of one thread; operations
// that touch the same word must be ordered by streams.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/args.h"

namespace slimwire {

// *counter += by, modulo 2^32, when the operation runs: what a captured graph advances on replays,
// such as the word behind RandomKey::step_ptr.
struct AdvanceArgs {
    uint32_t* counter;  // a device word
    uint32_t by;
};

SLIMWIRE_OPERATION(advance, AdvanceArgs)

}  // namespace slimwire
