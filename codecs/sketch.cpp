#include "codecs/sketch.h"

#include <algorithm>
#include <bit>

#include "codecs/host/chunks.h"
#include "codecs/host/single_elements.h"
#include "codecs/launch.h"
#include "codecs/numeric.h"

namespace slimwire {
namespace {

using Cells = float[kSketchCells];

float with_sign(float value, uint32_t change) noexcept {
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) ^ change << 31);
}

template <class Element>
void add_row(const typename Element::Bits* input, int64_t elems, int64_t number, Cells& cells) {
    const SketchRow row = sketch_row(number);
    for (int64_t unit = 0; unit * kSketchUnit < elems; ++unit) {
        const int64_t begin = unit * kSketchUnit;
        const int64_t here = std::min(kSketchUnit, elems - begin);
        float x[kSketchUnit] = {};
        for (int64_t k = 0; k < here; ++k) {
            x[k] = Element::get(input[begin + k]);
        }
        const uint32_t signs = sketch_signs(row, static_cast<uint32_t>(unit));
        float* const to = cells + (unit + row.turn) % kSketchUnits * kSketchUnit;
        for (uint32_t k = 0; k < kSketchUnit; ++k) {
            to[k] += with_sign(x[k ^ row.swap], signs >> k & 1);
        }
    }
}

bool all_finite(const Cells& cells) noexcept {
    return std::all_of(cells, cells + kSketchCells, [](float x) {
        return (std::bit_cast<uint32_t>(x) & kMagnitudeMask) < kInfinityBits;
    });
}

}  // namespace

void sketch_on_host(const SketchArgs& args) {
    const FloatEnvironment environment;
    SketchState& state = *device_view_as<SketchState>(args.state);
    const SketchParts parts = SketchParts::of(args.count);
    Cells sum = {};
    bool finite = true;
    visit_single(args.dtype, [&](auto element) {
        using Element = decltype(element);
        const auto* input = device_view_as<const typename Element::Bits>(args.input);
        for (int64_t part = 0; part < parts.parts && finite; ++part) {
            Cells own = {};
            const int64_t end = std::min((part + 1) * parts.rows_each, parts.rows);
            for (int64_t row = part * parts.rows_each; row < end; ++row) {
                const int64_t begin = row * kSketchCells;
                add_row<Element>(input + begin, std::min(kSketchCells, args.count - begin), row,
                                 own);
            }
            finite = all_finite(own);
            for (int64_t i = 0; i < kSketchCells; ++i) {
                sum[i] += own[i];
            }
        }
    });
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

Status enqueue(const DeviceApi& api, const SketchArgs& args, cudaStream_t stream) {
    return enqueue_operation(
        api, {"sketch", "sketch", sketch_on_host, SLIMWIRE_KERNEL(sketch_on_cuda)}, args, stream);
}

}  // namespace slimwire
