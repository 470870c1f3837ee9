// Groups of 64 elements to and from their bytes, and the choice of a palette, with AVX-512: the
// part of palette_avx512.h that comes before the codes. Included by it.

// Byte numbers for two-register permutations. Registers hold elements in order; gather_order takes
// byte j of 64 / bytes * 2 elements, byte after byte; scatter_order is the inverse.
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

constexpr ByteOrder kPlaces = gather_order(1, 0);  // 0, 1, 2, ...

template <int bytes>
struct ByteOrders {
    static constexpr ByteOrder kLow = gather_order(bytes, 0);
    static constexpr ByteOrder kHigh = gather_order(bytes, bytes / 2);
    static constexpr ByteOrder kFirst = scatter_order(bytes, 0);
    static constexpr ByteOrder kSecond = scatter_order(bytes, 1);
};

struct VectorGroups : PlainSteps {
    using Word [[gnu::may_alias, gnu::aligned(1)]] = uint64_t;

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

    // `streams`: past the caches; the output is then aligned to 64 bytes.
    template <bool streams>
    static void store(uint8_t* to, __m512i x) {
        if constexpr (streams) {
            _mm512_stream_si512(reinterpret_cast<__m512i*>(to), x);
        } else {
            _mm512_storeu_si512(to, x);
        }
    }

    template <class S, bool streams = false>
    static void store_group(const __m512i* part, uint8_t* output) {
        if constexpr (S::kBytes == 1) {
            store<streams>(output, rotate_back<S>(part[0]));
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
                store<streams>(output + 128 * i, rotate_back<S>(x));
                store<streams>(output + 128 * i + 64, rotate_back<S>(y));
            }
        }
    }

    // The same where only `left` elements may be left.
    template <class S>
    static void load_some(const uint8_t* input, int left, __m512i* part) {
        if (left >= 64) {
            load_group<S>(input, part);
            return;
        }
        alignas(64) uint8_t group[64 * S::kBytes] = {};
        __builtin_memcpy(group, input, static_cast<size_t>(left) * S::kBytes);
        load_group<S>(group, part);
    }
    template <class S, bool streams = false>
    static void store_some(const __m512i* part, int left, uint8_t* output) {
        if (left >= 64) {
            store_group<S, streams>(part, output);
            return;
        }
        alignas(64) uint8_t group[64 * S::kBytes];
        store_group<S>(part, group);
        __builtin_memcpy(output, group, static_cast<size_t>(left) * S::kBytes);
    }

    // Top bytes without the bits that stay as they are.
    template <int raw_bits>
    static __m512i symbols_of(__m512i top) {
        if constexpr (raw_bits == 0) {
            return top;
        } else {
            return _mm512_and_si512(_mm512_srli_epi16(top, raw_bits),
                                    set1(uint8_t(255 >> raw_bits)));
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
    static PaletteChoice choose_palette(const uint8_t* input,
                                        int n,
                                        bool always,
                                        uint8_t* palette) {
        if (n < kPaletteSamples) {
            return PlainSteps::choose_palette<S>(input, n, always, palette);
        }
        const int distance = palette_run_distance(n) * S::kBytes;
        __m512i x[4];
        for (int v = 0; v < 4; ++v) {
            __m512i elements[S::kBytes];
            __m512i part[S::kBytes];
            for (int i = 0; i < S::kBytes; ++i) {
                elements[i] = load_sample<S>(input, distance, 64 * (v * S::kBytes + i));
            }
            split_group<S>(elements, part);
            x[v] = symbols_of<S::kRawBits>(part[S::kPlanes]);
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
        PaletteChoice choice = {zeros * kPaletteZeroPart > kPaletteSamples, false, false, base};
        if (choice.try_zeros && !always) {
            return choice;
        }
        // Place 1..15 of each symbol, 0 for symbol 0; bit 7 set beyond. One-hot bits of the places,
        // transposed eight by eight, are counted by byte.
        const __m512i vbase = set1(static_cast<uint8_t>(base));
        __m512i place[4];
        int outside = 0;
        for (int v = 0; v < 4; ++v) {
            place[v] =
                _mm512_maskz_adds_epu8(is_nonzero[v], _mm512_sub_epi8(x[v], vbase), set1(0x71));
            outside += __builtin_popcountll(_mm512_movepi8_mask(place[v]));
        }
        choice.wide = outside * kWidePart > kPaletteSamples;
        if (choice.wide && !always) {
            return choice;
        }
        choice.made = true;
        const __m512i low_hot = _mm512_broadcast_i32x4(
            _mm_setr_epi8(1, 2, 4, 8, 16, 32, 64, -128, 0, 0, 0, 0, 0, 0, 0, 0));
        const __m512i high_hot = _mm512_broadcast_i32x4(
            _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 64, -128));
        const __m512i identity = _mm512_set1_epi64(static_cast<int64_t>(0x8040201008040201));
        __m512i low = _mm512_setzero_si512();
        __m512i high = low;
        for (int v = 0; v < 4; ++v) {
            const __m512i a =
                _mm512_gf2p8affine_epi64_epi8(identity, _mm512_shuffle_epi8(low_hot, place[v]), 0);
            const __m512i b =
                _mm512_gf2p8affine_epi64_epi8(identity, _mm512_shuffle_epi8(high_hot, place[v]), 0);
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
        return choice;
    }

    // What surely_raw() looks for takes 46 % of bf16.
    static constexpr int kWidePart = 3;

    static __m128i load128(const uint8_t* from) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    }
    static __m256i load256(const uint8_t* from) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    }
    // Straight from a mask register: of two such stores side by side the compiler makes one of a
    // vector, by way of general registers.
    static void store_mask(uint8_t* to, __mmask64 mask) {
        asm("kmovq %1, %0" : "=m"(*reinterpret_cast<Word*>(to)) : "k"(mask));
    }
    // vpcompressb and vpexpandb wait for what their destination held (Zen 5, 5 cycles and more a
    // step of a loop), masked to zero or not; a zeroed register is ready at once.
    static __m512i compress(__mmask64 mask, __m512i x) {
        __m512i y;
        asm("vpxord %0, %0, %0\n\tvpcompressb %1, %0%{%2%}%{z%}" : "=&v"(y) : "v"(x), "Yk"(mask));
        return y;
    }
    static __m512i expand(__mmask64 mask, __m512i x) {
        __m512i y;
        asm("vpxord %0, %0, %0\n\tvpexpandb %1, %0%{%2%}%{z%}" : "=&v"(y) : "v"(x), "Yk"(mask));
        return y;
    }
    static __m512i compress_words(__mmask8 mask, __m512i x) {
        __m512i y;
        asm("vpxord %0, %0, %0\n\tvpcompressq %1, %0%{%2%}%{z%}" : "=&v"(y) : "v"(x), "Yk"(mask));
        return y;
    }
    static __m512i expand_words(__mmask8 mask, __m512i x) {
        __m512i y;
        asm("vpxord %0, %0, %0\n\tvpexpandq %1, %0%{%2%}%{z%}" : "=&v"(y) : "v"(x), "Yk"(mask));
        return y;
    }
    // A load that stays one: vpexpandb from memory is microcode, hundreds of cycles for some masks.
    static __m512i load_apart(const uint8_t* from) {
        __m512i x = _mm512_loadu_si512(from);
        asm("" : "+v"(x));
        return x;
    }
    static uint64_t load64(const uint8_t* from) {
        uint64_t x;
        __builtin_memcpy(&x, from, 8);
        return x;
    }
};
