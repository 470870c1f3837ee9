// The position of a call in the training step, as identity/ finds it and traces write it.
#pragma once

#include <cstdint>

namespace slimwire {

// Ordinals count from behind the marks of the step (StepMark); where there is none the origin is
// arbitrary, but the same whenever the same block is learned, by any rank, in any run.
struct StepPosition {
    uint64_t path = 0;  // hash of the step's calls; 0: not known, and the rest says nothing
    uint32_t slot = 0;  // below StepLimits::paths; another path may take it over
    uint32_t ordinal = 0;
    uint64_t step = 0;        // steps that were recognised to their end before
    uint32_t occurrence = 0;  // calls of the same signature before it in the step
    uint32_t equals = 0;      // calls of the same signature in the step, itself one; 0: not known
    bool single = false;      // the step is this call alone, as far as was detected
    bool begins = false;      // the first call of a step that begins by gathering its parameters
    // Of an unknown one: how often the shortest block came back to back that all calls so far can
    // be, of more than one kind. A guess; 0: none.
    uint32_t repeats = 0;
    [[nodiscard]] bool known() const noexcept { return path != 0; }
};

}  // namespace slimwire
