// Sixteen fp32 lanes on AVX2, FMA and F16C, as two registers. The same functions as lanes_scalar.h,
// which says what each one means.

#define SLIMWIRE_LANES [[gnu::always_inline]] static inline

constexpr bool kManyRegisters = false;

struct Floats {
    __m256 lo, hi;
};
struct Words {
    __m256i lo, hi;
};

SLIMWIRE_LANES Floats broadcast(float x) {
    return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
SLIMWIRE_LANES Words broadcast_bits(uint32_t x) {
    return {_mm256_set1_epi32(static_cast<int>(x)), _mm256_set1_epi32(static_cast<int>(x))};
}
SLIMWIRE_LANES Floats as_floats(Words x) {
    return {_mm256_castsi256_ps(x.lo), _mm256_castsi256_ps(x.hi)};
}
SLIMWIRE_LANES Words as_words(Floats x) {
    return {_mm256_castps_si256(x.lo), _mm256_castps_si256(x.hi)};
}

SLIMWIRE_LANES __m128i load_half(const void* from, int half) {
    return _mm_loadu_si128(static_cast<const __m128i*>(from) + half);
}
SLIMWIRE_LANES Floats load_float32(const void* from) {
    const float* p = static_cast<const float*>(from);
    return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
SLIMWIRE_LANES Words load_words(const void* from) {
    const __m256i* p = static_cast<const __m256i*>(from);
    return {_mm256_loadu_si256(p), _mm256_loadu_si256(p + 1)};
}
SLIMWIRE_LANES Floats load_bfloat16(const void* from) {
    return as_floats({_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_half(from, 0)), 16),
                      _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_half(from, 1)), 16)});
}
SLIMWIRE_LANES Floats load_float16(const void* from) {
    return {_mm256_cvtph_ps(load_half(from, 0)), _mm256_cvtph_ps(load_half(from, 1))};
}

SLIMWIRE_LANES void store_float32(void* to, Floats x) {
    float* p = static_cast<float*>(to);
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
}
SLIMWIRE_LANES void store_words(void* to, Words x) {
    __m256i* p = static_cast<__m256i*>(to);
    _mm256_storeu_si256(p, x.lo);
    _mm256_storeu_si256(p + 1, x.hi);
}

SLIMWIRE_LANES __m256i is_nan(__m256 x) {
    return _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
// Sixteen 16-bit values from the low halves of 32-bit lanes, all of which fit.
SLIMWIRE_LANES __m256i narrow(__m256i lo, __m256i hi) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(lo, hi), 0xD8);
}
SLIMWIRE_LANES __m256i round_bfloat16(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7FFF));
    return _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), _mm256_set1_epi32(kNanBfloat16),
                              is_nan(x));
}
SLIMWIRE_LANES void store_bfloat16(void* to, Floats x) {
    _mm256_storeu_si256(static_cast<__m256i*>(to),
                        narrow(round_bfloat16(x.lo), round_bfloat16(x.hi)));
}
SLIMWIRE_LANES void store_float16(void* to, Floats x) {
    constexpr int kRounding = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    const __m256i half =
        _mm256_set_m128i(_mm256_cvtps_ph(x.hi, kRounding), _mm256_cvtps_ph(x.lo, kRounding));
    const __m256i nan =
        _mm256_permute4x64_epi64(_mm256_packs_epi32(is_nan(x.lo), is_nan(x.hi)), 0xD8);
    _mm256_storeu_si256(static_cast<__m256i*>(to),
                        _mm256_blendv_epi8(half, _mm256_set1_epi16(kNanFloat16), nan));
}

#define SLIMWIRE_LANEWISE(Type, name, instruction)                 \
    SLIMWIRE_LANES Type name(Type a, Type b) {                     \
        return {instruction(a.lo, b.lo), instruction(a.hi, b.hi)}; \
    }
