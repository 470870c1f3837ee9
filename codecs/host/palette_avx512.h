// The steps of palette_scalar.h, 64 symbols at a time, with AVX-512 VBMI, VBMI2, BITALG and GFNI.
// Included by palette.cpp inside its anonymous namespace. Groups that are not full go through a
// buffer of whole groups, so that each loop has one form.

#include "codecs/host/palette_avx512_groups.h"

struct VectorSteps : VectorGroups {
    template <class S>
    static void split(const uint8_t* input, int n, uint8_t* planes, int64_t stride, uint8_t* top) {
        int i = 0;
        __m512i part[S::kBytes];
        for (; i + 64 <= n; i += 64) {
            load_group<S>(input + i * S::kBytes, part);
            for (int j = 0; j < S::kPlanes; ++j) {
                _mm512_storeu_si512(planes + j * stride + i, part[j]);
            }
            _mm512_storeu_si512(top + i, part[S::kPlanes]);
        }
        if (i < n) {
            alignas(64) uint8_t group[64 * S::kBytes] = {};
            __builtin_memcpy(group, input + i * S::kBytes, static_cast<size_t>(n - i) * S::kBytes);
            load_group<S>(group, part);
            for (int j = 0; j < S::kPlanes; ++j) {
                _mm512_mask_storeu_epi8(planes + j * stride + i, first_lanes(n - i), part[j]);
            }
            _mm512_storeu_si512(top + i, part[S::kPlanes]);
        }
    }

    template <class S>
    static void merge(
        const uint8_t* planes, int64_t stride, const uint8_t* top, int n, uint8_t* output) {
        __m512i part[S::kBytes];
        for (int i = 0; i < n; i += 64) {
            for (int j = 0; j < S::kPlanes; ++j) {
                part[j] = _mm512_loadu_si512(planes + j * stride + i);
            }
            part[S::kPlanes] = _mm512_loadu_si512(top + i);
            store_some<S>(part, n - i, output + i * S::kBytes);
        }
    }

    template <class S>
    static void store_some(const __m512i* part, int left, uint8_t* output) {
        if (left >= 64) {
            store_group<S>(part, output);
            return;
        }
        alignas(64) uint8_t group[64 * S::kBytes];
        store_group<S>(part, group);
        __builtin_memcpy(output, group, static_cast<size_t>(left) * S::kBytes);
    }

    // The low raw_bits bits of each byte -> planes of one group; returns the symbols.
    template <int raw_bits>
    static __m512i split_bits(__m512i top, __mmask64 live, uint8_t* words, int word_bytes) {
        if constexpr (raw_bits == 0) {
            return top;
        } else {
            for (int bit = 0; bit < raw_bits; ++bit) {
                const __mmask64 word =
                    _mm512_mask_test_epi8_mask(live, top, set1(uint8_t(1 << bit)));
                store64(words + bit * word_bytes, word);
            }
            return _mm512_and_si512(_mm512_srli_epi16(top, raw_bits),
                                    set1(uint8_t(255 >> raw_bits)));
        }
    }
    template <int raw_bits>
    static __m512i merge_bits(__m512i symbols, const uint8_t* words, int word_bytes) {
        if constexpr (raw_bits == 0) {
            return symbols;
        } else {
            __m512i top = _mm512_and_si512(_mm512_slli_epi16(symbols, raw_bits),
                                           set1(uint8_t(255 << raw_bits)));
            for (int bit = 0; bit < raw_bits; ++bit) {
                const __m512i one = _mm512_maskz_mov_epi8(load64(words + bit * word_bytes),
                                                          set1(uint8_t(1 << bit)));
                top = _mm512_or_si512(top, one);
            }
            return top;
        }
    }

