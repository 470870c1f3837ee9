// The common cases of block floats on AVX-512 without a tile of fp32, straight from and to bf16:
// encode with factor 1 and without residual, decode without accumulation. Two bf16 share a 32-bit
// lane, the even one in its low half. Same bytes as the general path. Included by fp8_kernels.h;
// lanes without these functions define kHasBfloat16Pairs as false.

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

// The codes of |y| in the low 7 bits of each lane, with rubbish above; y is at most the largest.
template <class Format>
SLIMWIRE_LANES __m512i fp8_nearest(__m512 y) {
    constexpr int kDropped = 23 - Format::kFractionBits;
    constexpr uint32_t kOffset = (0u - (Format::kMinNormalBits >> kDropped)) & 0x7F;
    const __m512i exponent =
        _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(y), _mm512_set1_epi32(kInfinityBits)),
                         _mm512_set1_epi32(Format::kMinNormalBits));
    // 2^kDropped times the power of two has the step as its unit; the offset adds so many steps.
    constexpr float kMagic =
        static_cast<float>(1 << kDropped) + static_cast<float>(kOffset) / (8 >> (kDropped - 20));
    const __m512 sum = _mm512_fmadd_ps(_mm512_castsi512_ps(exponent), _mm512_set1_ps(kMagic), y);
    return _mm512_add_epi32(_mm512_castps_si512(sum), _mm512_srli_epi32(exponent, kDropped));
}
template <class Format>
SLIMWIRE_LANES __m512i fp8_stochastic(__m512 y, __m512i bytes) {
    constexpr int kDropped = 23 - Format::kFractionBits;
    constexpr uint32_t kOffset = (0u - (Format::kMinNormalBits >> kDropped)) & 0x7F;
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

// Codes of a whole tile, whose scales are chosen and random bytes drawn.
template <class Format, bool kStochastic>
SLIMWIRE_LANES void encode_bfloat16_codes(const Tile& tile,
                                          int64_t block,
                                          const uint8_t* input,
                                          uint8_t* codes) {
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
    const uint8_t* random = tile.random;
    for (int64_t b = 0; b < kTileElems / block; ++b) {
        const __m512 inverse = _mm512_set1_ps(tile.inverse[b]);
        for (int64_t i = 0; i < block; i += kPairLanes) {
            __builtin_prefetch(input + kTileElems * 2);  // of the next tile
            const __m512i pairs = _mm512_loadu_si512(input);
            const __m512i magnitudes = _mm512_and_si512(pairs, _mm512_set1_epi32(0x7FFF7FFF));
            const __m512 even =
                _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(magnitudes, 16)), inverse);
            const __m512 odd =
                _mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(magnitudes, high)), inverse);
            __m512i low;
            __m512i up;
            if constexpr (kStochastic) {
                const __m512i bytes = _mm512_cvtepu16_epi32(
                    _mm256_loadu_si256(reinterpret_cast<const __m256i*>(random)));
                low =
                    fp8_stochastic<Format>(even, _mm512_and_si512(bytes, _mm512_set1_epi32(0xFF)));
                up = fp8_stochastic<Format>(odd, _mm512_srli_epi32(bytes, 8));
                random += kPairLanes;
            } else {
                low = fp8_nearest<Format>(even);
                up = fp8_nearest<Format>(odd);
            }
            // Bits of the second where the first has ones, else of the third.
            const __m512i both = _mm512_ternarylogic_epi32(_mm512_set1_epi32(0xFF), low,
                                                           _mm512_slli_epi32(up, 8), 0xCA);
            const __m512i signs =
                _mm512_ternarylogic_epi32(_mm512_set1_epi32(0x80), _mm512_srli_epi32(pairs, 8),
                                          _mm512_srli_epi32(pairs, 16), 0xCA);
            const __m512i result =
                _mm512_ternarylogic_epi32(_mm512_set1_epi32(0x7F7F), both, signs, 0xCA);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), _mm512_cvtepi32_epi16(result));
            input += 2 * kPairLanes;
            codes += kPairLanes;
        }
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

// Finite x rounded to bf16 in the high half of each lane, with rubbish below.
SLIMWIRE_LANES __m512i round_in_place(__m512 x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
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
            output, _mm512_permutex2var_epi16(round_in_place(_mm512_mul_ps(first, scale)), index,
                                              round_in_place(_mm512_mul_ps(second, scale))));
    }
    return _mm512_cmpge_epu16_mask(most, _mm512_set1_epi16(kFirstSpecial)) == 0;
}