SLIMWIRE_LANEWISE(Floats, add, _mm256_add_ps)
SLIMWIRE_LANEWISE(Floats, subtract, _mm256_sub_ps)
SLIMWIRE_LANEWISE(Floats, multiply, _mm256_mul_ps)
SLIMWIRE_LANEWISE(Floats, divide, _mm256_div_ps)
SLIMWIRE_LANEWISE(Words, add, _mm256_add_epi32)
SLIMWIRE_LANEWISE(Words, subtract, _mm256_sub_epi32)
SLIMWIRE_LANEWISE(Words, bit_and, _mm256_and_si256)
SLIMWIRE_LANEWISE(Words, bit_or, _mm256_or_si256)
SLIMWIRE_LANEWISE(Words, bit_xor, _mm256_xor_si256)
SLIMWIRE_LANEWISE(Words, minimum, _mm256_min_epu32)
SLIMWIRE_LANEWISE(Words, maximum, _mm256_max_epu32)
SLIMWIRE_LANEWISE(Words, maximum_halves, _mm256_max_epu16)
SLIMWIRE_LANEWISE(Words, add_halves, _mm256_add_epi16)
#undef SLIMWIRE_LANEWISE

SLIMWIRE_LANES Floats multiply_add(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
SLIMWIRE_LANES float sum_of_eight(__m256 x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
SLIMWIRE_LANES float sum_of_halves(Floats x) {
    return sum_of_eight(_mm256_add_ps(x.lo, x.hi));
}
SLIMWIRE_LANES void four_sums_of_halves(const Floats* x, float* to) {
    for (int i = 0; i < 4; ++i) {
        to[i] = sum_of_halves(x[i]);
    }
}
SLIMWIRE_LANES Floats canonical(Floats x) {
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(kNanFloat32));
    return {_mm256_blendv_ps(x.lo, nan, _mm256_castsi256_ps(is_nan(x.lo))),
            _mm256_blendv_ps(x.hi, nan, _mm256_castsi256_ps(is_nan(x.hi)))};
}

template <int kBy>
SLIMWIRE_LANES Words shift_left(Words x) {
    return {_mm256_slli_epi32(x.lo, kBy), _mm256_slli_epi32(x.hi, kBy)};
}
template <int kBy>
SLIMWIRE_LANES Words shift_right(Words x) {
    return {_mm256_srli_epi32(x.lo, kBy), _mm256_srli_epi32(x.hi, kBy)};
}
template <int kBy>
SLIMWIRE_LANES Words shift_right_signed(Words x) {
    return {_mm256_srai_epi32(x.lo, kBy), _mm256_srai_epi32(x.hi, kBy)};
}
template <int kBy>
SLIMWIRE_LANES Words rotate_left(Words x) {
    return bit_or(shift_left<kBy>(x), shift_right<32 - kBy>(x));
}
SLIMWIRE_LANES Words truncate(Floats x) {
    return {_mm256_cvttps_epi32(x.lo), _mm256_cvttps_epi32(x.hi)};
}
SLIMWIRE_LANES Words lane_numbers() {
    return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
            _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}
SLIMWIRE_LANES Words load_bytes(const uint8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
}
SLIMWIRE_LANES void store_interleaved(uint8_t* to, __m256i a, __m256i b, __m256i c, __m256i d) {
    const __m256i ab_low = _mm256_unpacklo_epi32(a, b);
    const __m256i ab_high = _mm256_unpackhi_epi32(a, b);
    const __m256i cd_low = _mm256_unpacklo_epi32(c, d);
    const __m256i cd_high = _mm256_unpackhi_epi32(c, d);
    // Part k holds, in 128-bit lane q, what belongs to lane 4q + k.
    const __m256i part[4] = {
        _mm256_unpacklo_epi64(ab_low, cd_low), _mm256_unpackhi_epi64(ab_low, cd_low),
        _mm256_unpacklo_epi64(ab_high, cd_high), _mm256_unpackhi_epi64(ab_high, cd_high)};
    __m256i* words = reinterpret_cast<__m256i*>(to);
    _mm256_storeu_si256(words, _mm256_permute2x128_si256(part[0], part[1], 0x20));
    _mm256_storeu_si256(words + 1, _mm256_permute2x128_si256(part[2], part[3], 0x20));
    _mm256_storeu_si256(words + 2, _mm256_permute2x128_si256(part[0], part[1], 0x31));
    _mm256_storeu_si256(words + 3, _mm256_permute2x128_si256(part[2], part[3], 0x31));
}
SLIMWIRE_LANES void store_interleaved(uint8_t* to, Words a, Words b, Words c, Words d) {
    store_interleaved(to, a.lo, b.lo, c.lo, d.lo);
    store_interleaved(to + 128, a.hi, b.hi, c.hi, d.hi);
}
SLIMWIRE_LANES uint32_t largest(Words x) {
    const __m256i m8 = _mm256_max_epu32(x.lo, x.hi);
    const __m128i m4 = _mm_max_epu32(_mm256_castsi256_si128(m8), _mm256_extracti128_si256(m8, 1));
    const __m128i m2 = _mm_max_epu32(m4, _mm_shuffle_epi32(m4, 0x4E));
    const __m128i m1 = _mm_max_epu32(m2, _mm_shuffle_epi32(m2, 0xB1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(m1));
}
SLIMWIRE_LANES __m256i select_at_least_8(__m256i x, __m256i limit, __m256i yes, __m256i no) {
    const __m256i mask = _mm256_cmpeq_epi32(_mm256_max_epu32(x, limit), x);
    return _mm256_blendv_epi8(no, yes, mask);
}
SLIMWIRE_LANES Words select_at_least(Words x, uint32_t limit, Words yes, Words no) {
    const __m256i l = _mm256_set1_epi32(static_cast<int>(limit));
    return {select_at_least_8(x.lo, l, yes.lo, no.lo), select_at_least_8(x.hi, l, yes.hi, no.hi)};
}

// The upper lanes are negated by the multiplication, which is exact.
template <int kStride>
SLIMWIRE_LANES __m256 butterfly_8(__m256 x) {
    if constexpr (kStride == 1) {
        return _mm256_fmadd_ps(x, _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1),
                               _mm256_permute_ps(x, 0xB1));
    } else if constexpr (kStride == 2) {
        return _mm256_fmadd_ps(x, _mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1),
                               _mm256_permute_ps(x, 0x4E));
    } else {
        return _mm256_fmadd_ps(x, _mm256_setr_ps(1, 1, 1, 1, -1, -1, -1, -1),
                               _mm256_permute2f128_ps(x, x, 1));
    }
}
template <int kStride>
SLIMWIRE_LANES Floats butterfly(Floats x) {
    if constexpr (kStride == 8) {
        return {_mm256_add_ps(x.lo, x.hi), _mm256_sub_ps(x.lo, x.hi)};
    } else {
        return {butterfly_8<kStride>(x.lo), butterfly_8<kStride>(x.hi)};
    }
}

