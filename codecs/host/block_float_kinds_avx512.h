// The fast paths of block_float_fast.h on AVX-512, by kind of scale.

template <class Kind, BlockScale = Kind::kScale>
struct FastBlockFloat;

template <class Kind>
struct FastBlockFloat<Kind, BlockScale::kBinary> {
    using Format = typename Kind::Format;

    template <bool kStochastic>
    SLIMWIRE_LANES bool takes(const BlockFloatShape& shape) {
        return shape.block >= kPairLanes;
    }
    SLIMWIRE_LANES void measure(Tile& tile, const uint8_t* input, int64_t block) {
        bfloat16_magnitudes(tile, input, block);
    }
    // Neither poison nor a scale at the cap.
    SLIMWIRE_LANES bool takes(const Tile& tile, int64_t blocks) {
        Words most = broadcast_bits(0);
        for (int64_t b = 0; b < blocks; b += kLanes) {
            most = maximum(most, load_words(tile.scale + b));
        }
        return largest(most) < Format::kMaxScaleBits;
    }
    template <bool kStochastic>
    SLIMWIRE_LANES void encode(const Tile& tile,
                               int64_t block,
                               const uint8_t* input,
                               uint8_t* codes) {
        encode_bfloat16_codes<Format, kStochastic, 0>(tile, block, input, codes);
    }
    SLIMWIRE_LANES bool decode(const uint8_t* codes,
                               const float* scales,
                               int64_t block,
                               uint8_t* output) {
        bool good = block >= kPairLanes;
        for (int64_t b = 0; good && b < kTileElems / block; ++b) {
            good = decode_bfloat16_block<Format>(codes + b * block,
                                                 __builtin_bit_cast(uint32_t, scales[b]), block,
                                                 output + 2 * b * block);
        }
        return good;
    }
};

template <class Kind>
struct FastBlockFloat<Kind, BlockScale::kPowerOfTwo> {
    using Format = typename Kind::Format;

    template <bool kStochastic>
    SLIMWIRE_LANES bool takes(const BlockFloatShape&) {
        return true;
    }
    SLIMWIRE_LANES void measure(Tile& tile, const uint8_t* input, int64_t) {
        bfloat16_magnitudes_of_32(tile, input);
    }
    // Neither poison nor scales near the ends, except for zeros.
    SLIMWIRE_LANES bool takes(const Tile& tile, int64_t blocks) {
        Words most = broadcast_bits(0);
        for (int64_t b = 0; b < blocks; b += kLanes) {
            const Words scale = subtract(load_words(tile.scale + b), broadcast_bits(kLeast));
            most = maximum(
                most, select_at_least(load_words(tile.magnitude + b), 1, scale, broadcast_bits(0)));
        }
        return largest(most) < ((254u - Format::kMaxExponent) << 23) - kLeast;
    }
    template <bool kStochastic>
    SLIMWIRE_LANES void encode(const Tile& tile,
                               int64_t block,
                               const uint8_t* input,
                               uint8_t* codes) {
        if constexpr (kStochastic || Kind::kBits == 6) {
            encode_bfloat16_codes<Format, kStochastic, 0>(tile, block, input, codes);
        } else if constexpr (Kind::kBits == 8) {
            encode_eight(tile, input, codes);
        } else {
            encode_four(tile, input, codes);
        }
    }
    SLIMWIRE_LANES bool decode(const uint8_t* codes,
                               const float* scales,
                               int64_t block,
                               uint8_t* output) {
        if constexpr (Kind::kBits == 6) {
            return false;
        }
        for (int64_t b = 0; b < kTileElems / block; ++b) {
            __builtin_prefetch(output + kAheadBytes, 1);
            __builtin_prefetch(codes + kAheadBytes / 2);
            const uint32_t bits = __builtin_bit_cast(uint32_t, scales[b]);
            bool done;
            if constexpr (Kind::kBits == 8) {
                done = decode_eight(codes, bits, output);
            } else {
                done = decode_four(codes, bits, output);
            }
            if (!done) [[unlikely]] {
                decode_block(codes, scales[b], output);
            }
            codes += 4 * Kind::kBits;
            output += 2 * block;
        }
        return true;
    }

