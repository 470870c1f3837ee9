// Sixteen fp32 lanes on AVX-512 (F, BW, DQ, VL, VBMI, VBMI2, VPOPCNTDQ) and BMI2. The same
// functions as lanes_scalar.h, which says what each one means.

#define SLIMWIRE_LANES [[gnu::always_inline]] static inline

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

SLIMWIRE_LANES Floats add(Floats a, Floats b) {
    return {_mm512_add_ps(a.v, b.v)};
}
SLIMWIRE_LANES Floats subtract(Floats a, Floats b) {
    return {_mm512_sub_ps(a.v, b.v)};
}
SLIMWIRE_LANES Floats multiply(Floats a, Floats b) {
    return {_mm512_mul_ps(a.v, b.v)};
}
SLIMWIRE_LANES Floats divide(Floats a, Floats b) {
    return {_mm512_div_ps(a.v, b.v)};
}
SLIMWIRE_LANES Floats canonical(Floats x) {
    return {_mm512_mask_mov_ps(x.v, _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q),
                               _mm512_castsi512_ps(_mm512_set1_epi32(kNanFloat32)))};
}

SLIMWIRE_LANES Words add(Words a, Words b) {
    return {_mm512_add_epi32(a.v, b.v)};
}
SLIMWIRE_LANES Words subtract(Words a, Words b) {
    return {_mm512_sub_epi32(a.v, b.v)};
}
SLIMWIRE_LANES Words bit_and(Words a, Words b) {
    return {_mm512_and_si512(a.v, b.v)};
}
SLIMWIRE_LANES Words bit_or(Words a, Words b) {
    return {_mm512_or_si512(a.v, b.v)};
}
SLIMWIRE_LANES Words bit_xor(Words a, Words b) {
    return {_mm512_xor_si512(a.v, b.v)};
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
SLIMWIRE_LANES Words shift_right_signed(Words x) {
    return {_mm512_srai_epi32(x.v, kBy)};
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
SLIMWIRE_LANES Words minimum(Words a, Words b) {
    return {_mm512_min_epu32(a.v, b.v)};
}
SLIMWIRE_LANES Words maximum(Words a, Words b) {
    return {_mm512_max_epu32(a.v, b.v)};
}
SLIMWIRE_LANES uint32_t largest(Words x) {
    return _mm512_reduce_max_epu32(x.v);
}
SLIMWIRE_LANES Words select_at_least(Words x, uint32_t limit, Words yes, Words no) {
    const __mmask16 mask = _mm512_cmpge_epu32_mask(x.v, _mm512_set1_epi32(static_cast<int>(limit)));
    return {_mm512_mask_mov_epi32(no.v, mask, yes.v)};
}

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

// A mask as a word and back. GCC 12 may keep a word that is also used as a mask in a mask register,
// spill 16 bits of it and read 32 back; so the moves between the registers are spelled out.
SLIMWIRE_LANES uint32_t word_of(__mmask16 mask) {
    uint32_t word;
    asm("kmovw %1, %0" : "=r"(word) : "k"(mask));
    return word;
}
SLIMWIRE_LANES __mmask16 mask_of(uint32_t word) {
    __mmask16 mask;
    asm("kmovw %1, %0" : "=k"(mask) : "r"(word));
    return mask;
}
SLIMWIRE_LANES uint32_t equal_lanes(Words x, uint32_t value) {
    return word_of(_mm512_cmpeq_epi32_mask(x.v, _mm512_set1_epi32(static_cast<int>(value))));
}

SLIMWIRE_LANES Words maximum_halves(Words a, Words b) {
    return {_mm512_max_epu16(a.v, b.v)};
}
SLIMWIRE_LANES Words add_halves(Words a, Words b) {
    return {_mm512_add_epi16(a.v, b.v)};
}
SLIMWIRE_LANES Words join_halves(Words low, Words high) {
    return {_mm512_mask_blend_epi16(0xAAAAAAAAu, low.v, _mm512_slli_epi32(high.v, 16))};
}
SLIMWIRE_LANES Words load_bytes_to_halves(const uint8_t* from) {
    return {_mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
}

// Halves the lanes of two at a time; at the end lane i belongs to x[i].
SLIMWIRE_LANES Words largest_of_each(const Words (&x)[16]) {
    __m512i four[4];
    for (int i = 0; i < 4; ++i) {
        __m512i two[2];
        for (int k = 0; k < 2; ++k) {
            const __m512i a = x[4 * i + 2 * k].v;
            const __m512i b = x[4 * i + 2 * k + 1].v;
            two[k] = _mm512_max_epu32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        }
        four[i] = _mm512_max_epu32(_mm512_unpacklo_epi64(two[0], two[1]),
                                   _mm512_unpackhi_epi64(two[0], two[1]));
    }
    __m512i half[2];
    for (int i = 0; i < 2; ++i) {
        const __m512i a = four[2 * i];
        const __m512i b = four[2 * i + 1];
        half[i] =
            _mm512_max_epu32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xDD));
    }
    return {_mm512_max_epu32(_mm512_shuffle_i32x4(half[0], half[1], 0x88),
                             _mm512_shuffle_i32x4(half[0], half[1], 0xDD))};
}

template <int kBits>
SLIMWIRE_LANES void pack(Words codes, uint8_t* to) {
    if constexpr (kBits == 8) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(codes.v));
    } else if constexpr (kBits == 6) {
        // Pairs of twelve bits, then fours of 24, whose three bytes move together.
        const __m128i bytes = _mm_and_si128(_mm512_cvtepi32_epi8(codes.v), _mm_set1_epi8(0x3F));
        const __m128i pairs = _mm_maddubs_epi16(bytes, _mm_set1_epi16(0x4001));
        const __m128i fours = _mm_madd_epi16(pairs, _mm_set1_epi32(0x10000001));
        const __m128i packed = _mm_shuffle_epi8(
            fours, _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
        _mm_storel_epi64(reinterpret_cast<__m128i*>(to), packed);
        const int last = _mm_extract_epi32(packed, 2);
        __builtin_memcpy(to + 8, &last, 4);
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
template <int kBits>
SLIMWIRE_LANES void pack_sums(const Words (&sums)[2], uint8_t* to) {
    if constexpr (kBits == 8) {
        const __m512i high_bytes =
            _mm512_set_epi8(127, 125, 123, 121, 119, 117, 115, 113, 111, 109, 107, 105, 103, 101,
                            99, 97, 95, 93, 91, 89, 87, 85, 83, 81, 79, 77, 75, 73, 71, 69, 67, 65,
                            63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29,
                            27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
        _mm512_storeu_si512(to, _mm512_permutex2var_epi8(sums[0].v, high_bytes, sums[1].v));
    } else if constexpr (kBits == 4) {
        store_low_bytes(merge_bits(0xF, shift_right<8>(sums[0]).v, shift_right<20>(sums[0]).v),
                        merge_bits(0xF, shift_right<8>(sums[1]).v, shift_right<20>(sums[1]).v), to);
    } else {
        pack_32<kBits>(shift_right<8>(sums[0]), shift_right<24>(sums[0]), to);
        pack_32<kBits>(shift_right<8>(sums[1]), shift_right<24>(sums[1]), to + 4 * kBits);
    }
}

SLIMWIRE_LANES __m128i load_twelve(const uint8_t* from) {
    int last;
    __builtin_memcpy(&last, from + 8, 4);
    return _mm_insert_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)), last, 2);
}

