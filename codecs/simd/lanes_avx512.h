// Sixteen fp32 lanes on AVX-512 (F, BW, DQ, VL, VBMI, VBMI2, VPOPCNTDQ) and BMI2. The same
// functions as lanes_scalar.h, which says what each one means.

#define SLIMWIRE_LANES [[gnu::always_inline]] static inline

constexpr bool kManyRegisters = true;

struct Floats {
    __m512 v;
};
struct Words {
    __m512i v;
};

SLIMWIRE_LANES Floats broadcast(float x) {
    return {_mm512_set1_ps(x)};
}
SLIMWIRE_LANES Words broadcast_bits(uint32_t x) {
    return {_mm512_set1_epi32(static_cast<int>(x))};
}
SLIMWIRE_LANES Floats as_floats(Words x) {
    return {_mm512_castsi512_ps(x.v)};
}
SLIMWIRE_LANES Words as_words(Floats x) {
    return {_mm512_castps_si512(x.v)};
}

SLIMWIRE_LANES Floats load_float32(const void* from) {
    return {_mm512_loadu_ps(from)};
}
SLIMWIRE_LANES Floats load_bfloat16(const void* from) {
    const __m256i half = _mm256_loadu_si256(static_cast<const __m256i*>(from));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
SLIMWIRE_LANES Floats load_float16(const void* from) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(from)))};
}
SLIMWIRE_LANES Words load_words(const void* from) {
    return {_mm512_loadu_si512(from)};
}

SLIMWIRE_LANES void store_float32(void* to, Floats x) {
    _mm512_storeu_ps(to, x.v);
}
SLIMWIRE_LANES void store_words(void* to, Words x) {
    _mm512_storeu_si512(to, x.v);
}
SLIMWIRE_LANES void store_bfloat16(void* to, Floats x) {
    const __m512i bits = _mm512_castps_si512(x.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7FFF));
    const __m512i rounded =
        _mm512_mask_mov_epi32(_mm512_srli_epi32(up, 16), _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q),
                              _mm512_set1_epi32(kNanBfloat16));
    _mm256_storeu_si256(static_cast<__m256i*>(to), _mm512_cvtepi32_epi16(rounded));
}
SLIMWIRE_LANES void store_float16(void* to, Floats x) {
    const __m256i half = _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256i result = _mm256_mask_mov_epi16(half, _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q),
                                                 _mm256_set1_epi16(kNanFloat16));
    _mm256_storeu_si256(static_cast<__m256i*>(to), result);
}

#define SLIMWIRE_LANEWISE(Type, name, instruction) \
    SLIMWIRE_LANES Type name(Type a, Type b) {     \
        return {instruction(a.v, b.v)};            \
    }
SLIMWIRE_LANEWISE(Floats, add, _mm512_add_ps)
SLIMWIRE_LANEWISE(Floats, subtract, _mm512_sub_ps)
SLIMWIRE_LANEWISE(Floats, multiply, _mm512_mul_ps)
SLIMWIRE_LANEWISE(Floats, divide, _mm512_div_ps)
SLIMWIRE_LANEWISE(Words, add, _mm512_add_epi32)
SLIMWIRE_LANEWISE(Words, subtract, _mm512_sub_epi32)
SLIMWIRE_LANEWISE(Words, bit_and, _mm512_and_si512)
SLIMWIRE_LANEWISE(Words, bit_or, _mm512_or_si512)
SLIMWIRE_LANEWISE(Words, bit_xor, _mm512_xor_si512)
SLIMWIRE_LANEWISE(Words, minimum, _mm512_min_epu32)
SLIMWIRE_LANEWISE(Words, maximum, _mm512_max_epu32)
SLIMWIRE_LANEWISE(Words, maximum_halves, _mm512_max_epu16)
SLIMWIRE_LANEWISE(Words, add_halves, _mm512_add_epi16)
#undef SLIMWIRE_LANEWISE

SLIMWIRE_LANES Floats multiply_add(Floats a, Floats b, Floats c) {
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
SLIMWIRE_LANES Floats canonical(Floats x) {
    return {_mm512_mask_mov_ps(x.v, _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q),
                               _mm512_castsi512_ps(_mm512_set1_epi32(kNanFloat32)))};
}

SLIMWIRE_LANES uint32_t equal_lanes(Words x, uint32_t value) {
    return _mm512_cmpeq_epi32_mask(x.v, _mm512_set1_epi32(static_cast<int>(value)));
}