  private:
    static constexpr uint32_t kLeast = 16u << 23;

    // What is subtracted from the bits of the bf16 of each block, in both halves, so that the
    // exponent field of the smallest normal y becomes `field`. Below 0, where only zeros are, as a
    // large number.
    struct Bases {
        alignas(64) uint32_t v[kTileElems / 32];
    };
    SLIMWIRE_LANES Bases bases_of(const Tile& tile, uint32_t field) {
        constexpr uint32_t kNormal = Format::kMinNormalBits >> 16;
        const Words less = broadcast_bits((kNormal - ((127 + field) << 7)) & 0xFFFF);
        Bases bases;
        for (int64_t b = 0; b < kTileElems / 32; b += kLanes) {
            const Words one = shift_right<16>(load_words(tile.scale + b));
            const Words base = bit_and(add(one, less), broadcast_bits(0xFFFF));
            store_words(bases.v + b, bit_or(base, shift_left<16>(base)));
        }
        return bases;
    }

    // A power of two moves exponents only, so that a bf16 is rounded to a normal code by adding to
    // its bits. Blocks with other elements than those and zeros are few.
    SLIMWIRE_LANES void encode_eight(const Tile& tile, const uint8_t* input, uint8_t* codes) {
        constexpr int kDropped = 7 - Format::kFractionBits;
        constexpr short kMost = (Format::kMaxBits - Format::kMinNormalBits + (1u << 23)) >>
                                (23 - Format::kFractionBits);
        const Bases bases = bases_of(tile, 1);
        for (int64_t b = 0; b < kTileElems / 32; ++b, input += 64, codes += 32) {
            __builtin_prefetch(input + kAheadBytes);
            __builtin_prefetch(codes + kAheadBytes / 2, 1);
            const __m512i x = _mm512_loadu_si512(input);
            const __m512i magnitude = _mm512_and_si512(x, _mm512_set1_epi16(0x7FFF));
            const __m512i above =
                _mm512_subs_epu16(magnitude, _mm512_set1_epi32(static_cast<int>(bases.v[b])));
            const __mmask32 some = _mm512_test_epi16_mask(magnitude, magnitude);
            if (_mm512_mask_cmplt_epu16_mask(some, above, _mm512_set1_epi16(128)) != 0)
                [[unlikely]] {
                encode_block(tile, b, x, codes);
                continue;
            }
            const __m512i odd =
                _mm512_and_si512(_mm512_srli_epi16(above, kDropped), _mm512_set1_epi16(1));
            const __m512i up = _mm512_add_epi16(_mm512_add_epi16(above, odd),
                                                _mm512_set1_epi16((1 << (kDropped - 1)) - 1));
            const __m512i code = _mm512_maskz_min_epu16(some, _mm512_srli_epi16(up, kDropped),
                                                        _mm512_set1_epi16(kMost));
            const __m512i all = merge_bits(0x007F007F, code, _mm512_srli_epi16(x, 8));
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), _mm512_cvtepi16_epi8(all));
        }
    }
    // Any elements.
    [[gnu::noinline]] static void encode_block(const Tile& tile,
                                               int64_t b,
                                               __m512i x,
                                               uint8_t* codes) {
        Words even;
        Words odd;
        pair_codes<Format, false, true>(x, _mm512_set1_ps(tile.inverse[b]), nullptr, even, odd);
        const __m512i all = merge_bits(0xFF, even.v, _mm512_slli_epi32(odd.v, 8));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), _mm512_cvtepi32_epi16(all));
    }

    // The code is the number of midpoints of neighbours that |y| is above, those before an even
    // code included: 1/4; 3/4; 5/4, 5/2, 5; 7/4, 7/2. Of the last two rows an octave counts each.
    SLIMWIRE_LANES void encode_four(const Tile& tile, const uint8_t* input, uint8_t* codes) {
        // Bits of a bf16 above those of 1/4.
        constexpr int kQuarter = 0x3E80;
        constexpr int k34 = 0x3F40 - kQuarter;
        constexpr int k54 = 0x3FA0 - kQuarter + 1;
        constexpr int k74 = 0x3FE0 - kQuarter;
        const Bases bases = bases_of(tile, 2);
        for (int64_t b = 0; b < kTileElems / 32; ++b, input += 64, codes += 16) {
            __builtin_prefetch(input + kAheadBytes);
            const __m512i x = _mm512_loadu_si512(input);
            const __m512i magnitude = _mm512_and_si512(x, _mm512_set1_epi16(0x7FFF));
            const __m512i above =
                _mm512_subs_epu16(magnitude, _mm512_set1_epi32(static_cast<int>(bases.v[b])));
            const __m512i five =
                _mm512_srli_epi16(_mm512_subs_epu16(above, _mm512_set1_epi16(k54 - 128)), 7);
            const __m512i seven =
                _mm512_srli_epi16(_mm512_subs_epu16(above, _mm512_set1_epi16(k74 - 128)), 7);
            const __m512i one = _mm512_set1_epi16(1);
            __m512i code = _mm512_add_epi16(five, seven);
            code = _mm512_mask_add_epi16(code, _mm512_test_epi16_mask(above, above), code, one);
            code = _mm512_mask_add_epi16(
                code, _mm512_cmpge_epu16_mask(above, _mm512_set1_epi16(k34)), code, one);
            code = _mm512_min_epu16(code, _mm512_set1_epi16(7));
            const __m512i all = merge_bits(0x00070007, code, _mm512_srli_epi16(x, 12));
            const __m512i bytes = _mm512_or_si512(all, _mm512_srli_epi32(all, 12));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), _mm512_cvtepi32_epi8(bytes));
        }
    }

    // Exponents of values may be moved by this scale without leaving those of normal bf16.
    SLIMWIRE_LANES bool is_plain(uint32_t scale_bits) {
        return scale_bits - kLeast <= ((254u - Format::kMaxExponent) << 23) - kLeast;
    }
    // The bits of a normal code become those of a bf16. False where there are others than those and
    // zeros.
    SLIMWIRE_LANES bool decode_eight(const uint8_t* codes, uint32_t scale_bits, uint8_t* output) {
        constexpr int kUp = 7 - Format::kFractionBits;
        constexpr int kFirst = 1 << Format::kFractionBits;  // normal code
        constexpr short kMost = (Format::kMaxBits - Format::kMinNormalBits + (1u << 23)) >>
                                (23 - Format::kFractionBits);
        const __m512i code =
            _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
        const __m512i magnitude = _mm512_and_si512(code, _mm512_set1_epi16(0x7F));
        const __mmask32 some = _mm512_test_epi16_mask(magnitude, magnitude);
        const __mmask32 special = _mm512_mask_cmpgt_epu16_mask(
            some, _mm512_sub_epi16(magnitude, _mm512_set1_epi16(kFirst)),
            _mm512_set1_epi16(kMost - kFirst));
        if (special != 0 || !is_plain(scale_bits)) {
            return false;
        }
        constexpr uint32_t kNormal = Format::kMinNormalBits >> 16;
        const __m512i up =
            _mm512_set1_epi16(static_cast<short>((scale_bits >> 16) + kNormal - (128u << 7)));
        const __m512i moved =
            _mm512_and_si512(_mm512_slli_epi16(code, kUp),
                             _mm512_set1_epi16(static_cast<short>(0x8000 | 0x7F << kUp)));
        _mm512_storeu_si512(output, _mm512_mask_add_epi16(moved, some, moved, up));
        return true;
    }

    // The values as bf16 are looked up, and the scale added to the exponents of those that are not
    // zero.
    SLIMWIRE_LANES bool decode_four(const uint8_t* codes, uint32_t scale_bits, uint8_t* output) {
        if (!is_plain(scale_bits)) {
            return false;
        }
        const __m512i values = _mm512_broadcast_i64x4(_mm256_setr_epi16(
            0, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0, static_cast<short>(0x8000),
            static_cast<short>(0xBF00), static_cast<short>(0xBF80), static_cast<short>(0xBFC0),
            static_cast<short>(0xC000), static_cast<short>(0xC040), static_cast<short>(0xC080),
            static_cast<short>(0xC0C0)));
        const __mmask32 some = 0xFEFEFEFEu;  // codes whose value is not zero
        const __m512i up = _mm512_set1_epi16(static_cast<short>((scale_bits >> 16) - 0x3F80));
        const __m512i table = _mm512_mask_add_epi16(values, some, values, up);
        const __m512i bytes =
            _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
        const __m512i index = _mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 12));
        _mm512_storeu_si512(output, _mm512_permutexvar_epi16(index, table));
        return true;
    }

    // Any codes under any scale.
    [[gnu::noinline]] static void decode_block(const uint8_t* codes, float scale, uint8_t* output) {
        const Sink<Bfloat16, false> sink{output};
        for (int64_t i = 0; i < 32; i += kLanes) {
            sink.sixteen(
                i, multiply(load_codes(codes + i / 8 * Kind::kBits, Format{}), broadcast(scale)));
        }
    }
};

