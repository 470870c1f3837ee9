// Host body of sketch.h for one instruction set; compiled once per set, with its flags. Everything
// but the table is local to this object (see simd/table.h).
#include "codecs/ops/host/sketch_table.h"
#include "codecs/simd/isa_headers.h"

#include "codecs/ops/sketch.h"

namespace slimwire {
namespace {

#include "codecs/simd/lanes.h"

#include "codecs/ops/host/sketch_kernels.h"

}  // namespace

const SketchTable SLIMWIRE_HOST_TABLE(host_sketch) = {add_part};

}  // namespace slimwire
