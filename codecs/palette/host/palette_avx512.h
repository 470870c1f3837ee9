// The steps of palette_scalar.h, 64 symbols at a time, with AVX-512 VBMI, VBMI2, BITALG and GFNI.
// Included by palette.cpp inside its anonymous namespace. Here: the low bits of top bytes that stay
// as they are, and the first tier in one pass with the elements.

#include "codecs/palette/host/palette_avx512_groups.h"

#include "codecs/palette/host/palette_avx512_codes.h"
#include "codecs/palette/host/palette_avx512_zeros.h"

struct VectorSteps : VectorZeros {
    // The low raw_bits bits of each byte -> planes of one group; returns the symbols.
    template <int raw_bits>
    static __m512i split_bits(__m512i top, __mmask64 live, uint8_t* words, int word_bytes) {
        if constexpr (raw_bits == 0) {
            return top;
        } else {
            for (int bit = 0; bit < raw_bits; ++bit) {
                store_mask(words + bit * word_bytes,
                           _mm512_mask_test_epi8_mask(live, top, set1(uint8_t(1 << bit))));
            }
            return symbols_of<raw_bits>(top);
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

    // Whole groups; returns the end of `rest`.
    template <class S>
    [[gnu::noinline]] static uint8_t* encode_groups(const uint8_t* input,
                                                    int groups,
                                                    int64_t stride,
                                                    const uint8_t* palette,
                                                    uint8_t* planes,
                                                    uint8_t* raw_words,
                                                    uint8_t* words,
                                                    uint8_t* rest) {
        const TierEncoder<2> coder(palette);
        __m512i part[S::kBytes];
        for (const uint8_t* const end = words + 16 * groups; words != end; words += 16) {
            prefetch_lines<S::kBytes, false>(input + kReadAhead * S::kBytes);
            prefetch_lines<S::kPlanes == 0 ? 0 : 1, true>(planes + S::kPlanes * kPaletteBlock +
                                                          kPlanesAhead);
            load_group<S>(input, part);
            for (int j = 0; j < S::kPlanes; ++j) {
                _mm512_storeu_si512(planes + j * stride, part[j]);
            }
            const __m512i s =
                split_bits<S::kRawBits>(part[S::kPlanes], ~__mmask64{0}, raw_words, 8);
            rest = put_escapes(s, coder.encode(s, ~__mmask64{0}, words, 8), rest);
            input += 64 * S::kBytes;
            planes += 64;
            raw_words += 8 * S::kRawBits;
        }
        return rest;
    }

    template <class S>
    static int encode_first(const uint8_t* input,
                            int n,
                            const uint8_t* palette,
                            uint8_t* planes,
                            uint8_t* raw_words,
                            uint8_t* words,
                            uint8_t* rest) {
        const int groups = n / 64;
        uint8_t* next = encode_groups<S>(input, groups, n, palette, planes, raw_words, words, rest);
        if (n % 64 != 0) {
            const int begin = 64 * groups;
            const __mmask64 live = first_lanes(n - begin);
            const int word_bytes = plane_bytes(n - begin);
            __m512i part[S::kBytes];
            load_some<S>(input + begin * S::kBytes, n - begin, part);
            for (int j = 0; j < S::kPlanes; ++j) {
                _mm512_mask_storeu_epi8(planes + j * n + begin, live, part[j]);
            }
            // In the order of addresses: the last word of one run may spill into the next.
            alignas(64) uint8_t bits[64];
            const __m512i s = split_bits<S::kRawBits>(part[S::kPlanes], live, bits, 8);
            for (int bit = 0; bit < S::kRawBits; ++bit) {
                __builtin_memcpy(raw_words + 8 * S::kRawBits * groups + bit * word_bytes,
                                 bits + 8 * bit, static_cast<size_t>(word_bytes));
            }
            const TierEncoder<2> coder(palette);
            next = put_escapes(s, coder.encode(s, live, words + 16 * groups, word_bytes), next);
        }
        return static_cast<int>(next - rest);
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

    // Whole groups; returns the end of what it took of `rest`.
    template <class S, bool streams>
    [[gnu::noinline]] static const uint8_t* decode_groups(const uint8_t* planes,
                                                          int groups,
                                                          int64_t stride,
                                                          const uint8_t* raw_words,
                                                          const uint8_t* words,
                                                          const uint8_t* palette,
                                                          const uint8_t* rest,
                                                          uint8_t* output) {
        const TierDecoder<2> coder(palette);
        __m512i part[S::kBytes];
        __mmask64 escaped;
        for (int i = 0; i < 64 * groups; i += 64) {
            prefetch_coded<S>(planes, i);
            prefetch_lines<streams ? 0 : S::kBytes, true>(output + kWriteAhead * S::kBytes);
            for (int j = 0; j < S::kPlanes; ++j) {
                part[j] = _mm512_loadu_si512(planes + j * stride + i);
            }
            __m512i s = coder.decode(words, ~__mmask64{0}, 8, &escaped);
            s = take_escapes(s, escaped, &rest);
            part[S::kPlanes] = merge_bits<S::kRawBits>(s, raw_words, 8);
            store_group<S, streams>(part, output);
            words += 16;
            raw_words += 8 * S::kRawBits;
            output += 64 * S::kBytes;
        }
        return rest;
    }

    template <class S>
    static int decode_first(const uint8_t* planes,
                            const uint8_t* raw_words,
                            const uint8_t* words,
                            int n,
                            const uint8_t* palette,
                            const uint8_t* rest,
                            uint8_t*,
                            bool streams,
                            uint8_t* output) {
        const int groups = n / 64;
        const uint8_t* next = streams ? decode_groups<S, true>(planes, groups, n, raw_words, words,
                                                               palette, rest, output)
                                      : decode_groups<S, false>(planes, groups, n, raw_words, words,
                                                                palette, rest, output);
        if (n % 64 != 0) {
            const int begin = 64 * groups;
            const int word_bytes = plane_bytes(n - begin);
            __m512i part[S::kBytes];
            for (int j = 0; j < S::kPlanes; ++j) {
                part[j] = _mm512_loadu_si512(planes + j * n + begin);
            }
            const TierDecoder<2> coder(palette);
            __mmask64 escaped;
            __m512i s =
                coder.decode(words + 16 * groups, first_lanes(n - begin), word_bytes, &escaped);
            s = take_escapes(s, escaped, &next);
            part[S::kPlanes] =
                merge_bits<S::kRawBits>(s, raw_words + 8 * S::kRawBits * groups, word_bytes);
            store_some<S>(part, n - begin, output + begin * S::kBytes);
        }
        return static_cast<int>(next - rest);
    }
};
