// What is known of codecs under the optimizers that read the sums of gradients.
#pragma once

#include "codecs/codec.h"

namespace slimwire::cli {

// Whether error feedback that keeps the loss under SGD with momentum does not keep it under Adam:
// so where less than four bits an element travel. What is sent late then comes with other second
// moments than it had. Measured with int2 and topk of 1 % (codecs/README.md); not known of low
// rank.
[[nodiscard]] inline bool loses_under_adam(const CodecSpec& codec) {
    constexpr int64_t kElems = 1 << 20, kBits = 4;
    const int64_t bytes = codec.encoded_bytes(DType::kFloat32, kElems);
    return !codec.traits(DType::kFloat32).low_rank && bytes > 0 && bytes * 8 < kBits * kElems;
}

inline constexpr char kUnderAdam[] =
    "keeps the loss under SGD with momentum, and not under Adam and AdamW; take int4 or more bits "
    "there";

}  // namespace slimwire::cli
