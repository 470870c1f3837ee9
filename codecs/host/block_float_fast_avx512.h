// The common cases of block floats on AVX-512 without a tile of fp32, straight from and to bf16:
// encode with factor 1 and without residual, decode without accumulation. Two bf16 share a 32-bit
// lane, the even one in its low half. Same bytes as the general path. Included by
// block_float_fast.h.

constexpr bool kHasBfloat16Pairs = true;
constexpr int64_t kPairLanes = 32;  // elements of a register of pairs

// Largest magnitudes of the blocks of a whole tile, as fp32 bits; zeros up to sixteen.
SLIMWIRE_LANES void bfloat16_magnitudes(Tile& tile, const uint8_t* input, int64_t block) {
    const __m512i mask = _mm512_set1_epi32(0x7FFF7FFF);
    const int64_t blocks = kTileElems / block;
    Words most[kLanes];
    for (int64_t b = 0; b < blocks; ++b) {
        __m512i halves = _mm512_and_si512(_mm512_loadu_si512(input), mask);
        input += 2 * kPairLanes;
        for (int64_t i = kPairLanes; i < block; i += kPairLanes) {
            halves = _mm512_max_epu16(halves, _mm512_and_si512(_mm512_loadu_si512(input), mask));
            input += 2 * kPairLanes;
        }
        most[b % kLanes] = {_mm512_max_epu16(halves, _mm512_slli_epi32(halves, 16))};
        if (b % kLanes == kLanes - 1) {
            store_words(tile.magnitude + b + 1 - kLanes,
                        bit_and(largest_of_each(most), broadcast_bits(0xFFFF0000u)));
        }
    }
    if (blocks < kLanes) {
        store_words(tile.magnitude, broadcast_bits(0));
        for (int64_t b = 0; b < blocks; ++b) {
            tile.magnitude[b] = largest(most[b]) & 0xFFFF0000u;
        }
    }
}

// How far ahead memory is asked for. Less hides too little of the last-level cache; the
// second-level cache holds it.
constexpr int64_t kAheadBytes = 16384;

// Of eight registers, word i of each quarter: the largest half of that quarter of x[i].
SLIMWIRE_LANES __m512i largest_of_quarters(const uint8_t* input) {
    const __m512i mask = _mm512_set1_epi32(0x7FFF7FFF);
    __m512i x[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
        x[i] = _mm512_and_si512(_mm512_loadu_si512(input + 64 * i), mask);
    }
#pragma GCC unroll 3
    for (int half = 4; half > 0; half /= 2) {
#pragma GCC unroll 4
        for (int i = 0; i < half; ++i) {
            x[i] = _mm512_max_epu16(_mm512_unpacklo_epi16(x[i], x[i + half]),
                                    _mm512_unpackhi_epi16(x[i], x[i + half]));
        }
    }
    return x[0];
}
// Maxima of the blocks of a whole tile, as fp32 bits: blocks of 16, then of 32.
SLIMWIRE_LANES void bfloat16_magnitudes_of_16(Tile& tile, const uint8_t* input) {
    // Words 0..7 hold the even blocks, 16..23 the odd ones.
    const __m512i in_order =
        _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (int64_t b = 0; b < kTileElems / 16; b += kLanes, input += 512) {
        const __m512i x = largest_of_quarters(input);
        const __m512i most = _mm512_max_epu16(x, _mm512_shuffle_i64x2(x, x, 0xB1));
        _mm512_store_si512(tile.magnitude + b,
                           _mm512_slli_epi32(_mm512_permutexvar_epi16(in_order, most), 16));
    }
}
SLIMWIRE_LANES void bfloat16_magnitudes_of_32(Tile& tile, const uint8_t* input) {
    const __m512i in_order =
        _mm512_set_epi32(23, 22, 21, 20, 19, 18, 17, 16, 7, 6, 5, 4, 3, 2, 1, 0);
    for (int64_t b = 0; b < kTileElems / 32; b += kLanes, input += 1024) {
        const __m512i x = largest_of_quarters(input);
        const __m512i y = largest_of_quarters(input + 512);
        const __m512i halves =
            _mm512_max_epu16(_mm512_shuffle_i64x2(x, y, 0x44), _mm512_shuffle_i64x2(x, y, 0xEE));
        const __m512i most = _mm512_max_epu16(halves, _mm512_shuffle_i64x2(halves, halves, 0xB1));
        _mm512_store_si512(tile.magnitude + b,
                           _mm512_slli_epi32(_mm512_permutexvar_epi16(in_order, most), 16));
    }
}