template <int kBy>
SLIMWIRE_LANES Words shift_left(Words x) {
    return {_mm512_slli_epi32(x.v, kBy)};
}
template <int kBy>
SLIMWIRE_LANES Words shift_right(Words x) {
    return {_mm512_srli_epi32(x.v, kBy)};
}
template <int kBy>
SLIMWIRE_LANES Words rotate_left(Words x) {
    return {_mm512_rol_epi32(x.v, kBy)};
}
SLIMWIRE_LANES Words truncate(Floats x) {
    return {_mm512_cvttps_epi32(x.v)};
}
SLIMWIRE_LANES Words lane_numbers() {
    return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
}
SLIMWIRE_LANES Words load_bytes(const uint8_t* from) {
    return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
}
SLIMWIRE_LANES void store_interleaved(uint8_t* to, Words a, Words b, Words c, Words d) {
    const __m512i ab_low = _mm512_unpacklo_epi32(a.v, b.v);
    const __m512i ab_high = _mm512_unpackhi_epi32(a.v, b.v);
    const __m512i cd_low = _mm512_unpacklo_epi32(c.v, d.v);
    const __m512i cd_high = _mm512_unpackhi_epi32(c.v, d.v);
    // Part k holds, in 128-bit lane q, what belongs to lane 4q + k.
    const __m512i part[4] = {
        _mm512_unpacklo_epi64(ab_low, cd_low), _mm512_unpackhi_epi64(ab_low, cd_low),
        _mm512_unpacklo_epi64(ab_high, cd_high), _mm512_unpackhi_epi64(ab_high, cd_high)};
    const __m512i low01 = _mm512_shuffle_i32x4(part[0], part[1], 0x44);
    const __m512i high01 = _mm512_shuffle_i32x4(part[0], part[1], 0xEE);
    const __m512i low23 = _mm512_shuffle_i32x4(part[2], part[3], 0x44);
    const __m512i high23 = _mm512_shuffle_i32x4(part[2], part[3], 0xEE);
    _mm512_storeu_si512(to, _mm512_shuffle_i32x4(low01, low23, 0x88));
    _mm512_storeu_si512(to + 64, _mm512_shuffle_i32x4(low01, low23, 0xDD));
    _mm512_storeu_si512(to + 128, _mm512_shuffle_i32x4(high01, high23, 0x88));
    _mm512_storeu_si512(to + 192, _mm512_shuffle_i32x4(high01, high23, 0xDD));
}
SLIMWIRE_LANES uint32_t largest(Words x) {
    return _mm512_reduce_max_epu32(x.v);
}
SLIMWIRE_LANES Words select_at_least(Words x, uint32_t limit, Words yes, Words no) {
    const __mmask16 mask = _mm512_cmpge_epu32_mask(x.v, _mm512_set1_epi32(static_cast<int>(limit)));
    return {_mm512_mask_mov_epi32(no.v, mask, yes.v)};
}

// The upper lanes are negated by the multiplication, which is exact.
template <int kStride>
SLIMWIRE_LANES Floats butterfly(Floats x) {
    if constexpr (kStride == 1) {
        return {_mm512_fmadd_ps(
            x.v, _mm512_setr_ps(1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1),
            _mm512_permute_ps(x.v, 0xB1))};
    } else if constexpr (kStride == 2) {
        return {_mm512_fmadd_ps(
            x.v, _mm512_setr_ps(1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1),
            _mm512_permute_ps(x.v, 0x4E))};
    } else if constexpr (kStride == 4) {
        return {_mm512_fmadd_ps(
            x.v, _mm512_setr_ps(1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1),
            _mm512_shuffle_f32x4(x.v, x.v, 0xB1))};
    } else {
        return {_mm512_fmadd_ps(
            x.v, _mm512_setr_ps(1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1),
            _mm512_shuffle_f32x4(x.v, x.v, 0x4E))};
    }
}

SLIMWIRE_LANES Words join_halves(Words low, Words high) {
    return {_mm512_mask_blend_epi16(0xAAAAAAAAu, low.v, _mm512_slli_epi32(high.v, 16))};
}
SLIMWIRE_LANES Words load_bytes_to_halves(const uint8_t* from) {
    return {_mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
}

// Halves the lanes of two at a time by `larger`; at the end lane i belongs to x[i].
template <class Larger>
SLIMWIRE_LANES Words fold_each(const Words (&x)[16], Larger larger) {
    __m512i four[4];
    for (int i = 0; i < 4; ++i) {
        __m512i two[2];
        for (int k = 0; k < 2; ++k) {
            const __m512i a = x[4 * i + 2 * k].v;
            const __m512i b = x[4 * i + 2 * k + 1].v;
            two[k] = larger(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        }
        four[i] =
            larger(_mm512_unpacklo_epi64(two[0], two[1]), _mm512_unpackhi_epi64(two[0], two[1]));
    }
    __m512i half[2];
    for (int i = 0; i < 2; ++i) {
        const __m512i a = four[2 * i];
        const __m512i b = four[2 * i + 1];
        half[i] = larger(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xDD));
    }
    return {larger(_mm512_shuffle_i32x4(half[0], half[1], 0x88),
                   _mm512_shuffle_i32x4(half[0], half[1], 0xDD))};
}
SLIMWIRE_LANES Words largest_of_each(const Words (&x)[16]) {
    return fold_each(x, [](__m512i a, __m512i b) { return _mm512_max_epu32(a, b); });
}
SLIMWIRE_LANES Words largest_half_of_each(const Words (&x)[16]) {
    const Words both = fold_each(x, [](__m512i a, __m512i b) { return _mm512_max_epu16(a, b); });
    return maximum_halves(both, shift_left<16>(both));
}
