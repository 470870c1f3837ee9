// Codes of block integers on AArch64 Advanced SIMD: quantising, packing, and back to values. The
// same functions as lanes_scalar_codes.h, which says what each one means. Included by lanes.h after
// lanes_neon.h.

SLIMWIRE_LANES Words quantise(Floats p, Floats inverse) {
    return as_words(multiply_add(p, inverse, broadcast(kRoundingMagic)));
}

template <int kBits>
SLIMWIRE_LANES uint32x4_t quantise_stochastic_4(float32x4_t p,
                                                float32x4_t inverse,
                                                uint32x4_t random) {
    const float32x4_t sum = vfmaq_f32(vdupq_n_f32(kStochasticMagic), p, inverse);
    const uint32x4_t fixed =
        vsubq_u32(vreinterpretq_u32_f32(sum), vdupq_n_u32(kStochasticMagicBits));
    const int32x4_t code = vshrq_n_s32(vreinterpretq_s32_u32(vaddq_u32(fixed, random)), 8);
    const int32x4_t low = vminq_s32(code, vdupq_n_s32(largest_code(kBits)));
    const int32x4_t inside = vmaxq_s32(low, vdupq_n_s32(-largest_code(kBits)));
    return vaddq_u32(vreinterpretq_u32_s32(inside), vdupq_n_u32(kRoundingMagicBits));
}
template <int kBits>
SLIMWIRE_LANES Words quantise_stochastic(Floats p, Floats inverse, Words random) {
    return {quantise_stochastic_4<kBits>(p.q0, inverse.q0, random.q0),
            quantise_stochastic_4<kBits>(p.q1, inverse.q1, random.q1),
            quantise_stochastic_4<kBits>(p.q2, inverse.q2, random.q2),
            quantise_stochastic_4<kBits>(p.q3, inverse.q3, random.q3)};
}

SLIMWIRE_LANES Words quantise_fixed(Floats p, Floats inverse) {
    return as_words(multiply_add(p, inverse, broadcast(kStochasticMagic)));
}

// The parts of the lower bytes, from bit kBits on, become what the upper ones have at bit 0; the
// same for halves of words. What lies above both is rubbish.
template <int kBits>
SLIMWIRE_LANES uint16x8_t join_bytes(uint16x8_t x) {
    return vsliq_n_u16(x, vshrq_n_u16(x, 8), kBits);
}
template <int kBits>
SLIMWIRE_LANES uint32x4_t join_pairs(uint16x8_t x) {
    const uint32x4_t word = vreinterpretq_u32_u16(x);
    return vsliq_n_u32(word, vshrq_n_u32(word, 16), kBits);
}
SLIMWIRE_LANES void store_4(uint8_t* to, uint8x8_t x) {
    const uint32_t word = vget_lane_u32(vreinterpret_u32_u8(x), 0);
    __builtin_memcpy(to, &word, 4);
}
// Nibbles to their bytes, two by two.
SLIMWIRE_LANES uint8x8_t join_nibbles(uint8x16_t x) {
    return vmovn_u16(join_bytes<4>(vreinterpretq_u16_u8(x)));
}

// Sixteen codes in the low bits of bytes.
template <int kBits>
SLIMWIRE_LANES void pack_bytes(uint8x16_t codes, uint8_t* to) {
    const uint16x8_t pairs = vreinterpretq_u16_u8(codes);
    if constexpr (kBits == 8) {
        store_16(to, codes);
    } else if constexpr (kBits == 4) {
        vst1_u8(to, join_nibbles(codes));
    } else if constexpr (kBits == 6) {
        // Fours have 24 bits, whose three bytes move together.
        const uint8x16_t order = {0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 255, 255, 255, 255};
        const uint32x4_t fours = join_pairs<12>(join_bytes<6>(pairs));
        const uint8x16_t packed = vqtbl1q_u8(vreinterpretq_u8_u32(fours), order);
        vst1_u8(to, vget_low_u8(packed));
        store_4(to + 8, vget_high_u8(packed));
    } else {
        const uint8x8_t nibbles = vmovn_u16(join_bytes<2>(pairs));
        store_4(to, join_nibbles(vcombine_u8(nibbles, nibbles)));
    }
}
template <int kBits>
SLIMWIRE_LANES void pack(Words codes, uint8_t* to) {
    pack_bytes<kBits>(low_bytes(codes), to);
}

