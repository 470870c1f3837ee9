// Step-ahead error feedback (SAEF: Xu, Huo, Huang, AAAI 2021, algorithm 2; with a gain as SA-PEF
// has it): parameters that a rank computes with are moved by what it still owes, and how far a step
// moves them, from what it sees of the optimizer. Not a codec: no wire bytes come of it.
//
// Called by collectives/step_ahead. Host bodies and kernels, equal to the bit.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/args.h"
#include "codecs/numeric.h"
#include "codecs/residual/load_store.h"

namespace slimwire {

// How far a step of the optimizer moves a parameter for a reduced gradient of 1. Zero before the
// first step.
struct StepSize {
    double mean;       // over the steps that counted, the last 20 or so
    float size;        // mean, never below 0: what shifts go by
    uint32_t counted;  // steps
};
inline constexpr double kLeastStepWeight = 0.05;  // of the last step in the mean

// Every sum is of fp64 in the order of Measured.
struct StepSizeWork {
    double dots[kMeasureBlocks], squares[kMeasureBlocks];
};

// With d = before - now and the reduced gradient g of the step between: one step counts as
// <d, g> / <g, g>, over elements where all are finite, unless either is 0 or the quotient not
// finite; then before = now, bit by bit.
struct StepSizeArgs {
    const void* now;      // `count` parameters of `dtype`, aligned to their size
    void* before;         // as many
    const void* reduced;  // `count` of `reduced_dtype`; null: only before = now
    StepSizeWork* work;   // not shared by operations in flight
    StepSize* step;
    int64_t count;  // >= 0
    DType dtype;
    DType reduced_dtype;
};

// parameters[i] -= s * stored[i], s = scale * (step ? step->size : 1): product and difference
// rounded once each in fp32, then to the type; where that is beyond the type, or s is 0, as they
// were.
struct ShiftArgs {
    StoredResiduals stored;
    void* parameters;      // `count` of `dtype` (fp32, fp16, bf16), aligned to their size
    const StepSize* step;  // read when it runs; or null
    int64_t count;
    float scale;
    DType dtype;
    int32_t max_blocks = 0;  // thread blocks that the kernel may occupy; 0: as many as run at once
};

SLIMWIRE_OPERATION(find_step_size, StepSizeArgs)  // in two launches
SLIMWIRE_OPERATION(shift, ShiftArgs)

}  // namespace slimwire
