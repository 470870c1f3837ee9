// Codes of block integers on AVX2: quantising, packing, and back to values. The
// same functions as lanes_scalar_codes.h, which says what each one means.
// Included by lanes.h after lanes_avx2.h.

SLIMWIRE_LANES Words quantise(Floats p, Floats inverse) {
    const __m256 magic = _mm256_set1_ps(kRoundingMagic);
    return as_words(
        {_mm256_fmadd_ps(p.lo, inverse.lo, magic), _mm256_fmadd_ps(p.hi, inverse.hi, magic)});
}

template <int kBits>
SLIMWIRE_LANES __m256i quantise_stochastic_8(__m256 p, __m256 inverse, __m256i random) {
    const __m256 sum = _mm256_fmadd_ps(p, inverse, _mm256_set1_ps(kStochasticMagic));
    const __m256i fixed = _mm256_sub_epi32(
        _mm256_castps_si256(sum), _mm256_set1_epi32(static_cast<int>(kStochasticMagicBits)));
    const __m256i code = _mm256_srai_epi32(_mm256_add_epi32(fixed, random), 8);
    const __m256i low = _mm256_min_epi32(code, _mm256_set1_epi32(largest_code(kBits)));
    return _mm256_add_epi32(_mm256_max_epi32(low, _mm256_set1_epi32(-largest_code(kBits))),
                            _mm256_set1_epi32(static_cast<int>(kRoundingMagicBits)));
}
template <int kBits>
SLIMWIRE_LANES Words quantise_stochastic(Floats p, Floats inverse, Words random) {
    return {quantise_stochastic_8<kBits>(p.lo, inverse.lo, random.lo),
            quantise_stochastic_8<kBits>(p.hi, inverse.hi, random.hi)};
}

SLIMWIRE_LANES Words quantise_fixed(Floats p, Floats inverse) {
    const __m256 magic = _mm256_set1_ps(kStochasticMagic);
    return as_words(
        {_mm256_fmadd_ps(p.lo, inverse.lo, magic), _mm256_fmadd_ps(p.hi, inverse.hi, magic)});
}

template <int kBits>
SLIMWIRE_LANES void pack(Words codes, uint8_t* to) {
    const Words low = bit_and(codes, broadcast_bits((1u << kBits) - 1));
    const __m256i words = narrow(low.lo, low.hi);
    const __m128i bytes =
        _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    if constexpr (kBits == 8) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
    } else if constexpr (kBits == 4) {
        const __m128i pairs = _mm_maddubs_epi16(bytes, _mm_set1_epi16(0x1001));
        _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(pairs, pairs));
    } else if constexpr (kBits == 6) {
        // Pairs of twelve bits, then fours of 24, whose three bytes move together.
        const __m128i pairs = _mm_maddubs_epi16(bytes, _mm_set1_epi16(0x4001));
        const __m128i fours = _mm_madd_epi16(pairs, _mm_set1_epi32(0x10000001));
        const __m128i packed = _mm_shuffle_epi8(
            fours, _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
        _mm_storel_epi64(reinterpret_cast<__m128i*>(to), packed);
        const int last = _mm_extract_epi32(packed, 2);
        __builtin_memcpy(to + 8, &last, 4);
    } else {
        const __m128i pairs = _mm_maddubs_epi16(bytes, _mm_set1_epi16(0x0401));
        const __m128i fours = _mm_madd_epi16(pairs, _mm_set1_epi32(0x00100001));
        const __m128i short4 = _mm_packs_epi32(fours, fours);
        const int packed = _mm_cvtsi128_si32(_mm_packus_epi16(short4, short4));
        __builtin_memcpy(to, &packed, 4);
    }
}

SLIMWIRE_LANES __m256i unpack_nibbles(uint32_t word) {
    const __m256i by = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    const __m256i words = _mm256_set1_epi32(static_cast<int>(word));
    return _mm256_and_si256(_mm256_srlv_epi32(words, by), _mm256_set1_epi32(15));
}
template <int kBits>
SLIMWIRE_LANES Words unpack(const uint8_t* from) {
    if constexpr (kBits == 8) {
        return load_bytes(from);
    } else {
        static_assert(kBits == 4);
        uint32_t w[2];
        __builtin_memcpy(w, from, 8);
        return {unpack_nibbles(w[0]), unpack_nibbles(w[1])};
    }
}