// Bytes 0 to 11 of a register.
SLIMWIRE_LANES uint8x16_t load_12(const uint8_t* from) {
    uint32_t last;
    __builtin_memcpy(&last, from + 8, 4);
    return vcombine_u8(vld1_u8(from), vcreate_u8(last));
}
// The three bytes of four codes, in every lane.
template <int kFour>
SLIMWIRE_LANES uint32x4_t three_bytes(uint8x16_t bytes) {
    constexpr uint8_t a = 3 * kFour;
    const uint8x16_t order = {a, a + 1, a + 2, 255, a, a + 1, a + 2, 255,
                              a, a + 1, a + 2, 255, a, a + 1, a + 2, 255};
    return vreinterpretq_u32_u8(vqtbl1q_u8(bytes, order));
}
template <int kBits>
SLIMWIRE_LANES Words unpack(const uint8_t* from) {
    if constexpr (kBits == 8) {
        return load_bytes(from);
    } else if constexpr (kBits == 4) {
        const uint8x8_t pairs = vld1_u8(from);
        const uint8x8_t low = vand_u8(pairs, vdup_n_u8(15));
        const uint8x8_t high = vshr_n_u8(pairs, 4);
        return words_of_16(vcombine_u8(vzip1_u8(low, high), vzip2_u8(low, high)));
    } else {
        static_assert(kBits == 6);
        const uint8x16_t bytes = load_12(from);
        const int32x4_t down = {0, -6, -12, -18};
        const uint32x4_t mask = vdupq_n_u32(63);
        return {vandq_u32(vshlq_u32(three_bytes<0>(bytes), down), mask),
                vandq_u32(vshlq_u32(three_bytes<1>(bytes), down), mask),
                vandq_u32(vshlq_u32(three_bytes<2>(bytes), down), mask),
                vandq_u32(vshlq_u32(three_bytes<3>(bytes), down), mask)};
    }
}

// An even code and the odd one after it, side by side at the bottom of each lane.
template <int kBits>
SLIMWIRE_LANES Words join_codes(Words even, Words odd) {
    return {vsliq_n_u32(even.q0, odd.q0, kBits), vsliq_n_u32(even.q1, odd.q1, kBits),
            vsliq_n_u32(even.q2, odd.q2, kBits), vsliq_n_u32(even.q3, odd.q3, kBits)};
}
template <int kBits>
SLIMWIRE_LANES void pack_32(Words even, Words odd, uint8_t* to) {
    const Words pairs = join_codes<kBits>(even, odd);
    if constexpr (kBits == 4) {
        store_16(to, low_bytes(pairs));
    } else if constexpr (kBits == 2) {
        vst1_u8(to, join_nibbles(low_bytes(pairs)));
    } else {
        const uint16x8_t low = low_halves(pairs.q0, pairs.q1);
        const uint16x8_t high = low_halves(pairs.q2, pairs.q3);
        if constexpr (kBits == 8) {
            store_16(to, vreinterpretq_u8_u16(low));
            store_16(to + 16, vreinterpretq_u8_u16(high));
        } else {
            static_assert(kBits == 6);
            const uint8x16_t first = {0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 16, 17, 18, 20};
            const uint8x8_t second = {5, 6, 8, 9, 10, 12, 13, 14};
            const uint8x16_t fours[2] = {vreinterpretq_u8_u32(join_pairs<12>(low)),
                                         vreinterpretq_u8_u32(join_pairs<12>(high))};
            store_16(to, vqtbl2q_u8({{fours[0], fours[1]}}, first));
            vst1_u8(to + 16, vqtbl1_u8(fours[1], second));
        }
    }
}

