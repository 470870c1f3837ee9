// Codes of block integers on AVX-512: quantising, packing, and back to values. The same functions
// as lanes_scalar_codes.h, which says what each one means. Included by lanes.h after
// lanes_avx512.h.

SLIMWIRE_LANES Words quantise(Floats p, Floats inverse) {
    return as_words({_mm512_fmadd_ps(p.v, inverse.v, _mm512_set1_ps(kRoundingMagic))});
}

template <int kBits>
SLIMWIRE_LANES Words quantise_stochastic(Floats p, Floats inverse, Words random) {
    const Floats sum = {_mm512_fmadd_ps(p.v, inverse.v, _mm512_set1_ps(kStochasticMagic))};
    const __m512i moved = _mm512_add_epi32(
        as_words(sum).v,
        _mm512_sub_epi32(random.v, _mm512_set1_epi32(static_cast<int>(kStochasticMagicBits))));
    const __m512i code = _mm512_srai_epi32(moved, 8);
    const __m512i low = _mm512_min_epi32(code, _mm512_set1_epi32(largest_code(kBits)));
    return {_mm512_add_epi32(_mm512_max_epi32(low, _mm512_set1_epi32(-largest_code(kBits))),
                             _mm512_set1_epi32(static_cast<int>(kRoundingMagicBits)))};
}

SLIMWIRE_LANES Words quantise_fixed(Floats p, Floats inverse) {
    return as_words({_mm512_fmadd_ps(p.v, inverse.v, _mm512_set1_ps(kStochasticMagic))});
}

template <int kBits>
SLIMWIRE_LANES void pack(Words codes, uint8_t* to) {
    if constexpr (kBits == 8) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(codes.v));
    } else {
        // Two neighbouring codes meet in the low byte of each 64-bit lane.
        const __m512i one = _mm512_and_si512(codes.v, _mm512_set1_epi32((1 << kBits) - 1));
        const __m512i pair = _mm512_or_si512(one, _mm512_srli_epi64(one, 32 - kBits));
        const __m128i bytes = _mm512_cvtepi64_epi8(pair);
        if constexpr (kBits == 4) {
            _mm_storel_epi64(reinterpret_cast<__m128i*>(to), bytes);
        } else {
            const uint64_t wide = static_cast<uint64_t>(_mm_cvtsi128_si64(bytes));
            const uint32_t packed = static_cast<uint32_t>(_pext_u64(wide, 0x0F0F0F0F0F0F0F0Full));
            __builtin_memcpy(to, &packed, 4);
        }
    }
}