    template <int raw_bits>
    static void split_top(uint8_t* top, int n, uint8_t* words) {
        if (raw_bits == 0) {
            return;
        }
        for (int i = 0; i < n; i += 64) {
            const int t = n - i < 64 ? n - i : 64;
            const __m512i x = _mm512_loadu_si512(top + i);
            _mm512_storeu_si512(top + i,
                                split_bits<raw_bits>(x, first_lanes(t), words, plane_bytes(t)));
            words += raw_bits * plane_bytes(t);
        }
    }
    template <int raw_bits>
    static void merge_top(const uint8_t* words, int n, uint8_t* symbols) {
        if (raw_bits == 0) {
            return;
        }
        for (int i = 0; i < n; i += 64) {
            const int word_bytes = n - i < 64 ? plane_bytes(n - i) : 8;
            const __m512i x = _mm512_loadu_si512(symbols + i);
            _mm512_storeu_si512(symbols + i, merge_bits<raw_bits>(x, words, word_bytes));
            words += raw_bits * word_bytes;
        }
    }

    // Words of one group of symbols; appends to `rest` those the palette lacks.
    template <int bits>
    struct Coder {
        static constexpr int kEntries = (1 << bits) - 1;
        __m512i entry[kEntries];

        explicit Coder(const uint8_t* palette) {
            for (int i = 0; i < kEntries; ++i) {
                entry[i] = set1(palette[i]);
            }
        }

        uint8_t* encode(
            __m512i s, __mmask64 live, uint8_t* words, int word_bytes, uint8_t* rest) const {
            // Bit j of the code is clear where some entry without bit j in its number is met.
            __mmask64 escaped;
            if constexpr (bits == 2) {
                const __mmask64 not0 = _mm512_mask_cmpneq_epi8_mask(live, s, entry[0]);
                const __mmask64 bit0 = _mm512_mask_cmpneq_epi8_mask(not0, s, entry[2]);
                const __mmask64 bit1 = _mm512_mask_cmpneq_epi8_mask(not0, s, entry[1]);
                store64(words, bit0);
                asm volatile("" ::: "memory");  // else both go through a vector register
                store64(words + word_bytes, bit1);
                escaped = _kand_mask64(bit0, bit1);
            } else {
                __mmask64 miss[kEntries];
                for (int i = 0; i < kEntries; ++i) {
                    miss[i] = _mm512_mask_cmpneq_epi8_mask(live, s, entry[i]);
                }
                const __mmask64 bit0 = miss[0] & miss[2] & miss[4] & miss[6];
                const __mmask64 bit1 = miss[0] & miss[1] & miss[4] & miss[5];
                const __mmask64 bit2 = miss[0] & miss[1] & miss[2] & miss[3];
                store64(words, bit0);
                store64(words + word_bytes, bit1);
                store64(words + 2 * word_bytes, bit2);
                escaped = bit0 & bit1 & bit2;
            }
            _mm512_storeu_si512(rest, _mm512_maskz_compress_epi8(escaped, s));
            return rest + __builtin_popcountll(escaped);
        }

        __m512i decode(const uint8_t* words,
                       __mmask64 live,
                       int word_bytes,
                       const uint8_t*& rest) const {
            const __mmask64 bit0 = _kand_mask64(load64(words), live);
            const __mmask64 bit1 = _kand_mask64(load64(words + word_bytes), live);
            __mmask64 escaped = _kand_mask64(bit0, bit1);
            __m512i s;
            if constexpr (bits == 2) {
                s = _mm512_mask_mov_epi8(entry[0], bit0, entry[1]);
                s = _mm512_mask_mov_epi8(s, bit1, entry[2]);
            } else {
                const __mmask64 bit2 = _kand_mask64(load64(words + 2 * word_bytes), live);
                const __m512i low = _mm512_mask_mov_epi8(entry[0], bit0, entry[1]);
                const __m512i high = _mm512_mask_mov_epi8(entry[4], bit0, entry[5]);
                s = _mm512_mask_mov_epi8(low, bit1, _mm512_mask_mov_epi8(entry[2], bit0, entry[3]));
                s = _mm512_mask_mov_epi8(s, bit2, _mm512_mask_mov_epi8(high, bit1, entry[6]));
                escaped = _kand_mask64(escaped, bit2);
            }
            s = _mm512_mask_expand_epi8(s, escaped, _mm512_loadu_si512(rest));
            rest += __builtin_popcountll(escaped);
            return s;
        }
    };