// The codes of |y|, which is at most the largest value, in the low bits of each lane, with rubbish
// above.
template <class Format>
SLIMWIRE_LANES __m512i nearest_codes(__m512 y) {
    constexpr int kDropped = 23 - Format::kFractionBits;
    constexpr uint32_t kOffset =
        (0u - (Format::kMinNormalBits >> kDropped)) & ((1u << (Format::kBits - 1)) - 1);
    const __m512i exponent =
        _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(y), _mm512_set1_epi32(kInfinityBits)),
                         _mm512_set1_epi32(Format::kMinNormalBits));
    // 2^kDropped times the power of two has the step as its unit; the offset adds so many steps.
    constexpr float kMagic =
        static_cast<float>(1 << kDropped) +
        static_cast<float>(kOffset) / static_cast<float>(1 << Format::kFractionBits);
    const __m512 sum = _mm512_fmadd_ps(_mm512_castsi512_ps(exponent), _mm512_set1_ps(kMagic), y);
    return _mm512_add_epi32(_mm512_castps_si512(sum), _mm512_srli_epi32(exponent, kDropped));
}
// What is added to a y below 6.5 has the step as its unit and the code as its last bits; it is
// looked up by the exponent, of which the last four bits say enough.
template <>
[[gnu::always_inline]] inline __m512i nearest_codes<Fp4e2m1Format>(__m512 y) {
    constexpr float kUnit = 0x1p22f;  // whose last bit is 1/2
    const __m512 magics =
        _mm512_setr_ps(2 * kUnit + 2, 4 * kUnit + 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, kUnit);
    const __m512i exponent =
        _mm512_srli_epi32(_mm512_castps_si512(_mm512_max_ps(y, _mm512_set1_ps(1.0f))), 23);
    return _mm512_castps_si512(_mm512_add_ps(y, _mm512_permutexvar_ps(exponent, magics)));
}
template <class Format>
SLIMWIRE_LANES __m512i stochastic_codes(__m512 y, __m512i bytes) {
    constexpr int kDropped = 23 - Format::kFractionBits;
    constexpr uint32_t kOffset =
        (0u - (Format::kMinNormalBits >> kDropped)) & ((1u << (Format::kBits - 1)) - 1);
    const __m512i exponent =
        _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(y), _mm512_set1_epi32(kInfinityBits)),
                         _mm512_set1_epi32(Format::kMinNormalBits));
    const __m512i power = _mm512_sub_epi32(
        _mm512_set1_epi32(static_cast<int>((254u + 9 + Format::kFractionBits) << 23)), exponent);
    const __m512i fixed = _mm512_cvttps_epi32(_mm512_mul_ps(y, _mm512_castsi512_ps(power)));
    const __m512i drawn =
        _mm512_add_epi32(_mm512_add_epi32(bytes, bytes), _mm512_set1_epi32(1 | kOffset << 9));
    return _mm512_add_epi32(_mm512_srli_epi32(_mm512_add_epi32(fixed, drawn), 9),
                            _mm512_srli_epi32(exponent, kDropped));
}

// Codes of 32 elements, signs included, even and odd ones, with rubbish above them. kCut: some may
// be beyond the largest value by more than rounding takes back.
template <class Format, bool kStochastic, bool kCut>
SLIMWIRE_LANES void pair_codes(
    __m512i pairs, __m512 inverse, const uint8_t* random, Words& even_codes, Words& odd_codes) {
    const __m512i magnitudes = _mm512_and_si512(pairs, _mm512_set1_epi32(0x7FFF7FFF));
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
    const __m512 most = _mm512_set1_ps(Format::kMax);
    __m512 even = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(magnitudes, 16)), inverse);
    __m512 odd = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(magnitudes, high)), inverse);
    if constexpr (kCut) {
        even = _mm512_min_ps(even, most);
        odd = _mm512_min_ps(odd, most);
    }
    __m512i low;
    __m512i up;
    if constexpr (kStochastic) {
        const __m512i bytes =
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(random)));
        low = stochastic_codes<Format>(even, _mm512_and_si512(bytes, _mm512_set1_epi32(0xFF)));
        up = stochastic_codes<Format>(odd, _mm512_srli_epi32(bytes, 8));
    } else {
        low = nearest_codes<Format>(even);
        up = nearest_codes<Format>(odd);
    }
    constexpr uint32_t kMask = (1u << (Format::kBits - 1)) - 1;
    even_codes = {merge_bits(kMask, low, _mm512_srli_epi32(pairs, 16 - Format::kBits))};
    odd_codes = {merge_bits(kMask, up, _mm512_srli_epi32(pairs, 32 - Format::kBits))};
}