SLIMWIRE_LANES uint32_t equal_lanes(Words x, uint32_t value) {
    const __m256i v = _mm256_set1_epi32(static_cast<int>(value));
    const int lo = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(x.lo, v)));
    const int hi = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(x.hi, v)));
    return static_cast<uint32_t>(lo | hi << 8);
}

SLIMWIRE_LANES Words join_halves(Words low, Words high) {
    const Words up = shift_left<16>(high);
    return {_mm256_blend_epi16(low.lo, up.lo, 0xAA), _mm256_blend_epi16(low.hi, up.hi, 0xAA)};
}
SLIMWIRE_LANES Words load_bytes_to_halves(const uint8_t* from) {
    return {_mm256_cvtepu8_epi16(load_half(from, 0)), _mm256_cvtepu8_epi16(load_half(from, 1))};
}

// Lanes of eight, halved two at a time; at the end lane i belongs to x[i].
SLIMWIRE_LANES __m256i largest_of_eight(const Words* x) {
    __m256i four[2];
    for (int i = 0; i < 2; ++i) {
        __m256i two[2];
        for (int k = 0; k < 2; ++k) {
            const Words a = x[4 * i + 2 * k];
            const Words b = x[4 * i + 2 * k + 1];
            const __m256i most_a = _mm256_max_epu32(a.lo, a.hi);
            const __m256i most_b = _mm256_max_epu32(b.lo, b.hi);
            two[k] = _mm256_max_epu32(_mm256_unpacklo_epi32(most_a, most_b),
                                      _mm256_unpackhi_epi32(most_a, most_b));
        }
        four[i] = _mm256_max_epu32(_mm256_unpacklo_epi64(two[0], two[1]),
                                   _mm256_unpackhi_epi64(two[0], two[1]));
    }
    return _mm256_max_epu32(_mm256_permute2x128_si256(four[0], four[1], 0x20),
                            _mm256_permute2x128_si256(four[0], four[1], 0x31));
}
SLIMWIRE_LANES Words largest_of_each(const Words (&x)[16]) {
    return {largest_of_eight(x), largest_of_eight(x + 8)};
}
SLIMWIRE_LANES Words largest_half_of_each(const Words (&x)[16]) {
    Words both[16];
    for (int i = 0; i < 16; ++i) {
        both[i] = maximum_halves(x[i], shift_left<16>(x[i]));
    }
    return largest_of_each(both);
}
