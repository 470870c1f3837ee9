// THC's operations on one group over the lanes; the arithmetic is that of thc_math.h, bit for bit.
// Included by thc.cpp inside its anonymous namespace, after the lanes and the rotation.

struct ThcGroup {
    alignas(64) float v[kThcGroup];
};

// Of whole numbers below 2^23, and below 2^24; exact.
SLIMWIRE_LANES Floats float_of_small(Words x) {
    return subtract(as_floats(bit_or(x, broadcast_bits(0x4B000000u))), broadcast(0x1p23f));
}
SLIMWIRE_LANES Floats float_of(Words x) {
    const Floats high = float_of_small(shift_right<12>(x));
    const Floats low = float_of_small(bit_and(x, broadcast_bits(0xFFFu)));
    return add(multiply(high, broadcast(4096.0f)), low);
}

// The sign words of a group: element i has bit i % 32 of word i / 32.
struct ThcSigns {
    alignas(64) uint32_t words[64];

    explicit ThcSigns(const ThcChunk& chunk) {
        Words x[4] = {broadcast_bits(static_cast<uint32_t>(chunk.group)),
                      broadcast_bits(static_cast<uint32_t>(chunk.group >> 32)),
                      broadcast_bits(chunk.draw.step), lane_numbers()};
        threefry<LaneArithmetic>(x, chunk.draw.signs);
        store_interleaved(reinterpret_cast<uint8_t*>(words), x[0], x[1], x[2], x[3]);
    }
    // Flips elements i to i + 15; i is a multiple of 16.
    [[gnu::always_inline]] Floats flip(Floats x, int64_t i) const {
        return flip_signs(x, words[i / 32] >> (i % 32) & 0xFFFFu);
    }
};

SLIMWIRE_LANES void hadamard_of(ThcGroup& y, int64_t elems, int32_t block) {
    alignas(64) static constexpr Signs kNone = {};
    rotate_groups<true>(y.v, elems, block, kNone);
}

// The elements p, with zeros to the end of the last rotation.
template <class Element>
SLIMWIRE_LANES void load_group(const ThcChunk& chunk, const uint8_t* input, ThcGroup& p) {
    const Floats factor = broadcast(chunk.factor);
    for (int64_t i = 0; i < chunk.elems; i += kLanes) {
        const int64_t left = chunk.present - i;
        const uint8_t* const from = input + i * Element::kBytes;
        Floats x = broadcast(0.0f);
        if (left >= kLanes) {
            x = multiply(factor, Element::load(from));
            if (chunk.residual != nullptr) {
                x = add(x, load_float32(chunk.residual + i));
            }
        } else if (left > 0) {
            x = multiply(factor, load_some<Element>(from, left));
            if (chunk.residual != nullptr) {
                x = add(x, load_some<Float32>(bytes_of(chunk.residual + i), left));
            }
            alignas(64) float whole[kLanes] = {};
            store_some<Float32>(bytes_of(whole), x, left);
            x = load_float32(whole);
        }
        store_float32(p.v + i, x);
    }
}

SLIMWIRE_LANES void rotate_group(const ThcChunk& chunk,
                                 const ThcSigns& signs,
                                 const ThcGroup& p,
                                 ThcGroup& y) {
    const Floats part = broadcast(1.0f / static_cast<float>(chunk.block));
    for (int64_t i = 0; i < chunk.elems; i += kLanes) {
        store_float32(y.v + i, signs.flip(multiply(load_float32(p.v + i), part), i));
    }
    hadamard_of(y, chunk.elems, chunk.block);
}

SLIMWIRE_LANES void rotate_group_back(const ThcChunk& chunk, const ThcSigns& signs, ThcGroup& y) {
    hadamard_of(y, chunk.elems, chunk.block);
    for (int64_t i = 0; i < chunk.elems; i += kLanes) {
        store_float32(y.v + i, signs.flip(load_float32(y.v + i), i));
    }
}

SLIMWIRE_LANES uint32_t measure_thc(const ThcChunk& chunk) {
    ThcGroup p;
    ThcGroup y;
    visit(chunk.dtype, [&](auto element) { load_group<decltype(element)>(chunk, chunk.input, p); });
    rotate_group(chunk, ThcSigns(chunk), p, y);
    Words most = broadcast_bits(0);
    for (int64_t i = 0; i < chunk.elems; i += kLanes) {
        most = maximum(most, bit_and(load_words(y.v + i), broadcast_bits(kMagnitudeMask)));
    }
    const uint32_t found = largest(most);
    return found >= kInfinityBits ? kNanFloat32 : found;
}

// The draws of 64 elements from `i` of the group on, a word each.
SLIMWIRE_LANES void draw_levels(const ThcChunk& chunk, int64_t i, uint32_t* to) {
    const uint64_t four = static_cast<uint64_t>(chunk.group * kThcGroup + i) / 4;
    Words x[4] = {add(broadcast_bits(static_cast<uint32_t>(four)), lane_numbers()),
                  broadcast_bits(static_cast<uint32_t>(four >> 32)),
                  broadcast_bits(chunk.draw.step), broadcast_bits(0)};
    threefry<LaneArithmetic>(x, chunk.draw.rounding);
    store_interleaved(reinterpret_cast<uint8_t*>(to), x[0], x[1], x[2], x[3]);
}

// thc_level().
SLIMWIRE_LANES Words level_of(Floats y, Floats steps, Floats half, uint32_t levels, Words drawn) {
    const Words place = as_words(add(multiply(y, steps), half));
    const Words within = select_at_least(place, 0x80000000u, broadcast_bits(0), place);
    const auto top = static_cast<float>(levels);
    const Words below = truncate(as_floats(minimum(within, as_words(broadcast(top)))));
    const Floats part = subtract(as_floats(within), float_of_small(below));
    const Floats draw = multiply(float_of(shift_right<8>(drawn)), broadcast(0x1p-24f));
    const Words up = shift_right<31>(as_words(subtract(draw, part)));
    return minimum(add(below, up), broadcast_bits(levels));
}