// Byte 0 of each lane of two.
SLIMWIRE_LANES void store_low_bytes(__m512i a, __m512i b, uint8_t* to) {
    const __m256i low_bytes =
        _mm256_set_epi8(124, 120, 116, 112, 108, 104, 100, 96, 92, 88, 84, 80, 76, 72, 68, 64, 60,
                        56, 52, 48, 44, 40, 36, 32, 28, 24, 20, 16, 12, 8, 4, 0);
    const __m512i bytes = _mm512_permutex2var_epi8(a, _mm512_castsi256_si512(low_bytes), b);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(bytes));
}
// Bits of `yes` where the mask has ones, else of `no`.
SLIMWIRE_LANES __m512i merge_bits(uint32_t mask, __m512i yes, __m512i no) {
    return _mm512_ternarylogic_epi32(yes, no, _mm512_set1_epi32(static_cast<int>(mask)), 0xE4);
}
template <int kBits>
SLIMWIRE_LANES void pack_32(Words even, Words odd, uint8_t* to) {
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i second =
        _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    pack<kBits>({_mm512_permutex2var_epi32(even.v, first, odd.v)}, to);
    pack<kBits>({_mm512_permutex2var_epi32(even.v, second, odd.v)}, to + 2 * kBits);
}
template <int kBits>
SLIMWIRE_LANES void pack_pairs(const Words (&even)[2], const Words (&odd)[2], uint8_t* to) {
    if constexpr (kBits == 8) {
        const __m512i low_halves =
            _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28,
                             26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
        const __m512i a = merge_bits(0xFF, even[0].v, shift_left<8>(odd[0]).v);
        const __m512i b = merge_bits(0xFF, even[1].v, shift_left<8>(odd[1]).v);
        _mm512_storeu_si512(to, _mm512_permutex2var_epi16(a, low_halves, b));
    } else if constexpr (kBits == 4) {
        store_low_bytes(merge_bits(0xF, even[0].v, shift_left<4>(odd[0]).v),
                        merge_bits(0xF, even[1].v, shift_left<4>(odd[1]).v), to);
    } else {
        pack_32<kBits>(even[0], odd[0], to);
        pack_32<kBits>(even[1], odd[1], to + 4 * kBits);
    }
}
// Packs codes of four bits, one in each byte.
SLIMWIRE_LANES void pack_nibbles(__m512i bytes, uint8_t* to) {
    const __m512i pairs = merge_bits(0x000F000F, bytes, _mm512_srli_epi16(bytes, 4));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi16_epi8(pairs));
}
template <int kBits>
SLIMWIRE_LANES void pack_sums(const Words (&sums)[2], uint8_t* to) {
    if constexpr (kBits == 8 || kBits == 4) {
        const __m512i high_bytes =
            _mm512_set_epi8(127, 125, 123, 121, 119, 117, 115, 113, 111, 109, 107, 105, 103, 101,
                            99, 97, 95, 93, 91, 89, 87, 85, 83, 81, 79, 77, 75, 73, 71, 69, 67, 65,
                            63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29,
                            27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
        const __m512i codes = _mm512_permutex2var_epi8(sums[0].v, high_bytes, sums[1].v);
        if constexpr (kBits == 8) {
            _mm512_storeu_si512(to, codes);
        } else {
            pack_nibbles(codes, to);
        }
    } else {
        pack_32<kBits>(shift_right<8>(sums[0]), shift_right<24>(sums[0]), to);
        pack_32<kBits>(shift_right<8>(sums[1]), shift_right<24>(sums[1]), to + 4 * kBits);
    }
}

// Byte 0 of each lane of four.
SLIMWIRE_LANES __m512i low_bytes(const Words (&x)[4]) {
    const __m512i from = _mm512_set_epi8(
        124, 120, 116, 112, 108, 104, 100, 96, 92, 88, 84, 80, 76, 72, 68, 64, 60, 56, 52, 48, 44,
        40, 36, 32, 28, 24, 20, 16, 12, 8, 4, 0, 124, 120, 116, 112, 108, 104, 100, 96, 92, 88, 84,
        80, 76, 72, 68, 64, 60, 56, 52, 48, 44, 40, 36, 32, 28, 24, 20, 16, 12, 8, 4, 0);
    const __m512i low = _mm512_permutex2var_epi8(x[0].v, from, x[1].v);
    const __m512i high = _mm512_permutex2var_epi8(x[2].v, from, x[3].v);
    return _mm512_mask_mov_epi64(low, 0xF0, high);
}
template <int kBits>
SLIMWIRE_LANES void pack_64(const Words (&codes)[4], uint8_t* to) {
    if constexpr (kBits == 8) {
        _mm512_storeu_si512(to, low_bytes(codes));
    } else if constexpr (kBits == 4) {
        pack_nibbles(low_bytes(codes), to);
    } else {
        for (int i = 0; i < 4; ++i) {
            pack<kBits>(codes[i], to + 2 * kBits * i);
        }
    }
}

// Codes below eight bits look their product up by their low four bits.
template <int kBits>
struct CodeValues {
    __m512 scale;

    [[gnu::always_inline]] explicit CodeValues(float s) : scale(_mm512_set1_ps(s)) {
        if constexpr (kBits <= 4) {
            scale = _mm512_mul_ps(
                scale, _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1));
        }
    }

    [[gnu::always_inline]] Floats operator()(Words quantised) const {
        if constexpr (kBits <= 4) {
            return {_mm512_permutexvar_ps(quantised.v, scale)};
        } else {
            return multiply(subtract(as_floats(quantised), broadcast(kRoundingMagic)), {scale});
        }
    }
};

// code * scale for every code of a block; codes below 8 bits look their product up.
template <int kBits>
struct Dequantiser {
    __m512 scale;

    [[gnu::always_inline]] explicit Dequantiser(float s) : scale(_mm512_set1_ps(s)) {
        if constexpr (kBits == 4) {
            scale = _mm512_mul_ps(
                scale, _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1));
        } else if constexpr (kBits == 2) {
            scale = _mm512_mul_ps(
                scale, _mm512_setr_ps(0, 1, -2, -1, 0, 1, -2, -1, 0, 1, -2, -1, 0, 1, -2, -1));
        }
    }

    [[gnu::always_inline]] Floats operator()(const uint8_t* from) const {
        if constexpr (kBits == 8) {
            const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
            return {_mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), scale)};
        } else if constexpr (kBits == 4) {
            // 64-bit lane k holds the codes 2k (low half) and 2k+1 (high half) in its low bits.
            int64_t bits;
            __builtin_memcpy(&bits, from, 8);
            const __m512i even = _mm512_srlv_epi64(_mm512_set1_epi64(bits),
                                                   _mm512_setr_epi64(0, 8, 16, 24, 32, 40, 48, 56));
            const __m512i index = _mm512_mask_mov_epi32(even, 0xAAAA, _mm512_slli_epi64(even, 28));
            return {_mm512_permutexvar_ps(index, scale)};
        } else {
            int32_t bits;
            __builtin_memcpy(&bits, from, 4);
            const __m512i index = _mm512_srlv_epi32(
                _mm512_set1_epi32(bits),
                _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30));
            return {_mm512_permutexvar_ps(index, scale)};
        }
    }
};

// Finite x rounded to bf16 in the high half of each lane, with rubbish below.
SLIMWIRE_LANES __m512i round_high_half(__m512 x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
}

