// The bits of 32 codes as words, one for each bit, and back:
//   put_planes(a, b, width, to)     the lowest `width` bits of lanes of a, then of b; rubbish above
//   get_planes(from, width, a, b)   zeros above
// Codes are taken eight bits at a time: 32 bytes are four matrices of 8 x 8 bits, whose transposes
// are the bytes of eight words. Exactly 4 * width bytes are touched. Included by bounded.cpp inside
// its anonymous namespace, after the lanes.

constexpr int kPlanesOfLayer = 8;

#if defined(SLIMWIRE_ISA_AVX2)

using Layer = __m256i;

template <int kBy>
SLIMWIRE_LANES __m256i swap_bits(__m256i x, uint64_t mask) {
    const __m256i t = _mm256_and_si256(_mm256_xor_si256(x, _mm256_srli_epi64(x, kBy)),
                                       _mm256_set1_epi64x(static_cast<long long>(mask)));
    return _mm256_xor_si256(x, _mm256_xor_si256(t, _mm256_slli_epi64(t, kBy)));
}
// Bit i of byte k becomes bit k of byte i (Warren, Hacker's Delight, 7-3).
SLIMWIRE_LANES __m256i transposed(__m256i x) {
    x = swap_bits<7>(x, 0x00AA00AA00AA00AAu);
    x = swap_bits<14>(x, 0x0000CCCC0000CCCCu);
    return swap_bits<28>(x, 0x00000000F0F0F0F0u);
}
SLIMWIRE_LANES __m256i bytes_to_planes(__m256i bytes) {
    const __m256i in_pairs = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
    const __m256i pairs = _mm256_shuffle_epi8(transposed(bytes), in_pairs);
    const __m128i low = _mm256_castsi256_si128(pairs);
    const __m128i high = _mm256_extracti128_si256(pairs, 1);
    return _mm256_set_m128i(_mm_unpackhi_epi16(low, high), _mm_unpacklo_epi16(low, high));
}
SLIMWIRE_LANES __m256i planes_to_bytes(__m256i planes) {
    const __m256i in_fours = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m256i fours = _mm256_shuffle_epi8(planes, in_fours);
    const __m128i low = _mm256_castsi256_si128(fours);
    const __m128i high = _mm256_extracti128_si256(fours, 1);
    return transposed(
        _mm256_set_m128i(_mm_unpackhi_epi32(low, high), _mm_unpacklo_epi32(low, high)));
}
SLIMWIRE_LANES __m256i first_words(uint32_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
SLIMWIRE_LANES void store_planes(uint8_t* to, __m256i planes, uint32_t count) {
    _mm256_maskstore_epi32(reinterpret_cast<int*>(to), first_words(count), planes);
}
SLIMWIRE_LANES __m256i load_planes(const uint8_t* from, uint32_t count) {
    return _mm256_maskload_epi32(reinterpret_cast<const int*>(from), first_words(count));
}
template <int kLayer>
SLIMWIRE_LANES __m256i bytes_of_layer(Words a, Words b) {
    const auto byte = [](__m256i x) {
        return _mm256_and_si256(_mm256_srli_epi32(x, 8 * kLayer), _mm256_set1_epi32(0xFF));
    };
    const __m256i first = _mm256_packus_epi32(byte(a.lo), byte(a.hi));
    const __m256i second = _mm256_packus_epi32(byte(b.lo), byte(b.hi));
    return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(first, second),
                                       _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
SLIMWIRE_LANES void words_of_bytes(__m256i bytes, Words& a, Words& b) {
    const __m128i low = _mm256_castsi256_si128(bytes);
    const __m128i high = _mm256_extracti128_si256(bytes, 1);
    a = {_mm256_cvtepu8_epi32(low), _mm256_cvtepu8_epi32(_mm_srli_si128(low, 8))};
    b = {_mm256_cvtepu8_epi32(high), _mm256_cvtepu8_epi32(_mm_srli_si128(high, 8))};
}
SLIMWIRE_LANES void store_high_halves(uint8_t* to, Floats x, Floats y) {
    const auto half = [](__m256 z) { return _mm256_srli_epi32(_mm256_castps_si256(z), 16); };
    const auto pack = [](__m256i low, __m256i high) {
        return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xD8);
    };
    auto* const halves = reinterpret_cast<__m256i*>(to);
    _mm256_storeu_si256(halves, pack(half(x.lo), half(x.hi)));
    _mm256_storeu_si256(halves + 1, pack(half(y.lo), half(y.hi)));
}

#else

struct Layer {
    uint64_t v[4];
};

// Bit i of byte k becomes bit k of byte i (Warren, Hacker's Delight, 7-3).
SLIMWIRE_LANES uint64_t transposed(uint64_t x) {
    uint64_t t = (x ^ x >> 7) & 0x00AA00AA00AA00AAu;
    x ^= t ^ t << 7;
    t = (x ^ x >> 14) & 0x0000CCCC0000CCCCu;
    x ^= t ^ t << 14;
    t = (x ^ x >> 28) & 0x00000000F0F0F0F0u;
    return x ^ t ^ t << 28;
}
// Word i of eight has byte i of four.
SLIMWIRE_LANES Layer bytes_to_planes(Layer bytes) {
    uint8_t from[32];
    uint8_t to[32];
    for (uint64_t& matrix : bytes.v) {
        matrix = transposed(matrix);
    }
    __builtin_memcpy(from, &bytes, 32);
    for (int k = 0; k < 4; ++k) {
        for (int i = 0; i < 8; ++i) {
            to[4 * i + k] = from[8 * k + i];
        }
    }
    __builtin_memcpy(&bytes, to, 32);
    return bytes;
}
SLIMWIRE_LANES Layer planes_to_bytes(Layer planes) {
    uint8_t from[32];
    uint8_t to[32];
    __builtin_memcpy(from, &planes, 32);
    for (int k = 0; k < 4; ++k) {
        for (int i = 0; i < 8; ++i) {
            to[8 * k + i] = from[4 * i + k];
        }
    }
    __builtin_memcpy(&planes, to, 32);
    for (uint64_t& matrix : planes.v) {
        matrix = transposed(matrix);
    }
    return planes;
}
SLIMWIRE_LANES void store_planes(uint8_t* to, const Layer& planes, uint32_t count) {
    __builtin_memcpy(to, &planes, 4 * size_t{count});
}
SLIMWIRE_LANES Layer load_planes(const uint8_t* from, uint32_t count) {
    Layer planes = {};
    __builtin_memcpy(&planes, from, 4 * size_t{count});
    return planes;
}
template <int kLayer>
SLIMWIRE_LANES Layer bytes_of_layer(Words a, Words b) {
    uint32_t words[32];
    uint8_t bytes[32];
    store_words(words, a);
    store_words(words + 16, b);
    for (int i = 0; i < 32; ++i) {
        bytes[i] = static_cast<uint8_t>(words[i] >> (8 * kLayer));
    }
    Layer layer;
    __builtin_memcpy(&layer, bytes, 32);
    return layer;
}
SLIMWIRE_LANES void words_of_bytes(const Layer& layer, Words& a, Words& b) {
    uint8_t bytes[32];
    __builtin_memcpy(bytes, &layer, 32);
    a = load_bytes(bytes);
    b = load_bytes(bytes + 16);
}

SLIMWIRE_LANES void store_high_halves(uint8_t* to, Floats x, Floats y) {
    uint32_t words[32];
    uint16_t halves[32];
    store_float32(words, x);
    store_float32(words + 16, y);
    for (int i = 0; i < 32; ++i) {
        halves[i] = static_cast<uint16_t>(words[i] >> 16);
    }
    __builtin_memcpy(to, halves, sizeof(halves));
}

#endif

// x * inverse + magic, rounded once: the product with a power of two is exact, or too small to
// matter.
SLIMWIRE_LANES Floats to_steps(Floats x, Floats inverse, Floats magic) {
#if defined(SLIMWIRE_ISA_AVX2)
    return multiply_add(x, inverse, magic);
#else
    return add(multiply(x, inverse), magic);
#endif
}

SLIMWIRE_LANES uint32_t planes_of_layer(uint32_t width, uint32_t layer) {
    const uint32_t left = width - layer * kPlanesOfLayer;
    return left < kPlanesOfLayer ? left : kPlanesOfLayer;
}

SLIMWIRE_LANES void put_planes(Words a, Words b, uint32_t width, uint8_t* to) {
    store_planes(to, bytes_to_planes(bytes_of_layer<0>(a, b)), planes_of_layer(width, 0));
    if (width > 8) {
        store_planes(to + 32, bytes_to_planes(bytes_of_layer<1>(a, b)), planes_of_layer(width, 1));
    }
    if (width > 16) {
        store_planes(to + 64, bytes_to_planes(bytes_of_layer<2>(a, b)), planes_of_layer(width, 2));
    }
}

SLIMWIRE_LANES void get_planes(const uint8_t* from, uint32_t width, Words& a, Words& b) {
    words_of_bytes(planes_to_bytes(load_planes(from, planes_of_layer(width, 0))), a, b);
    if (width > 8) {
        Words c, d;
        words_of_bytes(planes_to_bytes(load_planes(from + 32, planes_of_layer(width, 1))), c, d);
        a = bit_or(a, shift_left<8>(c));
        b = bit_or(b, shift_left<8>(d));
    }
    if (width > 16) {
        Words c, d;
        words_of_bytes(planes_to_bytes(load_planes(from + 64, planes_of_layer(width, 2))), c, d);
        a = bit_or(a, shift_left<16>(c));
        b = bit_or(b, shift_left<16>(d));
    }
}
