// Blocks that the codes are not for, with AVX-512: those with many zeros, whose other elements are
// gathered and spread again, and those that are stored raw. Included by palette_avx512.h.

struct VectorZeros : VectorCodes {
    template <class S>
    [[gnu::noinline]] static int gather(const uint8_t* input,
                                        int n,
                                        uint64_t* marks,
                                        uint8_t* planes,
                                        int64_t stride,
                                        uint8_t* top,
                                        const uint8_t* later) {
        const uint8_t* const begin = top;
        __m512i part[S::kBytes];
        for (int i = 0; i < n; i += 64) {
            prefetch_lines<S::kBytes, false>(input + kReadAhead * S::kBytes);
            prefetch_lines<S::kPlanes, true>(later + i * S::kPlanes);
            load_some<S>(input, n - i, part);
            __m512i any = part[0];
            for (int j = 1; j < S::kBytes; ++j) {
                any = _mm512_or_si512(any, part[j]);
            }
            const __mmask64 some = _mm512_test_epi8_mask(any, any);
            const uint64_t word = some;
            *marks++ = word;
            for (int j = 0; j < S::kPlanes; ++j) {
                _mm512_storeu_si512(planes + j * stride, compress(some, part[j]));
            }
            _mm512_storeu_si512(top, compress(some, part[S::kPlanes]));
            input += 64 * S::kBytes;
            planes += __builtin_popcountll(word);
            top += __builtin_popcountll(word);
        }
        return static_cast<int>(top - begin);
    }

    static uint64_t pack_marks(const uint64_t* marks, int words, uint8_t* to) {
        uint64_t groups = 0;
        for (int i = 0; i < words; i += 8) {
            const __m512i x =
                _mm512_maskz_loadu_epi64(static_cast<__mmask8>(first_lanes(words - i)), marks + i);
            const __mmask8 some = _mm512_test_epi64_mask(x, x);
            _mm512_storeu_si512(to, compress_words(some, x));
            to += 8 * __builtin_popcount(some);
            groups |= uint64_t{some} << i;
        }
        return groups;
    }

    static int unpack_marks(uint64_t groups, const uint8_t* from, uint64_t* marks) {
        __m512i ones = _mm512_setzero_si512();
        for (int i = 0; i < 64; i += 8) {
            const auto some = static_cast<__mmask8>(groups >> i);
            const __m512i x = expand_words(some, _mm512_loadu_si512(from));
            from += 8 * __builtin_popcount(some);
            _mm512_storeu_si512(marks + i, x);
            ones = _mm512_add_epi64(ones, _mm512_popcnt_epi64(x));
        }
        return static_cast<int>(_mm512_reduce_add_epi64(ones));
    }

    // `next`: the payload of the next block. Where few groups are empty, all are written; otherwise
    // zeros and those that are not.
    template <class S>
    static void spread(const uint8_t* planes,
                       int64_t stride,
                       const uint8_t* top,
                       uint64_t groups,
                       const uint64_t* marks,
                       int n,
                       const uint8_t* next,
                       bool streams,
                       uint8_t* output) {
        constexpr int kMany = 40;
        if (__builtin_popcountll(groups) < kMany) {
            __builtin_memset(output, 0, static_cast<size_t>(n) * S::kBytes);
            spread_groups<S, false>(planes, stride, top, groups, marks, n, next, output);
        } else if (streams) {
            groups = first_lanes((n + 63) / 64);
            spread_groups<S, true>(planes, stride, top, groups, marks, n, next, output);
        } else {
            groups = first_lanes((n + 63) / 64);
            spread_groups<S, false>(planes, stride, top, groups, marks, n, next, output);
        }
    }

    template <class S, bool streams>
    [[gnu::noinline]] static void spread_groups(const uint8_t* planes,
                                                int64_t stride,
                                                const uint8_t* top,
                                                uint64_t groups,
                                                const uint64_t* marks,
                                                int n,
                                                const uint8_t* next,
                                                uint8_t* output) {
        __m512i part[S::kBytes];
        for (; groups != 0; groups &= groups - 1) {
            const int i = 64 * __builtin_ctzll(groups);
            const uint64_t word = marks[i / 64];
            prefetch_lines<streams ? 0 : S::kBytes, true>(output + (i + kWriteAhead) * S::kBytes);
            prefetch_lines<S::kBytes, false>(next + i * S::kBytes);
            for (int j = 0; j < S::kPlanes; ++j) {
                part[j] = expand(word, _mm512_loadu_si512(planes + j * stride));
            }
            part[S::kPlanes] = expand(word, _mm512_loadu_si512(top));
            store_some<S, streams>(part, n - i, output + i * S::kBytes);
            planes += __builtin_popcountll(word);
            top += __builtin_popcountll(word);
        }
    }

    // What was streamed is seen before what is stored from now on.
    static void fence() { _mm_sfence(); }

    // Symbols outside the places are a lower bound of all three tiers' escapes.
    template <class S>
    [[gnu::noinline]] static bool surely_raw(const uint8_t* input, int n, int base) {
        const __m512i first = set1(static_cast<uint8_t>(base));
        const int fixed =
            kPaletteHeader + S::kPlanes * n + (S::kRawBits + 2) * plane_bytes(n) - n * S::kBytes;
        int outside = 0;
        __m512i part[S::kBytes];
        for (int i = 0; i + 64 <= n; i += 64) {
            // All of the next block, while half of this one is looked at.
            prefetch_lines<2 * S::kBytes, false>(input + (n + 2 * i) * S::kBytes);
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

    // Elements as they are, exactly.
    [[gnu::noinline]] static void copy_raw(uint8_t* to,
                                           const uint8_t* from,
                                           int64_t bytes,
                                           bool streams) {
        const int64_t head = -reinterpret_cast<intptr_t>(to) & (kLine - 1);
        if (!streams || bytes < head + kLine) {
            __builtin_memcpy(to, from, static_cast<size_t>(bytes));
            return;
        }
        copy(to, from, head);
        int64_t i = head;
        for (; i + kLine <= bytes; i += kLine) {
            prefetch_lines<1, false>(from + i + bytes);
            store<true>(to + i, _mm512_loadu_si512(from + i));
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
