// nvCOMP's ANS and bitcomp on the data of the codecs' benchmark, in lines of the same kind, beside
// those of palette. Compiled where its headers (6.0 or newer) were found, see meson.build; the
// library is loaded at run time.
#pragma once

#include <cstdint>

#include "codecs/base/dtype.h"

namespace slimwire::gpu {

// Prints its lines, or one that says why there are none.
void measure_nvcomp(DType dtype, int64_t bytes);

}  // namespace slimwire::gpu
