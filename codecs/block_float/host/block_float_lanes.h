// Sixteen small floats to fp32 lanes. Those of 8 bits for each instruction set, of which the scalar
// version says what they mean: every code its value, infinity and NaN included. Included by
// block_float.cpp after the lanes.

#if defined(SLIMWIRE_ISA_AVX2)

SLIMWIRE_LANES Floats fp8_by_halves(__m256i half) {
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(half)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))};
}
// Through fp16: its exponent is one bit wider than e4m3's, so the value there is 2^-8 of ours.
SLIMWIRE_LANES Floats load_fp8(const uint8_t* from, Fp8e4m3Format) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m256i moved = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
    const __m256i half = _mm256_and_si256(moved, _mm256_set1_epi16(static_cast<short>(0xBFFF)));
    const __m128i nan = _mm_cmpeq_epi8(_mm_or_si128(bytes, _mm_set1_epi8(-128)), _mm_set1_epi8(-1));
    const __m256i safe =
        _mm256_blendv_epi8(half, _mm256_set1_epi16(kNanFloat16), _mm256_cvtepi8_epi16(nan));
    return multiply(fp8_by_halves(safe), broadcast(256.0f));
}
SLIMWIRE_LANES Floats load_fp8(const uint8_t* from, Fp8e5m2Format) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return fp8_by_halves(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8));
}

#else

SLIMWIRE_LANES Floats load_fp8(const uint8_t* from, Fp8e4m3Format) {
    Words r;
    for (int i = 0; i < 16; ++i) {
        const uint32_t code = from[i] & 0x7Fu;
        const uint32_t normal = (code << 20) + (120u << 23);
        const float small = static_cast<float>(code) * 0x1p-9f;
        uint32_t bits = code < 8 ? __builtin_bit_cast(uint32_t, small) : normal;
        bits = code == 0x7F ? kNanFloat32 : bits;
        r.v[i] = bits | (from[i] & 0x80u) << 24;
    }
    return as_floats(r);
}
SLIMWIRE_LANES Floats load_fp8(const uint8_t* from, Fp8e5m2Format) {
    uint16_t half[16];
    for (int i = 0; i < 16; ++i) {
        half[i] = static_cast<uint16_t>(from[i] << 8);
    }
    return load_float16(half);
}

#endif

// Codes without infinity and NaN, as pack wrote them.
template <class Format>
SLIMWIRE_LANES Floats load_codes(const uint8_t* from, Format) {
    constexpr int kDropped = 23 - Format::kFractionBits;
    constexpr uint32_t kSign = 1u << (Format::kBits - 1);
    const Words code = unpack<Format::kBits>(from);
    const Words magnitude = bit_and(code, broadcast_bits(kSign - 1));
    const Words normal =
        add(shift_left<kDropped>(magnitude), broadcast_bits(Format::kMinNormalBits - (1u << 23)));
    // The steps of a subnormal as a whole number above 2^23.
    const Floats steps =
        subtract(as_floats(bit_or(magnitude, broadcast_bits(0x4B000000u))), broadcast(0x1p23f));
    const Words small = as_words(
        multiply(steps, as_floats(broadcast_bits(Format::kMinNormalBits -
                                                 (uint32_t{Format::kFractionBits} << 23)))));
    const Words value = select_at_least(magnitude, 1u << Format::kFractionBits, normal, small);
    return as_floats(
        bit_or(value, shift_left<32 - Format::kBits>(bit_and(code, broadcast_bits(kSign)))));
}
SLIMWIRE_LANES Floats load_codes(const uint8_t* from, Fp8e4m3Format format) {
    return load_fp8(from, format);
}
SLIMWIRE_LANES Floats load_codes(const uint8_t* from, Fp8e5m2Format format) {
    return load_fp8(from, format);
}
