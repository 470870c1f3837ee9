#include "codecs/ops/sketch.h"

#include <algorithm>

#include "codecs/launch.h"
#include "codecs/ops/host/sketch_table.h"
#include "codecs/simd/chunks.h"
#include "codecs/simd/single_elements.h"

namespace slimwire {

void sketch_on_host(const SketchArgs& args) {
    const FloatEnvironment environment;
    SketchState& state = *device_view_as<SketchState>(args.state);
    const SketchParts parts = SketchParts::of(args.count);
    alignas(64) float sum[kSketchCells] = {};
    bool finite = true;
    for (int64_t part = 0; part < parts.parts && finite; ++part) {
        finite = host_table<SketchTable>().add_part(
            {.input = device_view_as<const uint8_t>(args.input),
             .count = args.count,
             .first_row = args.first_row,
             .row = part * parts.rows_each,
             .end = std::min((part + 1) * parts.rows_each, parts.rows),
             .dtype = args.dtype,
             .cells = sum});
    }
    if (!finite) {
        ++state.skipped;
        return;
    }
    ++state.buffers;
    for (int64_t i = 0; i < kSketchCells; ++i) {
        state.cells[i] = SingleFloat32::put(state.cells[i] + sum[i]);
    }
}

double sketch_energy(const SketchState& state) noexcept {
    double energy = 0;
    for (const float cell : state.cells) {
        energy += static_cast<double>(cell) * static_cast<double>(cell);
    }
    return energy;
}

SLIMWIRE_ENQUEUE(sketch, SketchArgs)

}  // namespace slimwire