template <class Kind>
struct FastBlockFloat<Kind, BlockScale::kTwoLevels> {
    using Format = typename Kind::Format;

    template <bool kStochastic>
    SLIMWIRE_LANES bool takes(const BlockFloatShape&) {
        return true;
    }
    SLIMWIRE_LANES void measure(Tile& tile, const uint8_t* input, int64_t) {
        bfloat16_magnitudes_of_16(tile, input);
    }
    // Neither poison nor subnormal scales, which may be a third too small.
    SLIMWIRE_LANES bool takes(const Tile& tile, int64_t blocks) {
        bool good = true;
        for (const float group : tile.group) {
            good = good && group == group;
        }
        for (int64_t b = 0; b < blocks; b += 64) {
            const __m512i bytes = _mm512_loadu_si512(tile.scale_bytes + b);
            const __mmask64 some = _mm512_test_epi8_mask(bytes, bytes);
            good = good && _mm512_mask_cmplt_epu8_mask(some, bytes, _mm512_set1_epi8(8)) == 0;
        }
        return good;
    }
    template <bool kStochastic>
    SLIMWIRE_LANES void encode(const Tile& tile,
                               int64_t block,
                               const uint8_t* input,
                               uint8_t* codes) {
        encode_bfloat16_codes<Format, kStochastic, 16, kStochastic>(tile, block, input, codes);
    }
    // Values of even and of odd codes are looked up; a lookup counts with the low four bits.
    SLIMWIRE_LANES bool decode(const uint8_t* codes,
                               const float* scales,
                               int64_t block,
                               uint8_t* output) {
        Words most = broadcast_bits(0);
        for (int64_t b = 0; b < kTileElems / block; b += kLanes) {
            most = maximum(most, bit_and(load_words(scales + b), broadcast_bits(kMagnitudeMask)));
        }
        if (largest(most) >= 250u << 23) {  // a product may overflow, or is poison
            return false;
        }
        const __m512 values = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f,
                                             -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
        for (int64_t i = 0; i < kTileElems; i += kPairLanes, codes += 16, output += 64) {
            __builtin_prefetch(output + kAheadBytes, 1);
            __builtin_prefetch(codes + kAheadBytes / 2);
            const __m512i bytes =
                _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
            const float* first = scales + i / 16;
            const __m512 scale =
                _mm512_mask_broadcastss_ps(_mm512_set1_ps(*first), 0xFF00, _mm_load_ss(first + 1));
            const __m512 even = _mm512_mul_ps(_mm512_permutexvar_ps(bytes, values), scale);
            const __m512 odd =
                _mm512_mul_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), values), scale);
            _mm512_storeu_si512(output,
                                merge_bits(0xFFFF, _mm512_srli_epi32(round_high_half(even), 16),
                                           round_high_half(odd)));
        }
        return true;
    }
};