    template <int bits>
    static int tier(
        const uint8_t* symbols, int n, const uint8_t* palette, uint8_t* words, uint8_t* rest) {
        const Coder<bits> coder(palette);
        uint8_t* next = rest;
        int i = 0;
        for (; i + 64 <= n; i += 64) {
            next = coder.encode(_mm512_loadu_si512(symbols + i), ~__mmask64{0}, words, 8, next);
            words += 8 * bits;
        }
        if (i < n) {
            next = coder.encode(_mm512_loadu_si512(symbols + i), first_lanes(n - i), words,
                                plane_bytes(n - i), next);
        }
        return static_cast<int>(next - rest);
    }

    template <int bits>
    static int untier(const uint8_t* words,
                      int n,
                      const uint8_t* palette,
                      const uint8_t* rest,
                      uint8_t* symbols) {
        const Coder<bits> coder(palette);
        const uint8_t* next = rest;
        int i = 0;
        for (; i + 64 <= n; i += 64) {
            _mm512_storeu_si512(symbols + i, coder.decode(words, ~__mmask64{0}, 8, next));
            words += 8 * bits;
        }
        if (i < n) {
            _mm512_storeu_si512(symbols + i,
                                coder.decode(words, first_lanes(n - i), plane_bytes(n - i), next));
        }
        return static_cast<int>(next - rest);
    }

    // Encoding and decoding alternate between short runs of computing and of memory traffic; asking
    // for the lines of the next block or two while working on this one keeps both busy.
    static constexpr int kReadAhead = 6144;   // elements
    static constexpr int kWriteAhead = 4096;  // elements
    // Bytes beyond the planes of a block: about the middle of the next block's.
    static constexpr int kPlanesAhead = 1408;

    template <int lines, bool writes>
    static void prefetch_lines(const uint8_t* at) {
        for (int i = 0; i < lines; ++i) {
            __builtin_prefetch(at + 64 * i, writes ? 1 : 0, 3);
        }
    }

    // The group of the next block whose planes stand at planes + i in this one.
    template <class S>
    static void prefetch_coded(const uint8_t* planes, int i) {
        constexpr int kAhead = S::kPlanes * kPaletteBlock + 1408;
        prefetch_lines<S::kPlanes, false>(planes + i * S::kPlanes + kAhead);
        if (i % 128 == 0) {
            prefetch_lines<1, false>(planes + kAhead + S::kPlanes * kPaletteBlock + i / 2);
        }
    }

    template <class S>
    static int encode_first(const uint8_t* input,
                            int n,
                            const uint8_t* palette,
                            uint8_t* planes,
                            uint8_t* raw_words,
                            uint8_t* words,
                            uint8_t* rest) {
        const Coder<2> coder(palette);
        uint8_t* next = rest;
        __m512i part[S::kBytes];
        int i = 0;
        for (; i + 64 <= n; i += 64) {
            prefetch_lines<S::kBytes, false>(input + (i + kReadAhead) * S::kBytes);
            prefetch_lines<S::kPlanes, true>(planes + i * S::kPlanes + S::kPlanes * kPaletteBlock +
                                             kPlanesAhead);
            load_group<S>(input + i * S::kBytes, part);
            for (int j = 0; j < S::kPlanes; ++j) {
                _mm512_storeu_si512(planes + j * n + i, part[j]);
            }
            const __m512i s =
                split_bits<S::kRawBits>(part[S::kPlanes], ~__mmask64{0}, raw_words, 8);
            raw_words += 8 * S::kRawBits;
            next = coder.encode(s, ~__mmask64{0}, words, 8, next);
            words += 16;
        }
        if (i < n) {
            const __mmask64 live = first_lanes(n - i);
            alignas(64) uint8_t group[64 * S::kBytes] = {};
            __builtin_memcpy(group, input + i * S::kBytes, static_cast<size_t>(n - i) * S::kBytes);
            load_group<S>(group, part);
            for (int j = 0; j < S::kPlanes; ++j) {
                _mm512_mask_storeu_epi8(planes + j * n + i, live, part[j]);
            }
            // In the order of addresses: the last word of one run may spill into the next.
            alignas(64) uint8_t bits[64];
            const __m512i s = split_bits<S::kRawBits>(part[S::kPlanes], live, bits, 8);
            const int word_bytes = plane_bytes(n - i);
            for (int bit = 0; bit < S::kRawBits; ++bit) {
                __builtin_memcpy(raw_words + bit * word_bytes, bits + 8 * bit,
                                 static_cast<size_t>(word_bytes));
            }
            next = coder.encode(s, live, words, word_bytes, next);
        }
        return static_cast<int>(next - rest);
    }