// What sums of `ranks` levels stand for: thc_value(). A difference of whole numbers below 2^24, or
// of their doubles.
SLIMWIRE_LANES Floats value_of(Words sums, Floats middle, Floats half_step) {
    const Floats sum = float_of(sums);
    return multiply(subtract(add(sum, sum), middle), half_step);
}

SLIMWIRE_LANES void quantise_thc(const ThcChunk& chunk) {
    const float reach = thc_reach(*chunk.scale, chunk.clip);
    const int32_t bits = thc_field_bits(chunk.levels, chunk.ranks);
    const int64_t number = thc_words_of(chunk.elems, bits);
    for (int64_t j = 0; j < number; ++j) {
        chunk.words[j] = 0;
    }
    if (!(reach >= 0.0f)) {
        return;
    }
    ThcGroup p;
    ThcGroup y;
    if (reach > 0.0f || chunk.residual != nullptr) {
        visit(chunk.dtype,
              [&](auto element) { load_group<decltype(element)>(chunk, chunk.input, p); });
    }
    if (reach > 0.0f) {
        const ThcSigns signs(chunk);
        rotate_group(chunk, signs, p, y);
        const auto levels = static_cast<uint32_t>(chunk.levels);
        const Floats steps = broadcast(static_cast<float>(chunk.levels) * 0.5f / reach);
        const Floats half = broadcast(static_cast<float>(chunk.levels) * 0.5f);
        const Floats half_step = broadcast(reach / static_cast<float>(chunk.levels));
        const Floats middle = broadcast(static_cast<float>(chunk.levels));
        alignas(64) uint32_t level[kThcGroup];
        for (int64_t i = 0; i < chunk.elems; i += 64) {
            alignas(64) uint32_t drawn[64];
            draw_levels(chunk, i, drawn);
            const int64_t end = chunk.elems - i < 64 ? chunk.elems - i : 64;
            for (int64_t k = 0; k < end; k += kLanes) {
                const Words found =
                    level_of(load_float32(y.v + i + k), steps, half, levels, load_words(drawn + k));
                store_words(level + i + k, found);
                store_float32(y.v + i + k, value_of(found, middle, half_step));
            }
        }
        for (int64_t i = 0, field = 0; i < chunk.elems; i += number, field += bits) {
            const int64_t left = chunk.elems - i;
            const int64_t some = left < number ? left : number;
            for (int64_t j = 0; j < some; ++j) {
                chunk.words[j] |= static_cast<uint64_t>(level[i + j]) << field;
            }
        }
        if (chunk.residual != nullptr) {
            rotate_group_back(chunk, signs, y);
        }
    } else {
        for (int64_t i = 0; i < chunk.elems; i += kLanes) {
            store_float32(y.v + i, broadcast(0.0f));
        }
    }
    for (int64_t i = 0; chunk.residual != nullptr && i < chunk.present; i += kLanes) {
        const int64_t left = chunk.present - i;
        const Words rest = as_words(subtract(load_float32(p.v + i), load_float32(y.v + i)));
        const Words magnitude = bit_and(rest, broadcast_bits(kMagnitudeMask));
        uint8_t* const owed = bytes_of(chunk.residual + i);
        if (left >= kLanes) {
            store_words(owed, select_at_least(magnitude, kInfinityBits, load_words(owed), rest));
        } else {
            const Words before = as_words(load_some<Float32>(owed, left));
            store_some<Float32>(
                owed, as_floats(select_at_least(magnitude, kInfinityBits, before, rest)), left);
        }
    }
}

SLIMWIRE_LANES void restore_thc(const ThcChunk& chunk) {
    const float reach = thc_reach(*chunk.scale, chunk.clip);
    const int32_t bits = thc_field_bits(chunk.levels, chunk.ranks);
    const int64_t number = thc_words_of(chunk.elems, bits);
    const uint64_t mask = (uint64_t{1} << bits) - 1;
    ThcGroup y;
    if (reach > 0.0f) {
        alignas(64) uint32_t sums[kThcGroup];
        for (int64_t i = 0, field = 0; i < chunk.elems; i += number, field += bits) {
            const int64_t left = chunk.elems - i;
            const int64_t some = left < number ? left : number;
            for (int64_t j = 0; j < some; ++j) {
                sums[i + j] = static_cast<uint32_t>(chunk.words[j] >> field & mask);
            }
        }
        const Floats half_step = broadcast(reach / static_cast<float>(chunk.levels));
        const Floats middle = broadcast(static_cast<float>(chunk.levels * chunk.ranks));
        for (int64_t i = 0; i < chunk.elems; i += kLanes) {
            store_float32(y.v + i, value_of(load_words(sums + i), middle, half_step));
        }
        rotate_group_back(chunk, ThcSigns(chunk), y);
    } else {
        for (int64_t i = 0; i < chunk.elems; i += kLanes) {
            store_float32(y.v + i, broadcast(reach));
        }
    }
    const Floats result = broadcast(chunk.result);
    visit(chunk.dtype, [&](auto element) {
        using Element = decltype(element);
        for (int64_t i = 0; i < chunk.present; i += kLanes) {
            const int64_t left = chunk.present - i;
            const Floats x = canonical(multiply(result, load_float32(y.v + i)));
            uint8_t* const to = chunk.output + i * Element::kBytes;
            if (left >= kLanes) {
                Element::store(to, x);
            } else {
                store_some<Element>(to, x, left);
            }
        }
    });
}
