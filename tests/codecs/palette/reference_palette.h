// The encoder of the palette codec written a second time, from FORMAT.md. It works on bits, not on
// fp32 values, hence apart from reference.h.
#pragma once

#include <cstdint>
#include <vector>

#include "codecs/base/dtype.h"

namespace slimwire::reference {

// The variable-size encoding of `count` > 0 elements of `dtype`.
std::vector<uint8_t> encode_palette(DType dtype, const uint8_t* input, int64_t count);

}  // namespace slimwire::reference