    template <class S>
    static int decode_first(const uint8_t* planes,
                            const uint8_t* raw_words,
                            const uint8_t* words,
                            int n,
                            const uint8_t* palette,
                            const uint8_t* rest,
                            uint8_t* scratch,
                            uint8_t* output) {
        (void)scratch;
        const Coder<2> coder(palette);
        const uint8_t* next = rest;
        __m512i part[S::kBytes];
        int i = 0;
        for (; i + 64 <= n; i += 64) {
            prefetch_coded<S>(planes, i);
            prefetch_lines<S::kBytes, true>(output + (i + kWriteAhead) * S::kBytes);
            for (int j = 0; j < S::kPlanes; ++j) {
                part[j] = _mm512_loadu_si512(planes + j * n + i);
            }
            part[S::kPlanes] =
                merge_bits<S::kRawBits>(coder.decode(words, ~__mmask64{0}, 8, next), raw_words, 8);
            raw_words += 8 * S::kRawBits;
            words += 16;
            store_group<S>(part, output + i * S::kBytes);
        }
        if (i < n) {
            for (int j = 0; j < S::kPlanes; ++j) {
                part[j] = _mm512_loadu_si512(planes + j * n + i);
            }
            const int word_bytes = plane_bytes(n - i);
            const __m512i s = coder.decode(words, first_lanes(n - i), word_bytes, next);
            part[S::kPlanes] = merge_bits<S::kRawBits>(s, raw_words, word_bytes);
            store_some<S>(part, n - i, output + i * S::kBytes);
        }
        return static_cast<int>(next - rest);
    }

    static int mark_nonzero(
        const uint8_t* planes, int count, int64_t stride, int n, uint64_t* marks) {
        int ones = 0;
        for (int i = 0; i < n; i += 64) {
            __m512i any = _mm512_loadu_si512(planes + i);
            for (int j = 1; j < count; ++j) {
                any = _mm512_or_si512(any, _mm512_loadu_si512(planes + j * stride + i));
            }
            const int t = n - i < 64 ? n - i : 64;
            const uint64_t word = _mm512_mask_test_epi8_mask(first_lanes(t), any, any);
            marks[i / 64] = word;
            ones += __builtin_popcountll(word);
        }
        return ones;
    }

    static void compress(uint8_t* plane, int n, const uint64_t* marks) {
        uint8_t* next = plane;
        for (int i = 0; i < n; i += 64) {
            const uint64_t word = marks[i / 64];
            _mm512_storeu_si512(next,
                                _mm512_maskz_compress_epi8(word, _mm512_loadu_si512(plane + i)));
            next += __builtin_popcountll(word);
        }
    }

    static void expand(const uint8_t* kept, int n, const uint64_t* marks, uint8_t* plane) {
        for (int i = 0; i < n; i += 64) {
            const uint64_t word = marks[i / 64];
            _mm512_storeu_si512(plane + i,
                                _mm512_maskz_expand_epi8(word, _mm512_loadu_si512(kept)));
            kept += __builtin_popcountll(word);
        }
    }

    static void copy(uint8_t* to, const uint8_t* from, int64_t bytes) {
        int64_t i = 0;
        for (; i + 64 <= bytes; i += 64) {
            _mm512_storeu_si512(to + i, _mm512_loadu_si512(from + i));
        }
        const __mmask64 live = first_lanes(static_cast<int>(bytes - i));
        _mm512_mask_storeu_epi8(to + i, live, _mm512_loadu_si512(from + i));
    }
};