template <int kBits>
SLIMWIRE_LANES void pack_32(Words even, Words odd, uint8_t* to) {
    if constexpr (kBits == 8 || kBits == 4) {
        const Words mask = broadcast_bits((1u << kBits) - 1);
        const Words pairs = bit_or(bit_and(even, mask), shift_left<kBits>(bit_and(odd, mask)));
        const __m256i words = narrow(pairs.lo, pairs.hi);
        if constexpr (kBits == 8) {
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), words);
        } else {
            _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                             _mm_packus_epi16(_mm256_castsi256_si128(words),
                                              _mm256_extracti128_si256(words, 1)));
        }
    } else {
        const __m256i low_lo = _mm256_unpacklo_epi32(even.lo, odd.lo);
        const __m256i high_lo = _mm256_unpackhi_epi32(even.lo, odd.lo);
        const __m256i low_hi = _mm256_unpacklo_epi32(even.hi, odd.hi);
        const __m256i high_hi = _mm256_unpackhi_epi32(even.hi, odd.hi);
        pack<kBits>({_mm256_permute2x128_si256(low_lo, high_lo, 0x20),
                     _mm256_permute2x128_si256(low_lo, high_lo, 0x31)},
                    to);
        pack<kBits>({_mm256_permute2x128_si256(low_hi, high_hi, 0x20),
                     _mm256_permute2x128_si256(low_hi, high_hi, 0x31)},
                    to + 2 * kBits);
    }
}

template <int kBits>
SLIMWIRE_LANES void pack_pairs(const Words (&even)[2], const Words (&odd)[2], uint8_t* to) {
    pack_32<kBits>(even[0], odd[0], to);
    pack_32<kBits>(even[1], odd[1], to + 4 * kBits);
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
    __m256 scale;

    [[gnu::always_inline]] explicit Dequantiser(float s) : scale(_mm256_set1_ps(s)) {}

    // Eight codes from one 32-bit word, shifted up to the sign bit and down
    // again.
    [[gnu::always_inline]] __m256 eight(int word, __m256i shifts) const {
        const __m256i moved = _mm256_srlv_epi32(_mm256_set1_epi32(word), shifts);
        const __m256i codes = _mm256_srai_epi32(_mm256_slli_epi32(moved, 32 - kBits), 32 - kBits);
        return _mm256_mul_ps(_mm256_cvtepi32_ps(codes), scale);
    }

    // Eight codes of six bits: each half-register takes the three bytes that its
    // word names.
    [[gnu::always_inline]] __m256 fours(__m256i bytes, int first, int second) const {
        const __m256i words = _mm256_shuffle_epi8(
            bytes, _mm256_setr_epi32(first, first, first, first, second, second, second, second));
        const __m256i up =
            _mm256_sllv_epi32(words, _mm256_setr_epi32(26, 20, 14, 8, 26, 20, 14, 8));
        return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srai_epi32(up, 26)), scale);
    }

    [[gnu::always_inline]] Floats operator()(const uint8_t* from) const {
        if constexpr (kBits == 8) {
            const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
            return {_mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), scale),
                    _mm256_mul_ps(
                        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))), scale)};
        } else if constexpr (kBits == 4) {
            int word[2];
            __builtin_memcpy(word, from, 8);
            const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
            return {eight(word[0], shifts), eight(word[1], shifts)};
        } else if constexpr (kBits == 6) {
            int last;
            __builtin_memcpy(&last, from + 8, 4);
            const __m256i bytes = _mm256_broadcastsi128_si256(
                _mm_insert_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)), last, 2));
            return {fours(bytes, 0x00020100, 0x00050403), fours(bytes, 0x00080706, 0x000B0A09)};
        } else {
            int word;
            __builtin_memcpy(&word, from, 4);
            return {eight(word, _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14)),
                    eight(word, _mm256_setr_epi32(16, 18, 20, 22, 24, 26, 28, 30))};
        }
    }
};