// Finite even and odd elements rounded to pairs of bf16: up where the lower half is above a tie, or
// is a tie and the upper half odd.
SLIMWIRE_LANES __m512i round_pairs(__m512i even, __m512i odd) {
    const __m512i lower_halves =
        _mm512_set_epi16(62, 30, 60, 28, 58, 26, 56, 24, 54, 22, 52, 20, 50, 18, 48, 16, 46, 14, 44,
                         12, 42, 10, 40, 8, 38, 6, 36, 4, 34, 2, 32, 0);
    const __m512i upper_halves =
        _mm512_set_epi16(63, 31, 61, 29, 59, 27, 57, 25, 55, 23, 53, 21, 51, 19, 49, 17, 47, 15, 45,
                         13, 43, 11, 41, 9, 39, 7, 37, 5, 35, 3, 33, 1);
    const __m512i lower = _mm512_permutex2var_epi16(even, lower_halves, odd);
    const __m512i upper = _mm512_permutex2var_epi16(even, upper_halves, odd);
    // lower | (upper & 1)
    const __m512i cut = _mm512_ternarylogic_epi32(lower, upper, _mm512_set1_epi16(1), 0xF8);
    const __mmask32 up = _mm512_cmpgt_epu16_mask(cut, _mm512_set1_epi16(-0x8000));
    return _mm512_mask_sub_epi16(upper, up, upper, _mm512_set1_epi16(-1));
}

template <int kBits>
struct PairDequantiser {
    Dequantiser<kBits> half;

    [[gnu::always_inline]] static bool takes(uint32_t) { return true; }

    [[gnu::always_inline]] explicit PairDequantiser(float s) : half(s) {}

    [[gnu::always_inline]] void operator()(const uint8_t* from, uint8_t* to) const {
        store_bfloat16(to, half(from));
        store_bfloat16(to + 32, half(from + 2 * kBits));
    }
};

// Codes stand in the high byte of a lane, 2^24 times as large.
template <>
struct PairDequantiser<8> {
    __m512 scale;

    // Scales whose part is a normal number.
    [[gnu::always_inline]] static bool takes(uint32_t scale_bits) {
        return (scale_bits & kMagnitudeMask) >= 32u << 23;
    }
    [[gnu::always_inline]] explicit PairDequantiser(float s)
        : scale(_mm512_set1_ps(s * 0x1p-24f)) {}
    // Byte 2k + odd of `bytes` to the top of lane k.
    [[gnu::always_inline]] static __m512i place(__m512i bytes, int odd) {
        const __m512i from = _mm512_add_epi32(
            _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
            _mm512_set1_epi32(odd));
        return _mm512_maskz_permutexvar_epi8(0x8888888888888888ull, _mm512_slli_epi32(from, 24),
                                             bytes);
    }

    [[gnu::always_inline]] void operator()(const uint8_t* from, uint8_t* to) const {
        const __m512i bytes =
            _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
        const __m512i even = place(bytes, 0);
        const __m512i odd = place(bytes, 1);
        const __m512i low = _mm512_castps_si512(_mm512_mul_ps(_mm512_cvtepi32_ps(even), scale));
        const __m512i high = _mm512_castps_si512(_mm512_mul_ps(_mm512_cvtepi32_ps(odd), scale));
        _mm512_storeu_si512(to, round_pairs(low, high));
    }
};

// The sixteen values as bf16, twice, since a lane of an index counts with five bits.
template <>
struct PairDequantiser<4> {
    __m512i values;

    [[gnu::always_inline]] static bool takes(uint32_t) { return true; }

    [[gnu::always_inline]] explicit PairDequantiser(float s) {
        const __m512i rounded = round_high_half(Dequantiser<4>(s).scale);
        values = _mm512_broadcast_i64x4(_mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
    }

    [[gnu::always_inline]] void operator()(const uint8_t* from, uint8_t* to) const {
        const __m512i bytes =
            _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
        const __m512i index = _mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 12));
        _mm512_storeu_si512(to, _mm512_permutexvar_epi16(index, values));
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

// Even codes, then odd ones: a lookup counts with the low four bits of a lane.
template <>
struct WideDequantiser<4> {
    __m512 values;

    [[gnu::always_inline]] explicit WideDequantiser(float s) : values(Dequantiser<4>(s).scale) {}

    [[gnu::always_inline]] void operator()(const uint8_t* from, Floats (&x)[2]) const {
        const __m512i pairs =
            _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
        x[0] = {_mm512_permutexvar_ps(pairs, values)};
        x[1] = {_mm512_permutexvar_ps(_mm512_srli_epi32(pairs, 4), values)};
    }
    [[gnu::always_inline]] static void in_order(Floats (&x)[2]) {
        const __m512i first =
            _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        const __m512i second =
            _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        const __m512 even = x[0].v;
        x[0] = {_mm512_permutex2var_ps(even, first, x[1].v)};
        x[1] = {_mm512_permutex2var_ps(even, second, x[1].v)};
    }
};