template <int kBits>
SLIMWIRE_LANES void pack_pairs(const Words (&even)[2], const Words (&odd)[2], uint8_t* to) {
    pack_32<kBits>(even[0], odd[0], to);
    pack_32<kBits>(even[1], odd[1], to + 4 * kBits);
}
// Sixteen codes from the high bytes of halves.
SLIMWIRE_LANES uint8x16_t high_bytes(uint32x4_t low, uint32x4_t high) {
    return vuzp2q_u8(vreinterpretq_u8_u32(low), vreinterpretq_u8_u32(high));
}
template <int kBits>
SLIMWIRE_LANES void pack_sums(const Words (&sums)[2], uint8_t* to) {
    for (int i = 0; i < 2; ++i, to += 4 * kBits) {
        pack_bytes<kBits>(high_bytes(sums[i].q0, sums[i].q1), to);
        pack_bytes<kBits>(high_bytes(sums[i].q2, sums[i].q3), to + 2 * kBits);
    }
}

template <int kBits>
SLIMWIRE_LANES void pack_64(const Words (&codes)[4], uint8_t* to) {
    for (int i = 0; i < 4; ++i) {
        pack<kBits>(codes[i], to + 2 * kBits * i);
    }
}

template <int kBits>
struct CodeValues {
    Floats scale;

    [[gnu::always_inline]] explicit CodeValues(float s) : scale(broadcast(s)) {}

    [[gnu::always_inline]] Floats operator()(Words quantised) const {
        return multiply(subtract(as_floats(quantised), broadcast(kRoundingMagic)), scale);
    }
};

template <int kBits>
struct Dequantiser {
    float32x4_t scale;

    [[gnu::always_inline]] explicit Dequantiser(float s) : scale(vdupq_n_f32(s)) {}

    [[gnu::always_inline]] float32x4_t four(int32x4_t codes) const {
        return vmulq_f32(vcvtq_f32_s32(codes), scale);
    }
    [[gnu::always_inline]] Floats sixteen(int8x16_t codes) const {
        const int16x8_t low = vmovl_s8(vget_low_s8(codes));
        const int16x8_t high = vmovl_high_s8(codes);
        return {four(vmovl_s16(vget_low_s16(low))), four(vmovl_high_s16(low)),
                four(vmovl_s16(vget_low_s16(high))), four(vmovl_high_s16(high))};
    }
    // From 24 bits: up to the sign bit and down again.
    [[gnu::always_inline]] float32x4_t four_of_six(uint32x4_t bytes) const {
        const int32x4_t up = {26, 20, 14, 8};
        return four(vshrq_n_s32(vreinterpretq_s32_u32(vshlq_u32(bytes, up)), 26));
    }

    [[gnu::always_inline]] Floats operator()(const uint8_t* from) const {
        if constexpr (kBits == 8) {
            return sixteen(vreinterpretq_s8_u8(load_16(from)));
        } else if constexpr (kBits == 4) {
            const int8x8_t pairs = vreinterpret_s8_u8(vld1_u8(from));
            const int8x8_t low = vshr_n_s8(vshl_n_s8(pairs, 4), 4);
            const int8x8_t high = vshr_n_s8(pairs, 4);
            return sixteen(vcombine_s8(vzip1_s8(low, high), vzip2_s8(low, high)));
        } else if constexpr (kBits == 6) {
            const uint8x16_t bytes = load_12(from);
            return {four_of_six(three_bytes<0>(bytes)), four_of_six(three_bytes<1>(bytes)),
                    four_of_six(three_bytes<2>(bytes)), four_of_six(three_bytes<3>(bytes))};
        } else {
            static_assert(kBits == 2);
            uint32_t word;
            __builtin_memcpy(&word, from, 4);
            const uint8x16_t order = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
            const int8x16_t up = {6, 4, 2, 0, 6, 4, 2, 0, 6, 4, 2, 0, 6, 4, 2, 0};
            const uint8x16_t fours = vqtbl1q_u8(vreinterpretq_u8_u32(vdupq_n_u32(word)), order);
            return sixteen(vshrq_n_s8(vreinterpretq_s8_u8(vshlq_u8(fours, up)), 6));
        }
    }
};

template <int kBits>
struct PairDequantiser {
    Dequantiser<kBits> half;

    [[gnu::always_inline]] static bool takes(uint32_t) { return true; }

