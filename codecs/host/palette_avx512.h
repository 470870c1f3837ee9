// The steps of palette_scalar.h, 64 symbols at a time, with AVX-512 VBMI, VBMI2, BITALG and GFNI.
// Included by palette.cpp inside its anonymous namespace. Groups that are not full go through a
// buffer of whole groups, so that each loop has one form.

// Byte numbers for two-register permutations. Registers hold elements in order; kSplit gathers byte
// j of 64 / bytes * 2 elements, byte after byte; kZip is the inverse.
struct ByteOrder {
    alignas(64) uint8_t index[64];
};

// Of two registers of `bytes`-wide elements: all bytes number `first`, then all of the next, ...
constexpr ByteOrder gather_order(int bytes, int first) {
    ByteOrder order = {};
    const int elements = 128 / bytes;
    for (int i = 0; i < 64; ++i) {
        order.index[i] = static_cast<uint8_t>(i % elements * bytes + i / elements + first);
    }
    return order;
}

// Of registers with bytes 0.. and bytes bytes/2.. of the elements, as gathered: register `half`.
constexpr ByteOrder scatter_order(int bytes, int half) {
    ByteOrder order = {};
    const int elements = 128 / bytes;
    for (int i = 0; i < 64; ++i) {
        const int element = i / bytes + half * elements / 2;
        order.index[i] = static_cast<uint8_t>(i % bytes * elements + element);
    }
    return order;
}

template <int bytes>
struct ByteOrders {
    static constexpr ByteOrder kLow = gather_order(bytes, 0);
    static constexpr ByteOrder kHigh = gather_order(bytes, bytes / 2);
    static constexpr ByteOrder kFirst = scatter_order(bytes, 0);
    static constexpr ByteOrder kSecond = scatter_order(bytes, 1);
};

struct VectorSteps : PlainSteps {
    static __mmask64 first_lanes(int n) {
        return _bzhi_u64(~uint64_t{0}, static_cast<unsigned>(n));
    }
    static __m512i order(const ByteOrder& order) { return _mm512_load_si512(order.index); }
    static __m512i set1(uint8_t x) { return _mm512_set1_epi8(static_cast<char>(x)); }

    // Sign to bit 0 and back.
    template <class S>
    static __m512i rotate(__m512i x) {
        if constexpr (!S::kRotates) {
            return x;
        } else if constexpr (S::kBytes == 1) {
            const __m512i sign = _mm512_and_si512(_mm512_srli_epi16(x, 7), set1(1));
            return _mm512_or_si512(_mm512_add_epi8(x, x), sign);
        } else if constexpr (S::kBytes == 2) {
            return _mm512_shldi_epi16(x, x, 1);
        } else if constexpr (S::kBytes == 4) {
            return _mm512_rol_epi32(x, 1);
        } else {
            return _mm512_rol_epi64(x, 1);
        }
    }
    template <class S>
    static __m512i rotate_back(__m512i x) {
        if constexpr (!S::kRotates) {
            return x;
        } else if constexpr (S::kBytes == 1) {
            const __m512i low = _mm512_and_si512(_mm512_srli_epi16(x, 1), set1(0x7f));
            return _mm512_or_si512(low, _mm512_and_si512(_mm512_slli_epi16(x, 7), set1(0x80)));
        } else if constexpr (S::kBytes == 2) {
            return _mm512_shrdi_epi16(x, x, 1);
        } else if constexpr (S::kBytes == 4) {
            return _mm512_ror_epi32(x, 1);
        } else {
            return _mm512_ror_epi64(x, 1);
        }
    }

    // 64 elements -> 64 of each byte; part[j] is byte j.
    template <class S>
    static void load_group(const uint8_t* input, __m512i* part) {
        __m512i x[S::kBytes];
        for (int i = 0; i < S::kBytes; ++i) {
            x[i] = _mm512_loadu_si512(input + 64 * i);
        }
        split_group<S>(x, part);
    }

    template <class S>
    static void split_group(__m512i* x, __m512i* part) {
        for (int i = 0; i < S::kBytes; ++i) {
            x[i] = rotate<S>(x[i]);
        }
        if constexpr (S::kBytes == 1) {
            part[0] = x[0];
        } else {
            const __m512i low = order(ByteOrders<S::kBytes>::kLow);
            const __m512i high = order(ByteOrders<S::kBytes>::kHigh);
            __m512i a[4];
            __m512i b[4];
            for (int i = 0; i < S::kBytes / 2; ++i) {
                a[i] = _mm512_permutex2var_epi8(x[2 * i], low, x[2 * i + 1]);
                b[i] = _mm512_permutex2var_epi8(x[2 * i], high, x[2 * i + 1]);
            }
            transpose<S::kBytes>(a, part);
            transpose<S::kBytes>(b, part + S::kBytes / 2);
        }
    }

