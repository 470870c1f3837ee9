// What the parameters of a cast mean; for descriptors, host bodies and kernels.
#pragma once

#include "codecs/args.h"

namespace slimwire {

// CodecParams::scale_type of a cast: what finite values beyond fp16 become. Those beyond bf16
// saturate, as it has the range of fp32.
enum class CastOverflow : uint8_t { kInfinite = 0, kSaturate = 1 };

struct CastShape {
    bool stochastic;
    bool saturates;  // finite values beyond the target become its largest, else infinite
};

}  // namespace slimwire