// Codes of a whole tile, whose scales are chosen and random bytes drawn. kBlock is 16 or 32, or 0
// for a larger one that is not known when this is compiled.
template <class Format, bool kStochastic, int kBlock, bool kCut = true>
SLIMWIRE_LANES void encode_bfloat16_codes(const Tile& tile,
                                          int64_t block,
                                          const uint8_t* input,
                                          uint8_t* codes) {
    const float* inverses = tile.inverse;
    const int64_t block_mask = block - 1;
    for (int64_t i = 0; i < kTileElems; i += 2 * kPairLanes, codes += 8 * Format::kBits) {
        Words even[2];
        Words odd[2];
#pragma GCC unroll 2
        for (int64_t k = 0; k < 2; ++k) {
            const int64_t at = i + k * kPairLanes;
            __builtin_prefetch(input + 2 * at + kAheadBytes);
            __m512 inverse = _mm512_set1_ps(*inverses);
            if constexpr (kBlock == 16) {
                inverse = _mm512_mask_broadcastss_ps(inverse, 0xFF00, _mm_load_ss(inverses + 1));
                inverses += 2;
            } else {
                inverses += ((at + kPairLanes) & block_mask) == 0 ? 1 : 0;
            }
            pair_codes<Format, kStochastic, kCut>(_mm512_loadu_si512(input + 2 * at), inverse,
                                                  tile.random + at, even[k], odd[k]);
        }
        pack_pairs<Format::kBits>(even, odd, codes);
    }
}

// The fp16 of 32 codes, e4m3 as 2^-8 of it.
SLIMWIRE_LANES __m512i fp8_halves(__m256i codes, Fp8e4m3Format) {
    return _mm512_and_si512(_mm512_slli_epi16(_mm512_cvtepi8_epi16(codes), 7),
                            _mm512_set1_epi16(static_cast<short>(0xBFFF)));
}
SLIMWIRE_LANES __m512i fp8_halves(__m256i codes, Fp8e5m2Format) {
    return _mm512_slli_epi16(_mm512_cvtepu8_epi16(codes), 8);
}

// Of two registers, the high halves of the lanes.
alignas(64) constexpr uint16_t kHighHalves[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                  23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                  45, 47, 49, 51, 53, 55, 57, 59, 61, 63};

// Decodes a whole block, of at least kPairLanes elements, to bf16. False, and nothing that stays,
// unless the scale lets every product be finite and so are all codes.
template <class Format>
SLIMWIRE_LANES bool decode_bfloat16_block(const uint8_t* codes,
                                          uint32_t scale_bits,
                                          int64_t block,
                                          uint8_t* output) {
    if ((scale_bits & kMagnitudeMask) > Format::kMaxScaleBits) {
        return false;
    }
    constexpr bool kIsE4m3 = Format::kFractionBits == 3;
    constexpr short kFirstSpecial = kIsE4m3 ? 0x3F80 : 0x7C00;
    const __m512 scale =
        _mm512_set1_ps(__builtin_bit_cast(float, scale_bits) * (kIsE4m3 ? 256.0f : 1.0f));
    const __m512i index = _mm512_load_si512(kHighHalves);
    __m512i most = _mm512_setzero_si512();
    for (int64_t i = 0; i < block; i += kPairLanes, output += 2 * kPairLanes) {
        const __m512i halves =
            fp8_halves(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i)), Format{});
        most = _mm512_max_epu16(most, _mm512_and_si512(halves, _mm512_set1_epi16(0x7FFF)));
        const __m512 first = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
        const __m512 second = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
        _mm512_storeu_si512(
            output, _mm512_permutex2var_epi16(round_high_half(_mm512_mul_ps(first, scale)), index,
                                              round_high_half(_mm512_mul_ps(second, scale))));
    }
    return _mm512_cmpge_epu16_mask(most, _mm512_set1_epi16(kFirstSpecial)) == 0;
}