    template <class S>
    static void store_group(const __m512i* part, uint8_t* output) {
        if constexpr (S::kBytes == 1) {
            _mm512_storeu_si512(output, rotate_back<S>(part[0]));
        } else {
            const __m512i first = order(ByteOrders<S::kBytes>::kFirst);
            const __m512i second = order(ByteOrders<S::kBytes>::kSecond);
            __m512i a[4];
            __m512i b[4];
            transpose<S::kBytes>(part, a);
            transpose<S::kBytes>(part + S::kBytes / 2, b);
            for (int i = 0; i < S::kBytes / 2; ++i) {
                const __m512i x = _mm512_permutex2var_epi8(a[i], first, b[i]);
                const __m512i y = _mm512_permutex2var_epi8(a[i], second, b[i]);
                _mm512_storeu_si512(output + 128 * i, rotate_back<S>(x));
                _mm512_storeu_si512(output + 128 * i + 64, rotate_back<S>(y));
            }
        }
    }

    // bytes / 2 registers of bytes / 2 parts each, transposed; its own inverse.
    template <int bytes>
    static void transpose(const __m512i* x, __m512i* y) {
        if constexpr (bytes == 2) {
            y[0] = x[0];
        } else if constexpr (bytes == 4) {
            y[0] = _mm512_shuffle_i64x2(x[0], x[1], 0x44);
            y[1] = _mm512_shuffle_i64x2(x[0], x[1], 0xee);
        } else {
            const __m512i p = _mm512_shuffle_i64x2(x[0], x[1], 0x44);
            const __m512i q = _mm512_shuffle_i64x2(x[0], x[1], 0xee);
            const __m512i r = _mm512_shuffle_i64x2(x[2], x[3], 0x44);
            const __m512i s = _mm512_shuffle_i64x2(x[2], x[3], 0xee);
            y[0] = _mm512_shuffle_i64x2(p, r, 0x88);
            y[1] = _mm512_shuffle_i64x2(p, r, 0xdd);
            y[2] = _mm512_shuffle_i64x2(q, s, 0x88);
            y[3] = _mm512_shuffle_i64x2(q, s, 0xdd);
        }
    }

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

    // 64 bytes at `offset` of the runs of a sample laid end to end.
    template <class S>
    static __m512i load_sample(const uint8_t* input, int distance, int offset) {
        constexpr int kRunBytes = kPaletteRun * S::kBytes;
        const uint8_t* from = input + offset / kRunBytes * distance + offset % kRunBytes;
        if constexpr (S::kBytes == 1) {
            __m512i x = _mm512_castsi128_si512(load128(from));
            x = _mm512_inserti64x2(x, load128(from + distance), 1);
            x = _mm512_inserti64x2(x, load128(from + 2 * distance), 2);
            return _mm512_inserti64x2(x, load128(from + 3 * distance), 3);
        } else if constexpr (S::kBytes == 2) {
            return _mm512_inserti64x4(_mm512_castsi256_si512(load256(from)),
                                      load256(from + distance), 1);
        } else {
            return _mm512_loadu_si512(from);
        }
    }

