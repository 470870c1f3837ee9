// Blocks that the codes are not for, with AVX-512: those with many zeros, whose other elements are
// gathered and spread again, and those that are stored raw. Included by palette_avx512.h.

struct VectorZeros : VectorCodes {
    // A bit for every element of a vector, from element 0.
    template <class S>
    static uint64_t nonzero_mask(__m512i x) {
        if constexpr (S::kBytes == 1) {
            return _mm512_test_epi8_mask(x, x);
        } else if constexpr (S::kBytes == 2) {
            return _mm512_test_epi16_mask(x, x);
        } else if constexpr (S::kBytes == 4) {
            return _mm512_test_epi32_mask(x, x);
        } else {
            return _mm512_test_epi64_mask(x, x);
        }
    }
    template <class S>
    static uint64_t mark_group(const uint8_t* input) {
        uint64_t word = 0;
        for (int v = 0; v < S::kBytes; ++v) {
            const uint64_t some = nonzero_mask<S>(_mm512_loadu_si512(input + 64 * v));
            word |= some << (64 / S::kBytes * v % 64);
        }
        return word;
    }

    template <class S>
    [[gnu::noinline]] static int mark_nonzero(const uint8_t* input, int n, uint64_t* marks) {
        int ones = 0;
        int i = 0;
        for (; i + 64 <= n; i += 64) {
            prefetch_lines<S::kBytes, false>(input + (i + kReadAhead) * S::kBytes);
            const uint64_t word = mark_group<S>(input + i * S::kBytes);
            marks[i / 64] = word;
            ones += __builtin_popcountll(word);
        }
        if (i < n) {
            alignas(64) uint8_t group[64 * S::kBytes] = {};
            __builtin_memcpy(group, input + i * S::kBytes, static_cast<size_t>(n - i) * S::kBytes);
            marks[i / 64] = mark_group<S>(group);
            ones += __builtin_popcountll(marks[i / 64]);
        }
        return ones;
    }

    static uint64_t pack_marks(const uint64_t* marks, int words, uint8_t* to) {
        uint64_t groups = 0;
        for (int i = 0; i < words; i += 8) {
            const __m512i x =
                _mm512_maskz_loadu_epi64(static_cast<__mmask8>(first_lanes(words - i)), marks + i);
            const __mmask8 some = _mm512_test_epi64_mask(x, x);
            _mm512_storeu_si512(to, _mm512_maskz_compress_epi64(some, x));
            to += 8 * __builtin_popcount(some);
            groups |= uint64_t{some} << i;
        }
        return groups;
    }

    static int unpack_marks(uint64_t groups, const uint8_t* from, uint64_t* marks) {
        __m512i ones = _mm512_setzero_si512();
        for (int i = 0; i < 64; i += 8) {
            const auto some = static_cast<__mmask8>(groups >> i);
            const __m512i x = _mm512_maskz_expand_epi64(some, load_apart(from));
            from += 8 * __builtin_popcount(some);
            _mm512_storeu_si512(marks + i, x);
            ones = _mm512_add_epi64(ones, _mm512_popcnt_epi64(x));
        }
        return static_cast<int>(_mm512_reduce_add_epi64(ones));
    }

    template <class S>
    [[gnu::noinline]] static void gather(const uint8_t* input,
                                         int n,
                                         uint64_t groups,
                                         const uint64_t* marks,
                                         uint8_t* planes,
                                         int64_t stride,
                                         uint8_t* top) {
        __m512i part[S::kBytes];
        for (; groups != 0; groups &= groups - 1) {
            const int i = 64 * __builtin_ctzll(groups);
            const uint64_t word = marks[i / 64];
            load_some<S>(input + i * S::kBytes, n - i, part);
            for (int j = 0; j < S::kPlanes; ++j) {
                _mm512_storeu_si512(planes + j * stride, compress(word, part[j]));
            }
            _mm512_storeu_si512(top, compress(word, part[S::kPlanes]));
            planes += __builtin_popcountll(word);
            top += __builtin_popcountll(word);
        }
    }

    // `next`: the payload of the next block. Where few groups are empty, all are written; otherwise
    // zeros and those that are not.
    template <class S>
    [[gnu::noinline]] static void spread(const uint8_t* planes,
                                         int64_t stride,
                                         const uint8_t* top,
                                         uint64_t groups,
                                         const uint64_t* marks,
                                         int n,
                                         const uint8_t* next,
                                         uint8_t* output) {
        constexpr int kMany = 40;
        if (__builtin_popcountll(groups) >= kMany) {
            groups = first_lanes((n + 63) / 64);
        } else {
            __builtin_memset(output, 0, static_cast<size_t>(n) * S::kBytes);
        }
        __m512i part[S::kBytes];
        for (; groups != 0; groups &= groups - 1) {
            const int i = 64 * __builtin_ctzll(groups);
            const uint64_t word = marks[i / 64];
            prefetch_lines<S::kBytes, true>(output + (i + kWriteAhead) * S::kBytes);
            prefetch_lines<S::kBytes, false>(next + i * S::kBytes);
            for (int j = 0; j < S::kPlanes; ++j) {
                part[j] = expand(word, _mm512_loadu_si512(planes + j * stride));
            }
            part[S::kPlanes] = expand(word, _mm512_loadu_si512(top));
            store_some<S>(part, n - i, output + i * S::kBytes);
            planes += __builtin_popcountll(word);
            top += __builtin_popcountll(word);
        }
    }

    // Symbols outside the places are a lower bound of all three tiers' escapes.
    template <class S>
    [[gnu::noinline]] static bool surely_raw(const uint8_t* input, int n, int base) {
        const __m512i first = set1(static_cast<uint8_t>(base));
        const int fixed =
            kPaletteHeader + S::kPlanes * n + (S::kRawBits + 2) * plane_bytes(n) - n * S::kBytes;
        int outside = 0;
        __m512i part[S::kBytes];
        for (int i = 0; i + 64 <= n; i += 64) {
            load_group<S>(input + i * S::kBytes, part);
            const __m512i s = symbols_of<S::kRawBits>(part[S::kPlanes]);
            const __mmask64 some = _mm512_test_epi8_mask(s, s);
            outside += __builtin_popcountll(
                _mm512_mask_cmpge_epu8_mask(some, _mm512_sub_epi8(s, first), set1(15)));
            if (fixed + (2 + 3) * plane_bytes(outside) + outside >= 0) {
                return true;
            }
        }
        return false;
    }

    // A block that is stored raw, exactly; the next one is asked for.
    [[gnu::noinline]] static void copy_raw(uint8_t* to, const uint8_t* from, int64_t bytes) {
        int64_t i = 0;
        for (; i + 64 <= bytes; i += 64) {
            prefetch_lines<1, false>(from + i + bytes);
            prefetch_lines<1, true>(to + i + bytes);
            _mm512_storeu_si512(to + i, _mm512_loadu_si512(from + i));
        }
        copy(to + i, from + i, bytes - i);
    }

    // A finished block, or a part of one, exactly. `ahead`: bytes to what is written next.
    static void copy(uint8_t* to, const uint8_t* from, int64_t bytes, int64_t ahead = 0) {
        int64_t i = 0;
        for (; i + 64 <= bytes; i += 64) {
            prefetch_lines<1, true>(to + i + ahead);
            _mm512_storeu_si512(to + i, _mm512_loadu_si512(from + i));
        }
        const __mmask64 live = first_lanes(static_cast<int>(bytes - i));
        _mm512_mask_storeu_epi8(to + i, live, _mm512_maskz_loadu_epi8(live, from + i));
    }
};
