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
    SumRowsArgs viewed = args;
    viewed.input = device_view(args.input);
    viewed.output = device_view(args.output);
    viewed.scale = scale_factor(args.scale, args.scale_ptr, args.input_dtype);
    host_table<SumRowsTable>().sum(viewed);
}

SLIMWIRE_ENQUEUE(sum_rows, SumRowsArgs)

}  // namespace slimwire
