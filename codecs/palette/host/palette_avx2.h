// The steps of palette_scalar.h with AVX2, 64 symbols a group in two registers: comparisons and bit
// planes by movemask, codes through a byte shuffle. Escapes, one in four on bell-shaped data, move
// one by one. Included by palette.cpp inside its anonymous namespace.

struct VectorSteps : PlainSteps, FirstTier<VectorSteps> {
    using FirstTier<VectorSteps>::encode_first;
    using FirstTier<VectorSteps>::decode_first;

    static __m256i load(const uint8_t* from) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    }
    static void store(uint8_t* to, __m256i x) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x);
    }
    static __m256i set1(int x) { return _mm256_set1_epi8(static_cast<char>(x)); }
    static uint64_t high_bits(__m256i low, __m256i high) {
        return static_cast<uint32_t>(_mm256_movemask_epi8(low)) |
               static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_epi8(high))) << 32;
    }
    static uint64_t first_lanes(int n) { return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }
    // 255 in each byte whose bit of `bits` is 1.
    static __m256i byte_mask(uint32_t bits) {
        const __m256i spread =
            _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
        const __m256i one = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
        const __m256i x =
            _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int32_t>(bits)), spread);
        return _mm256_cmpeq_epi8(_mm256_and_si256(x, one), one);
    }

    template <class S>
    static void split(const uint8_t* input, int n, uint8_t* planes, int64_t stride, uint8_t* top) {
        if constexpr (S::kBytes == 2) {
            const __m256i low_byte = _mm256_set1_epi16(0x00FF);
            int i = 0;
            for (; i + 32 <= n; i += 32) {
                __m256i x = load(input + 2 * i);
                __m256i y = load(input + 2 * i + 32);
                x = _mm256_or_si256(_mm256_slli_epi16(x, 1), _mm256_srli_epi16(x, 15));
                y = _mm256_or_si256(_mm256_slli_epi16(y, 1), _mm256_srli_epi16(y, 15));
                const __m256i low = _mm256_packus_epi16(_mm256_and_si256(x, low_byte),
                                                        _mm256_and_si256(y, low_byte));
                const __m256i high =
                    _mm256_packus_epi16(_mm256_srli_epi16(x, 8), _mm256_srli_epi16(y, 8));
                store(planes + i, _mm256_permute4x64_epi64(low, 0xD8));
                store(top + i, _mm256_permute4x64_epi64(high, 0xD8));
            }
            PlainSteps::split<S>(input + 2 * i, n - i, planes + i, stride, top + i);
        } else {
            PlainSteps::split<S>(input, n, planes, stride, top);
        }
    }

    template <class S>
    static void merge(
        const uint8_t* planes, int64_t stride, const uint8_t* top, int n, uint8_t* output) {
        if constexpr (S::kBytes == 2) {
            int i = 0;
            for (; i + 32 <= n; i += 32) {
                const __m256i low = load(planes + i);
                const __m256i high = load(top + i);
                const __m256i a = _mm256_unpacklo_epi8(low, high);
                const __m256i b = _mm256_unpackhi_epi8(low, high);
                const __m256i x = _mm256_permute2x128_si256(a, b, 0x20);
                const __m256i y = _mm256_permute2x128_si256(a, b, 0x31);
                store(output + 2 * i,
                      _mm256_or_si256(_mm256_srli_epi16(x, 1), _mm256_slli_epi16(x, 15)));
                store(output + 2 * i + 32,
                      _mm256_or_si256(_mm256_srli_epi16(y, 1), _mm256_slli_epi16(y, 15)));
            }
            PlainSteps::merge<S>(planes + i, stride, top + i, n - i, output + 2 * i);
        } else {
            PlainSteps::merge<S>(planes, stride, top, n, output);
        }
    }

    template <int raw_bits>
    static void split_top(uint8_t* top, int n, uint8_t* words) {
        if (raw_bits == 0) {
            return;
        }
        for (int i = 0; i < n; i += 64) {
            const int t = n - i < 64 ? n - i : 64;
            const __m256i x = load(top + i);
            const __m256i y = load(top + i + 32);
            for (int bit = 0; bit < raw_bits; ++bit) {
                const uint64_t word =
                    high_bits(_mm256_slli_epi16(x, 7 - bit), _mm256_slli_epi16(y, 7 - bit));
                store_word(words, word & first_lanes(t), plane_bytes(t));
                words += plane_bytes(t);
            }
            const __m256i kept = set1(255 >> raw_bits);
            store(top + i, _mm256_and_si256(_mm256_srli_epi16(x, raw_bits), kept));
            store(top + i + 32, _mm256_and_si256(_mm256_srli_epi16(y, raw_bits), kept));
        }
    }

    template <int raw_bits>
    static void merge_top(const uint8_t* words, int n, uint8_t* symbols) {
        if (raw_bits == 0) {
            return;
        }
        for (int i = 0; i < n; i += 64) {
            const int word_bytes = n - i < 64 ? plane_bytes(n - i) : 8;
            const __m256i kept = set1(255 << raw_bits & 255);
            __m256i x = _mm256_and_si256(_mm256_slli_epi16(load(symbols + i), raw_bits), kept);
            __m256i y = _mm256_and_si256(_mm256_slli_epi16(load(symbols + i + 32), raw_bits), kept);
            for (int bit = 0; bit < raw_bits; ++bit) {
                const uint64_t word = load_word(words, word_bytes);
                words += word_bytes;
                const __m256i one = set1(1 << bit);
                x = _mm256_or_si256(x,
                                    _mm256_and_si256(byte_mask(static_cast<uint32_t>(word)), one));
                y = _mm256_or_si256(
                    y, _mm256_and_si256(byte_mask(static_cast<uint32_t>(word >> 32)), one));
            }
            store(symbols + i, x);
            store(symbols + i + 32, y);
        }
    }

    template <int bits>
    static int tier(
        const uint8_t* symbols, int n, const uint8_t* palette, uint8_t* words, uint8_t* rest) {
        constexpr int kEscape = (1 << bits) - 1;
        int escaped = 0;
        for (int i = 0; i < n; i += 64) {
            const int t = n - i < 64 ? n - i : 64;
            const __m256i x = load(symbols + i);
            const __m256i y = load(symbols + i + 32);
            // A bit of the code is 0 where an entry is met whose number lacks that bit.
            uint64_t clear[bits] = {};
            for (int entry = 0; entry < kEscape; ++entry) {
                const __m256i e = set1(palette[entry]);
                const uint64_t met = high_bits(_mm256_cmpeq_epi8(x, e), _mm256_cmpeq_epi8(y, e));
                for (int bit = 0; bit < bits; ++bit) {
                    clear[bit] |= (entry >> bit & 1) == 0 ? met : 0;
                }
            }
            uint64_t escapes = first_lanes(t);
            for (int bit = 0; bit < bits; ++bit) {
                const uint64_t word = ~clear[bit] & first_lanes(t);
                escapes &= word;
                store_word(words, word, plane_bytes(t));
                words += plane_bytes(t);
            }
            for (; escapes != 0; escapes &= escapes - 1) {
                rest[escaped++] = symbols[i + __builtin_ctzll(escapes)];
            }
        }
        return escaped;
    }

    template <int bits>
    static int untier(const uint8_t* words,
                      int n,
                      const uint8_t* palette,
                      const uint8_t* rest,
                      uint8_t* symbols) {
        alignas(16) uint8_t entries[16] = {};
        __builtin_memcpy(entries, palette, (1 << bits) - 1);
        const __m256i table =
            _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(entries)));
        int taken = 0;
        for (int i = 0; i < n; i += 64) {
            const int t = n - i < 64 ? n - i : 64;
            uint64_t escapes = first_lanes(t);
            __m256i low = _mm256_setzero_si256();
            __m256i high = low;
            for (int bit = 0; bit < bits; ++bit) {
                const uint64_t word = load_word(words, plane_bytes(t));
                words += plane_bytes(t);
                escapes &= word;
                const __m256i one = set1(1 << bit);
                low = _mm256_or_si256(
                    low, _mm256_and_si256(byte_mask(static_cast<uint32_t>(word)), one));
                high = _mm256_or_si256(
                    high, _mm256_and_si256(byte_mask(static_cast<uint32_t>(word >> 32)), one));
            }
            store(symbols + i, _mm256_shuffle_epi8(table, low));
            store(symbols + i + 32, _mm256_shuffle_epi8(table, high));
            for (; escapes != 0; escapes &= escapes - 1) {
                symbols[i + __builtin_ctzll(escapes)] = rest[taken++];
            }
        }
        return taken;
    }
};
