#include "codecs/sketch.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "codecs/host/chunks.h"
#include "codecs/host/single_elements.h"
#include "codecs/launch.h"
#include "codecs/numeric.h"

namespace slimwire {
namespace {

using Cells = float[kSketchCells];

// Four neighbours; the compiler has instructions for them wherever slimwire is built.
using Four = float __attribute__((vector_size(16)));
using FourWords = uint32_t __attribute__((vector_size(16)));

// The signs that change, of the bits of half a byte.
struct SignMasks {
    FourWords of[16];
    constexpr SignMasks() : of{} {
        for (uint32_t bits = 0; bits < 16; ++bits) {
            of[bits] = FourWords{(bits & 1) << 31, (bits >> 1 & 1) << 31, (bits >> 2 & 1) << 31,
                                 (bits >> 3 & 1) << 31};
        }
    }
};
constexpr SignMasks kSignMasks;

inline void add_four(Four x, uint32_t signs, float* to) noexcept {
    Four sum;
    std::memcpy(&sum, to, sizeof sum);
    sum += std::bit_cast<Four>(std::bit_cast<FourWords>(x) ^ kSignMasks.of[signs & 15]);
    std::memcpy(to, &sum, sizeof sum);
}

// x[k ^ Swap] of eight at lane k.
template <uint32_t Swap>
inline void add_eight(const float* x, uint32_t signs, float* to) noexcept {
    constexpr uint32_t kIn = Swap & 3;
    constexpr FourWords kOrder = {0 ^ kIn, 1 ^ kIn, 2 ^ kIn, 3 ^ kIn};
    Four first, second;
    std::memcpy(&first, x + (Swap & 4), sizeof first);
    std::memcpy(&second, x + ((Swap & 4) ^ 4), sizeof second);
    add_four(__builtin_shuffle(first, kOrder), signs, to);
    add_four(__builtin_shuffle(second, kOrder), signs >> 4, to + 4);
}

template <class Element, uint32_t Swap>
void add_swapped_row(const typename Element::Bits* input,
                     int64_t elems,
                     const SketchRow& row,
                     Cells& cells) {
    const auto units = static_cast<uint32_t>((elems + kSketchUnit - 1) / kSketchUnit);
    for (uint32_t unit = 0; unit < units; ++unit) {
        const int64_t begin = unit * kSketchUnit;
        float x[kSketchUnit] = {};
        if (begin + kSketchUnit <= elems) {
            for (int64_t k = 0; k < kSketchUnit; ++k) {
                x[k] = Element::get(input[begin + k]);
            }
        } else {
            for (int64_t k = 0; k < elems - begin; ++k) {
                x[k] = Element::get(input[begin + k]);
            }
        }
        add_eight<Swap>(x, sketch_signs(row, unit),
                        cells + (unit + row.turn) % kSketchUnits * kSketchUnit);
    }
}

template <class Element>
void add_row(const typename Element::Bits* input, int64_t elems, int64_t number, Cells& cells) {
    const SketchRow row = sketch_row(number);
    constexpr decltype(&add_swapped_row<Element, 0>) kBySwap[kSketchUnit] = {
        add_swapped_row<Element, 0>, add_swapped_row<Element, 1>, add_swapped_row<Element, 2>,
        add_swapped_row<Element, 3>, add_swapped_row<Element, 4>, add_swapped_row<Element, 5>,
        add_swapped_row<Element, 6>, add_swapped_row<Element, 7>};
    kBySwap[row.swap](input, elems, row, cells);
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
