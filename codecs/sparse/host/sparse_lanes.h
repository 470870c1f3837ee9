// What the sparsifiers add to the lanes: comparing to a bit mask, and moving chosen lanes together.
// Included by host/sparse.cpp inside its anonymous namespace, after the lanes. The plain form says
// what each function means.

SLIMWIRE_LANES int64_t bits_set(uint32_t mask) {
    return __builtin_popcount(mask);
}

// Two bytes to each lane.
SLIMWIRE_LANES Words load_halves(const uint8_t* from) {
    return shift_right<16>(as_words(load_bfloat16(from)));
}

// mask_at_least(x, limit): bit i is set where lane i of x >= limit, unsigned.
// compress(x, mask, to): the lanes of x whose bit is set, one after another; what follows them up
// to sixteen lanes is unspecified but written.
#if defined(SLIMWIRE_ISA_AVX2)

SLIMWIRE_LANES uint32_t mask_at_least(__m256i x, __m256i limit) {
    const __m256i at_least = _mm256_cmpeq_epi32(_mm256_max_epu32(x, limit), x);
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(at_least)));
}
SLIMWIRE_LANES uint32_t mask_at_least(Words x, uint32_t limit) {
    const __m256i most = _mm256_set1_epi32(static_cast<int>(limit));
    return mask_at_least(x.lo, most) | mask_at_least(x.hi, most) << 8;
}
SLIMWIRE_LANES void compress(__m256i x, uint32_t mask, void* to) {
    const uint64_t bytes = _pdep_u64(mask, 0x0101010101010101u) * 0xFF;
    const uint64_t from = _pext_u64(0x0706050403020100u, bytes);
    const __m256i order = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(from)));
    _mm256_storeu_si256(static_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(x, order));
}
SLIMWIRE_LANES void compress(Words x, uint32_t mask, void* to) {
    auto* words = static_cast<uint32_t*>(to);
    compress(x.lo, mask & 0xFF, words);
    compress(x.hi, mask >> 8, words + bits_set(mask & 0xFF));
}
SLIMWIRE_LANES Words blend(uint32_t mask, Words yes, Words no) {
    const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i low = _mm256_set1_epi32(static_cast<int>(mask & 0xFF));
    const __m256i high = _mm256_set1_epi32(static_cast<int>(mask >> 8));
    return {
        _mm256_blendv_epi8(no.lo, yes.lo, _mm256_cmpeq_epi32(_mm256_and_si256(low, bits), bits)),
        _mm256_blendv_epi8(no.hi, yes.hi, _mm256_cmpeq_epi32(_mm256_and_si256(high, bits), bits))};
}

#else

SLIMWIRE_LANES uint32_t mask_at_least(Words x, uint32_t limit) {
    uint32_t mask = 0;
    for (uint32_t i = 0; i < 16; ++i) {
        mask |= static_cast<uint32_t>(x.v[i] >= limit) << i;
    }
    return mask;
}
SLIMWIRE_LANES void compress(Words x, uint32_t mask, void* to) {
    uint32_t moved[16] = {};
    int64_t count = 0;
    for (uint32_t i = 0; i < 16; ++i) {
        moved[count] = x.v[i];
        count += mask >> i & 1;
    }
    __builtin_memcpy(to, moved, sizeof(moved));
}
SLIMWIRE_LANES Words blend(uint32_t mask, Words yes, Words no) {
    Words r;
    for (uint32_t i = 0; i < 16; ++i) {
        r.v[i] = (mask >> i & 1) != 0 ? yes.v[i] : no.v[i];
    }
    return r;
}

#endif

// The order in which elements are selected: magnitude bits, every NaN alike and above infinity. A p
// is never a signalling NaN, so the canonical one is the least.
SLIMWIRE_LANES Words magnitude_of(Floats p) {
    return minimum(bit_and(as_words(p), broadcast_bits(kMagnitudeMask)),
                   broadcast_bits(kNanFloat32));
}
SLIMWIRE_LANES uint32_t magnitude_bits(float p) {
    const uint32_t magnitude = __builtin_bit_cast(uint32_t, p) & kMagnitudeMask;
    return magnitude < kNanFloat32 ? magnitude : kNanFloat32;
}
SLIMWIRE_LANES bool is_finite(float p) {
    return magnitude_bits(p) < kInfinityBits;
}