    template <class S>
    static bool choose_palette(const uint8_t* input, int n, uint8_t* palette) {
        if (n < kPaletteSamples) {
            return PlainSteps::choose_palette<S>(input, n, palette);
        }
        const int distance = n / kPaletteRuns * S::kBytes;
        __m512i x[4];
        for (int v = 0; v < 4; ++v) {
            __m512i elements[S::kBytes];
            __m512i part[S::kBytes];
            for (int i = 0; i < S::kBytes; ++i) {
                elements[i] = load_sample<S>(input, distance, 64 * (v * S::kBytes + i));
            }
            split_group<S>(elements, part);
            x[v] = part[S::kPlanes];
            if constexpr (S::kRawBits != 0) {
                x[v] = _mm512_and_si512(_mm512_srli_epi16(x[v], S::kRawBits),
                                        set1(uint8_t(255 >> S::kRawBits)));
            }
        }
        __m512i sums = _mm512_setzero_si512();
        int zeros = 0;
        __mmask64 is_nonzero[4];
        for (int v = 0; v < 4; ++v) {
            sums = _mm512_add_epi64(sums, _mm512_sad_epu8(x[v], _mm512_setzero_si512()));
            is_nonzero[v] = _mm512_test_epi8_mask(x[v], x[v]);
            zeros += 64 - __builtin_popcountll(is_nonzero[v]);
        }
        const int sum = static_cast<int>(_mm512_reduce_add_epi64(sums));
        const int base = palette_base(kPaletteSamples - zeros, sum);
        // Place 1..15 of each symbol, 0 for symbol 0; bit 7 set beyond. One-hot bits of the places,
        // transposed eight by eight, are counted by byte.
        const __m512i vbase = set1(static_cast<uint8_t>(base));
        const __m512i low_hot = _mm512_broadcast_i32x4(
            _mm_setr_epi8(1, 2, 4, 8, 16, 32, 64, -128, 0, 0, 0, 0, 0, 0, 0, 0));
        const __m512i high_hot = _mm512_broadcast_i32x4(
            _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 64, -128));
        const __m512i identity = _mm512_set1_epi64(static_cast<int64_t>(0x8040201008040201));
        __m512i low = _mm512_setzero_si512();
        __m512i high = low;
        for (int v = 0; v < 4; ++v) {
            const __m512i place =
                _mm512_maskz_adds_epu8(is_nonzero[v], _mm512_sub_epi8(x[v], vbase), set1(0x71));
            const __m512i a =
                _mm512_gf2p8affine_epi64_epi8(identity, _mm512_shuffle_epi8(low_hot, place), 0);
            const __m512i b =
                _mm512_gf2p8affine_epi64_epi8(identity, _mm512_shuffle_epi8(high_hot, place), 0);
            low = _mm512_add_epi8(low, _mm512_popcnt_epi8(a));
            high = _mm512_add_epi8(high, _mm512_popcnt_epi8(b));
        }
        // Each of eight words has at most 32 of each place.
        const __m256i low4 =
            _mm256_add_epi8(_mm512_castsi512_si256(low), _mm512_extracti64x4_epi64(low, 1));
        const __m256i high4 =
            _mm256_add_epi8(_mm512_castsi512_si256(high), _mm512_extracti64x4_epi64(high, 1));
        const __m128i low2 =
            _mm_add_epi8(_mm256_castsi256_si128(low4), _mm256_extracti128_si256(low4, 1));
        const __m128i high2 =
            _mm_add_epi8(_mm256_castsi256_si128(high4), _mm256_extracti128_si256(high4, 1));
        const __m256i counts =
            _mm256_add_epi16(_mm256_cvtepu8_epi16(_mm_unpacklo_epi64(low2, high2)),
                             _mm256_cvtepu8_epi16(_mm_unpackhi_epi64(low2, high2)));
        const __m256i places =
            _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        const __m256i keys = _mm256_or_si256(_mm256_slli_epi16(counts, 4), places);
        // The rank of a place is the number of larger keys: eight at a time in each half.
        const __m512i both = _mm512_broadcast_i64x4(keys);
        const __m512i ones = _mm512_set1_epi16(-1);
        __m512i pick = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(8), 1);
        __m512i rank = _mm512_setzero_si512();
        for (int j = 0; j < 8; ++j) {
            const __m512i other = _mm512_permutexvar_epi16(pick, both);
            rank = _mm512_mask_sub_epi16(rank, _mm512_cmplt_epu16_mask(both, other), rank, ones);
            pick = _mm512_sub_epi16(pick, ones);
        }
        const __m256i ranks =
            _mm256_add_epi16(_mm512_castsi512_si256(rank), _mm512_extracti64x4_epi64(rank, 1));
        // Four ranks a register, 16 places for each: the symbol whose place has that rank.
        const __m128i symbols = _mm_maskz_add_epi8(
            0xfffe, _mm_set1_epi8(static_cast<char>(base - 1)), _mm256_cvtepi16_epi8(places));
        const __m512i all_ranks = _mm512_broadcast_i32x4(_mm256_cvtepi16_epi8(ranks));
        const __m512i all_symbols = _mm512_broadcast_i32x4(symbols);
        __m512i wanted =
            _mm512_set_epi64(0x0303030303030303, 0x0303030303030303, 0x0202020202020202,
                             0x0202020202020202, 0x0101010101010101, 0x0101010101010101, 0, 0);
        for (int r = 0; r < 16; r += 4) {
            const __m512i one =
                _mm512_maskz_mov_epi8(_mm512_cmpeq_epi8_mask(all_ranks, wanted), all_symbols);
            const __m512i halves = _mm512_sad_epu8(one, _mm512_setzero_si512());
            const __m512i symbol = _mm512_or_si512(halves, _mm512_unpackhi_epi64(halves, halves));
            const uint32_t four = static_cast<uint32_t>(
                _mm_cvtsi128_si32(_mm512_cvtepi64_epi8(_mm512_maskz_compress_epi64(0x55, symbol))));
            __builtin_memcpy(palette + r, &four, r == 12 ? 1 : 4);
            wanted = _mm512_add_epi8(wanted, set1(4));
        }
        return zeros * 4 > kPaletteSamples;
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

    static __m128i load128(const uint8_t* from) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    }
    static __m256i load256(const uint8_t* from) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    }
    static void store64(uint8_t* to, uint64_t x) { __builtin_memcpy(to, &x, 8); }
    static uint64_t load64(const uint8_t* from) {
        uint64_t x;
        __builtin_memcpy(&x, from, 8);
        return x;
    }
};
