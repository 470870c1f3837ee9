#include "codecs/ops/move_ranges.h"

#include <algorithm>
#include <cstring>

#include "codecs/launch.h"
#include "codecs/ops/host/sum_rows_table.h"
#include "codecs/simd/chunks.h"

namespace slimwire {

void move_ranges_on_host(const MoveRangesArgs& args) {
    const FloatEnvironment environment;
    const auto bytes = static_cast<int64_t>(dtype_bytes(args.dtype));
    auto* const buffer = device_view_as<uint8_t>(args.buffer);
    auto* const chunks = device_view_as<uint8_t>(args.chunks);
    const bool as_it_is = args.scale == 1.0f && args.scale_ptr == nullptr;
    const float factor = as_it_is ? 1.0f : scale_factor(args.scale, args.scale_ptr, args.dtype);
    for (int32_t r = 0; r < args.ranges; ++r) {
        const int64_t end = r + 1 < args.ranges ? args.list[r + 1].begin : args.end;
        for (int64_t i = args.list[r].begin; i < end;) {
            const int64_t chunk = i / args.chunk_elems;
            const int64_t count = std::min(end, (chunk + 1) * args.chunk_elems) - i;
            uint8_t* const outside =
                buffer + (args.list[r].element + i - args.list[r].begin) * bytes;
            uint8_t* const inside =
                chunks + chunk * args.chunk_bytes + (i - chunk * args.chunk_elems) * bytes;
            const uint8_t* const from = args.to_chunks ? outside : inside;
            uint8_t* const to = args.to_chunks ? inside : outside;
            if (as_it_is) {
                std::memcpy(to, from, static_cast<size_t>(count * bytes));
            } else {
                host_table<SumRowsTable>().sum({.input = from,
                                                .output = to,
                                                .row_bytes = 0,
                                                .count = count,
                                                .rows = 1,
                                                .scale = factor,
                                                .input_dtype = args.dtype,
                                                .output_dtype = args.dtype});
            }
            i += count;
        }
    }
}

SLIMWIRE_ENQUEUE(move_ranges, MoveRangesArgs)

}  // namespace slimwire