// code * scale for every code of a block; codes below 6 bits look their product up.
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
        } else if constexpr (kBits == 6) {
            const __m512i fours = _mm512_shuffle_epi8(
                _mm512_broadcast_i32x4(load_twelve(from)),
                _mm512_setr_epi32(0x00020100, 0x00020100, 0x00020100, 0x00020100, 0x00050403,
                                  0x00050403, 0x00050403, 0x00050403, 0x00080706, 0x00080706,
                                  0x00080706, 0x00080706, 0x000B0A09, 0x000B0A09, 0x000B0A09,
                                  0x000B0A09));
            const __m512i up = _mm512_sllv_epi32(
                fours,
                _mm512_setr_epi32(26, 20, 14, 8, 26, 20, 14, 8, 26, 20, 14, 8, 26, 20, 14, 8));
            return {_mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srai_epi32(up, 26)), scale)};
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
        const __m512i low = round_high_half(_mm512_mul_ps(_mm512_cvtepi32_ps(even), scale));
        const __m512i high = round_high_half(_mm512_mul_ps(_mm512_cvtepi32_ps(odd), scale));
        const __m512i high_halves =
            _mm512_set_epi16(63, 31, 61, 29, 59, 27, 57, 25, 55, 23, 53, 21, 51, 19, 49, 17, 47, 15,
                             45, 13, 43, 11, 41, 9, 39, 7, 37, 5, 35, 3, 33, 1);
        _mm512_storeu_si512(to, _mm512_permutex2var_epi16(low, high_halves, high));
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