// Finite or infinite x rounded to bf16 in the low half of each lane.
SLIMWIRE_LANES __m256i round_number(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
    return _mm256_srli_epi32(up, 16);
}

template <int kBits>
struct PairDequantiser {
    Dequantiser<kBits> half;

    [[gnu::always_inline]] static bool takes(uint32_t) { return true; }

    [[gnu::always_inline]] explicit PairDequantiser(float s) : half(s) {}

    [[gnu::always_inline]] void operator()(const uint8_t* from, uint8_t* to) const {
        for (int i = 0; i < 2; ++i) {
            const Floats x = half(from + i * 2 * kBits);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to) + i,
                                narrow(round_number(x.lo), round_number(x.hi)));
        }
    }
};

// The sixteen values as bf16: their low bytes and their high ones, in both
// halves of a register.
template <>
struct PairDequantiser<4> {
    __m256i low, high;

    [[gnu::always_inline]] static bool takes(uint32_t) { return true; }

    [[gnu::always_inline]] explicit PairDequantiser(float s) {
        const __m256 scale = _mm256_set1_ps(s);
        const __m256i values = narrow(
            round_number(_mm256_mul_ps(scale, _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7))),
            round_number(_mm256_mul_ps(scale, _mm256_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1))));
        const __m256i bytes = _mm256_packus_epi16(_mm256_and_si256(values, _mm256_set1_epi16(0xFF)),
                                                  _mm256_srli_epi16(values, 8));
        // Quarters: low bytes of 0..7, high ones, low bytes of 8..15, high ones.
        low = _mm256_permute4x64_epi64(bytes, 0x88);
        high = _mm256_permute4x64_epi64(bytes, 0xDD);
    }

    [[gnu::always_inline]] void operator()(const uint8_t* from, uint8_t* to) const {
        const __m256i pairs =
            _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
        const __m256i index = _mm256_and_si256(_mm256_or_si256(pairs, _mm256_slli_epi16(pairs, 4)),
                                               _mm256_set1_epi8(15));
        const __m256i low_bytes = _mm256_shuffle_epi8(low, index);
        const __m256i high_bytes = _mm256_shuffle_epi8(high, index);
        const __m256i first = _mm256_unpacklo_epi8(low_bytes, high_bytes);
        const __m256i second = _mm256_unpackhi_epi8(low_bytes, high_bytes);
        __m256i* words = reinterpret_cast<__m256i*>(to);
        _mm256_storeu_si256(words, _mm256_permute2x128_si256(first, second, 0x20));
        _mm256_storeu_si256(words + 1, _mm256_permute2x128_si256(first, second, 0x31));
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
    return static_cast<uint32_t>(_mm256_movemask_ps(x.lo) | _mm256_movemask_ps(x.hi) << 8);
}
SLIMWIRE_LANES __m256 flip_signs_8(__m256 x, __m256i signs, __m256i places) {
    const __m256i flip = _mm256_and_si256(_mm256_sllv_epi32(signs, places),
                                          _mm256_set1_epi32(static_cast<int>(0x80000000u)));
    return _mm256_xor_ps(x, _mm256_castsi256_ps(flip));
}
SLIMWIRE_LANES Floats flip_signs(Floats x, uint32_t signs) {
    const __m256i word = _mm256_set1_epi32(static_cast<int>(signs));
    return {flip_signs_8(x.lo, word, _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24)),
            flip_signs_8(x.hi, word, _mm256_setr_epi32(23, 22, 21, 20, 19, 18, 17, 16))};
}

SLIMWIRE_LANES Words load_drawn(const uint8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m128i swapped = _mm_or_si128(_mm_slli_epi16(bytes, 8), _mm_srli_epi16(bytes, 8));
    const Words drawn = {_mm256_cvtepu16_epi32(_mm_unpacklo_epi8(swapped, bytes)),
                         _mm256_cvtepu16_epi32(_mm_unpackhi_epi8(swapped, bytes))};
    return add(add(drawn, drawn), broadcast_bits(1));
}