    [[gnu::always_inline]] explicit PairDequantiser(float s) : half(s) {}

    [[gnu::always_inline]] void operator()(const uint8_t* from, uint8_t* to) const {
        for (int i = 0; i < 2; ++i, to += 32) {
            const Floats x = half(from + i * 2 * kBits);
            store_16(to, vreinterpretq_u8_u16(high_halves(round_number(x.q0), round_number(x.q1))));
            store_16(to + 16,
                     vreinterpretq_u8_u16(high_halves(round_number(x.q2), round_number(x.q3))));
        }
    }
};

// The sixteen values as bf16: their low bytes and their high ones.
template <>
struct PairDequantiser<4> {
    uint8x16_t low, high;

    [[gnu::always_inline]] static bool takes(uint32_t) { return true; }

    [[gnu::always_inline]] explicit PairDequantiser(float s) {
        const float32x4_t scale = vdupq_n_f32(s);
        const float32x4_t upwards = {0, 1, 2, 3};
        const auto eight_from = [&](float first) {
            const float32x4_t four = vaddq_f32(upwards, vdupq_n_f32(first));
            const float32x4_t next = vaddq_f32(four, vdupq_n_f32(4));
            return vreinterpretq_u8_u16(high_halves(round_number(vmulq_f32(scale, four)),
                                                    round_number(vmulq_f32(scale, next))));
        };
        const uint8x16_t first = eight_from(0);
        const uint8x16_t second = eight_from(-8);
        low = vuzp1q_u8(first, second);
        high = vuzp2q_u8(first, second);
    }

    [[gnu::always_inline]] void sixteen(uint8x16_t codes, uint8_t* to) const {
        vst2q_u8(to, {{vqtbl1q_u8(low, codes), vqtbl1q_u8(high, codes)}});
    }
    [[gnu::always_inline]] void operator()(const uint8_t* from, uint8_t* to) const {
        const uint8x16_t pairs = load_16(from);
        const uint8x16_t even = vandq_u8(pairs, vdupq_n_u8(15));
        const uint8x16_t odd = vshrq_n_u8(pairs, 4);
        sixteen(vzip1q_u8(even, odd), to);
        sixteen(vzip2q_u8(even, odd), to + 32);
    }
};

template <int kBits>
struct WideDequantiser {
    Dequantiser<kBits> half;

    [[gnu::always_inline]] explicit WideDequantiser(float s) : half(s) {}

    [[gnu::always_inline]] void operator()(const uint8_t* from, Floats (&x)[2]) const {
        x[0] = half(from);
        x[1] = half(from + 2 * kBits);
    }
    [[gnu::always_inline]] static void in_order(Floats (&)[2]) {}
};

SLIMWIRE_LANES uint32_t sign_bits(Floats x) {
    return bits_of_masks(shift_right_signed<31>(as_words(x)));
}
SLIMWIRE_LANES float32x4_t flip_signs_4(float32x4_t x, uint32x4_t signs, int32x4_t places) {
    const uint32x4_t flip = vandq_u32(vshlq_u32(signs, places), vdupq_n_u32(0x80000000u));
    return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(x), flip));
}
SLIMWIRE_LANES Floats flip_signs(Floats x, uint32_t signs) {
    const uint32x4_t word = vdupq_n_u32(signs);
    return {flip_signs_4(x.q0, word, int32x4_t{31, 30, 29, 28}),
            flip_signs_4(x.q1, word, int32x4_t{27, 26, 25, 24}),
            flip_signs_4(x.q2, word, int32x4_t{23, 22, 21, 20}),
            flip_signs_4(x.q3, word, int32x4_t{19, 18, 17, 16})};
}

SLIMWIRE_LANES Words load_drawn(const uint8_t* from) {
    const uint8x16_t bytes = load_16(from);
    const uint8x16_t swapped = vrev16q_u8(bytes);
    const Words drawn = words_of_halves(vreinterpretq_u16_u8(vzip1q_u8(swapped, bytes)),
                                        vreinterpretq_u16_u8(vzip2q_u8(swapped, bytes)));
    return bit_or(shift_left<1>(drawn), broadcast_bits(1));
}
