// A part of a sketch (sketch.h) for one instruction set: its rows, four at a time so that a
// cell is read and written once for all four. Included by sketch.cpp inside its anonymous
// namespace, after the lanes.

constexpr int64_t kRowsAtOnce = 4;

// A row as fp32, with zeros behind the last element.
struct FloatRow {
    alignas(64) float v[kSketchCells];
};

template <class Element>
SLIMWIRE_LANES const float* row_of(const uint8_t* input, int64_t elems, FloatRow& buffer) {
    if (elems == kSketchCells && Element::kBytes == sizeof(float)) {
        return reinterpret_cast<const float*>(input);
    }
    int64_t i = 0;
    for (; i + kLanes <= elems; i += kLanes) {
        store_float32(buffer.v + i, Element::load(input + i * Element::kBytes));
    }
    if (i < elems) {
        store_float32(buffer.v + i, load_some<Element>(input + i * Element::kBytes, elems - i));
        i += kLanes;
    }
    for (; i < kSketchCells; i += kLanes) {
        store_float32(buffer.v + i, broadcast(0.0f));
    }
    return buffer.v;
}

// What is to be known of a row before its elements are looked at.
struct RowPlan {
    const float* elements;
    uint32_t turn;
    uint32_t swap;
    alignas(64) uint32_t signs[kSketchUnits];  // of its units; the lowest eight bits count
};

SLIMWIRE_LANES void plan_row(const float* elements, int64_t number, RowPlan& plan) {
    const SketchRow row = sketch_row(number);
    plan.elements = elements;
    plan.turn = row.turn;
    plan.swap = row.swap;
    for (uint32_t unit = 0; unit < kSketchUnits; ++unit) {
        plan.signs[unit] = sketch_signs(row, unit);
    }
}

// Where unit `to` of the cells gets a row's elements from.
SLIMWIRE_LANES uint32_t unit_for(const RowPlan& plan, uint32_t to) {
    return (to - plan.turn) % static_cast<uint32_t>(kSketchUnits);
}

#if defined(SLIMWIRE_ISA_AVX2)

// Adds `rows` rows to the cells.
template <int kRows>
SLIMWIRE_LANES void add_rows(const RowPlan* plans, float* cells) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i to_sign = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
    const __m256i sign = _mm256_set1_epi32(static_cast<int>(0x80000000u));
    __m256i order[kRows];
    for (int r = 0; r < kRows; ++r) {
        order[r] = _mm256_xor_si256(lanes, _mm256_set1_epi32(static_cast<int>(plans[r].swap)));
    }
    for (uint32_t to = 0; to < kSketchUnits; ++to) {
        __m256 sum = _mm256_loadu_ps(cells + to * kSketchUnit);
        for (int r = 0; r < kRows; ++r) {
            const uint32_t unit = unit_for(plans[r], to);
            const __m256i bits = _mm256_set1_epi32(static_cast<int>(plans[r].signs[unit]));
            const __m256 flips =
                _mm256_castsi256_ps(_mm256_and_si256(_mm256_sllv_epi32(bits, to_sign), sign));
            const __m256 x = _mm256_loadu_ps(plans[r].elements + unit * kSketchUnit);
            sum = _mm256_add_ps(sum, _mm256_xor_ps(_mm256_permutevar8x32_ps(x, order[r]), flips));
        }
        _mm256_storeu_ps(cells + to * kSketchUnit, sum);
    }
}

#else

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

SLIMWIRE_LANES void add_four(Four x, uint32_t signs, float* to) {
    Four sum;
    __builtin_memcpy(&sum, to, sizeof sum);
    sum += reinterpret_cast<Four>(reinterpret_cast<FourWords>(x) ^ kSignMasks.of[signs & 15]);
    __builtin_memcpy(to, &sum, sizeof sum);
}

// x[k ^ kSwap] of eight at lane k.
template <uint32_t kSwap>
SLIMWIRE_LANES void add_eight(const float* x, uint32_t signs, float* to) {
    constexpr uint32_t kIn = kSwap & 3;
    const auto swapped = [](Four x) {
        return __builtin_shufflevector(x, x, 0 ^ kIn, 1 ^ kIn, 2 ^ kIn, 3 ^ kIn);
    };
    Four first, second;
    __builtin_memcpy(&first, x + (kSwap & 4), sizeof first);
    __builtin_memcpy(&second, x + ((kSwap & 4) ^ 4), sizeof second);
    add_four(swapped(first), signs, to);
    add_four(swapped(second), signs >> 4, to + 4);
}

template <uint32_t kSwap>
void add_swapped_row(const RowPlan& plan, float* cells) {
    for (uint32_t to = 0; to < kSketchUnits; ++to) {
        const uint32_t unit = unit_for(plan, to);
        add_eight<kSwap>(plan.elements + unit * kSketchUnit, plan.signs[unit],
                         cells + to * kSketchUnit);
    }
}

template <int kRows>
SLIMWIRE_LANES void add_rows(const RowPlan* plans, float* cells) {
    constexpr decltype(&add_swapped_row<0>) kBySwap[kSketchUnit] = {
        add_swapped_row<0>, add_swapped_row<1>, add_swapped_row<2>, add_swapped_row<3>,
        add_swapped_row<4>, add_swapped_row<5>, add_swapped_row<6>, add_swapped_row<7>};
    for (int r = 0; r < kRows; ++r) {
        kBySwap[plans[r].swap](plans[r], cells);
    }
}

#endif

// Zero, or more where a cell is not finite.
SLIMWIRE_LANES uint32_t not_finite(const float* cells) {
    Words most = broadcast_bits(0);
    for (int64_t i = 0; i < kSketchCells; i += kLanes) {
        most = maximum(most, bit_and(load_words(cells + i), broadcast_bits(kMagnitudeMask)));
    }
    return largest(most) >= kInfinityBits ? 1u : 0u;
}

template <class Element>
SLIMWIRE_LANES bool add_part_of(const SketchPart& part) {
    FloatRow rows[kRowsAtOnce];
    RowPlan plans[kRowsAtOnce];
    alignas(64) float own[kSketchCells] = {};
    int64_t row = part.row;
    const auto plan = [&](int64_t slot) {
        const int64_t begin = (row + slot) * kSketchCells;
        const int64_t left = part.count - begin;
        plan_row(row_of<Element>(part.input + begin * Element::kBytes,
                                 left < kSketchCells ? left : kSketchCells, rows[slot]),
                 part.first_row + row + slot, plans[slot]);
    };
    for (; row + kRowsAtOnce <= part.end; row += kRowsAtOnce) {
        for (int64_t slot = 0; slot < kRowsAtOnce; ++slot) {
            plan(slot);
        }
        add_rows<kRowsAtOnce>(plans, own);
    }
    for (; row < part.end; ++row) {
        plan(0);
        add_rows<1>(plans, own);
    }
    if (not_finite(own) != 0) {
        return false;
    }
    for (int64_t i = 0; i < kSketchCells; i += kLanes) {
        store_float32(part.cells + i, add(load_float32(part.cells + i), load_float32(own + i)));
    }
    return true;
}

bool add_part(const SketchPart& part) {
    bool finite = false;
    visit(part.dtype, [&](auto element) { finite = add_part_of<decltype(element)>(part); });
    return finite;
}
