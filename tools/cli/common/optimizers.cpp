#include "tools/cli/common/optimizers.h"

namespace slimwire::cli {

bool loses_under_adam(const CodecSpec& codec) {
    constexpr int64_t kElems = 1 << 20, kBits = 4;
    if (codec.traits(DType::kFloat32).low_rank) {
        return false;
    }
    const int64_t bytes = codec.encoded_bytes(DType::kFloat32, kElems);
    return bytes > 0 && bytes * 8 < kBits * kElems;
}

}  // namespace slimwire::cli
