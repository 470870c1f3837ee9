#include "codecs/ops/sum_rows.h"

#include "codecs/launch.h"
#include "codecs/ops/host/sum_rows_table.h"
#include "codecs/simd/chunks.h"

namespace slimwire {

void sum_rows_on_host(const SumRowsArgs& args) {
    if (args.count <= 0 || args.rows <= 0) {
        return;
    }
    const FloatEnvironment environment;
    host_table<SumRowsTable>().sum(
        {.input = device_view_as<const uint8_t>(args.input),
         .output = device_view_as<uint8_t>(args.output),
         .row_bytes = args.row_bytes,
         .count = args.count,
         .rows = args.rows,
         .input_scale = args.input_scale,
         .sum_limit = args.sum_limit,
         .scale = scale_factor(args.scale, args.scale_ptr, args.input_dtype),
         .input_dtype = args.input_dtype,
         .output_dtype = args.output_dtype});
}

SLIMWIRE_ENQUEUE(sum_rows, SumRowsArgs)

}  // namespace slimwire
