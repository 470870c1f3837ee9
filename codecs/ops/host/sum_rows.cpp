// Host bodies of sum_rows for one instruction set; compiled once per set, with its flags.
// Everything but the table is local to this object (see simd/table.h).
#include "codecs/ops/host/sum_rows_table.h"
#include "codecs/simd/isa_headers.h"

namespace slimwire {
namespace {

#include "codecs/simd/lanes.h"

#include "codecs/ops/host/sum_rows_kernels.h"

}  // namespace

const SumRowsTable SLIMWIRE_HOST_TABLE(host_sum_rows) = {sum_rows};

}  // namespace slimwire
