// The codes of the palette's tiers with AVX-512: 64 symbols a step, the entries of the palette in
// registers. Included by palette_avx512.h.
//
// What costs here (Zen 5): comparisons into masks, operations on masks and byte permutations share
// two ports, compressing and expanding takes both for a cycle. So the masks of a code are chained
// comparisons, and whole groups are not masked at all. Loops are functions of their own: inlined
// into a block's function they spill. The empty assembly after an entry is made keeps the compiler
// from reading it anew for every group.

template <int bits>
struct TierEncoder;
template <int bits>
struct TierDecoder;

// Three entries with the codes 00, 01, 10.
template <>
struct TierEncoder<2> : VectorGroups {
    __m512i entry0;
    __m512i entry1;
    __m512i entry2;

    [[gnu::always_inline]] explicit TierEncoder(const uint8_t* palette)
        : entry0(set1(palette[0])), entry1(set1(palette[1])), entry2(set1(palette[2])) {
        asm("" : "+v"(entry0), "+v"(entry1), "+v"(entry2));
    }
    [[nodiscard]] static bool works() { return true; }

    // Stores the words of a group; returns which of its symbols escape.
    [[gnu::always_inline]] __mmask64 encode(__m512i s,
                                            __mmask64 live,
                                            uint8_t* words,
                                            int word_bytes) const {
        const __mmask64 not0 = _mm512_mask_cmpneq_epi8_mask(live, s, entry0);
        const __mmask64 bit0 = _mm512_mask_cmpneq_epi8_mask(not0, s, entry2);
        const __mmask64 bit1 = _mm512_mask_cmpneq_epi8_mask(not0, s, entry1);
        store_mask(words, bit0);
        store_mask(words + word_bytes, bit1);
        return _kand_mask64(bit0, bit1);
    }
};

// Seven entries: a table by the low six bits of a symbol, in which the 15 symbols that compete for
// a palette do not meet. Symbol 0 may meet one of them.
template <>
struct TierEncoder<3> : VectorGroups {
    static constexpr int kEscape = 7;
    __m512i symbol_at;
    __m512i code_at;
    __mmask64 taken = 0;
    bool meets = false;

    [[gnu::always_inline]] explicit TierEncoder(const uint8_t* palette) {
        const __m512i places = order(kPlaces);
        symbol_at = _mm512_xor_si512(places, set1(1));  // no symbol is met where no entry is
        code_at = _mm512_setzero_si512();
        for (int i = 0; i < kEscape; ++i) {
            const __mmask64 at =
                _mm512_cmpeq_epi8_mask(places, set1(static_cast<uint8_t>(palette[i] & 63)));
            meets = meets || (taken & at) != 0;
            taken |= at;
            symbol_at = _mm512_mask_mov_epi8(symbol_at, at, set1(palette[i]));
            code_at = _mm512_mask_mov_epi8(code_at, at, set1(static_cast<uint8_t>(i)));
        }
        asm("" : "+v"(symbol_at), "+v"(code_at));
    }
    [[nodiscard]] bool works() const { return !meets; }

    [[gnu::always_inline]] __mmask64 encode(__m512i s,
                                            __mmask64 live,
                                            uint8_t* words,
                                            int word_bytes) const {
        const __mmask64 escaped =
            _mm512_mask_cmpneq_epi8_mask(live, s, _mm512_permutexvar_epi8(s, symbol_at));
        const __m512i code =
            _mm512_mask_mov_epi8(_mm512_permutexvar_epi8(s, code_at), escaped, set1(kEscape));
        for (int bit = 0; bit < 3; ++bit) {
            store_mask(words + bit * word_bytes,
                       _mm512_mask_test_epi8_mask(live, code, set1(uint8_t(1 << bit))));
        }
        return escaped;
    }
};

template <>
struct TierDecoder<2> : VectorGroups {
    __m512i entry0;
    __m512i entry1;
    __m512i entry2;

    [[gnu::always_inline]] explicit TierDecoder(const uint8_t* palette)
        : entry0(set1(palette[0])), entry1(set1(palette[1])), entry2(set1(palette[2])) {
        asm("" : "+v"(entry0), "+v"(entry1), "+v"(entry2));
    }

    // The symbols of a group; `escaped` of them are for the caller to fill.
    [[gnu::always_inline]] __m512i decode(const uint8_t* words,
                                          __mmask64 live,
                                          int word_bytes,
                                          __mmask64* escaped) const {
        const __mmask64 bit0 = load64(words) & live;
        const __mmask64 bit1 = load64(words + word_bytes);
        *escaped = _kand_mask64(bit0, bit1);
        return _mm512_mask_mov_epi8(_mm512_mask_mov_epi8(entry0, bit0, entry1), bit1, entry2);
    }
};

template <>
struct TierDecoder<3> : VectorGroups {
    __m512i entry0;
    __m512i entry1;
    __m512i entry2;
    __m512i entry3;
    __m512i entry4;
    __m512i entry5;
    __m512i entry6;

    [[gnu::always_inline]] explicit TierDecoder(const uint8_t* palette)
        : entry0(set1(palette[0])),
          entry1(set1(palette[1])),
          entry2(set1(palette[2])),
          entry3(set1(palette[3])),
          entry4(set1(palette[4])),
          entry5(set1(palette[5])),
          entry6(set1(palette[6])) {
        asm("" : "+v"(entry0), "+v"(entry1), "+v"(entry2), "+v"(entry3));
        asm("" : "+v"(entry4), "+v"(entry5), "+v"(entry6));
    }

    [[gnu::always_inline]] __m512i decode(const uint8_t* words,
                                          __mmask64 live,
                                          int word_bytes,
                                          __mmask64* escaped) const {
        const __mmask64 bit0 = load64(words) & live;
        const __mmask64 bit1 = load64(words + word_bytes);
        const __mmask64 bit2 = load64(words + 2 * word_bytes);
        *escaped = _kand_mask64(_kand_mask64(bit0, bit1), bit2);
        const __m512i low = _mm512_mask_mov_epi8(entry0, bit0, entry1);
        const __m512i middle = _mm512_mask_mov_epi8(entry2, bit0, entry3);
        const __m512i high = _mm512_mask_mov_epi8(entry4, bit0, entry5);
        return _mm512_mask_mov_epi8(_mm512_mask_mov_epi8(low, bit1, middle), bit2,
                                    _mm512_mask_mov_epi8(high, bit1, entry6));
    }
};

struct VectorCodes : VectorGroups {
    [[gnu::always_inline]] static uint8_t* put_escapes(__m512i s,
                                                       __mmask64 escaped,
                                                       uint8_t* rest) {
        _mm512_storeu_si512(rest, compress(escaped, s));
        return rest + __builtin_popcountll(escaped);
    }
    [[gnu::always_inline]] static __m512i take_escapes(__m512i s,
                                                       __mmask64 escaped,
                                                       const uint8_t** rest) {
        s = _mm512_mask_expand_epi8(s, escaped, load_apart(*rest));
        *rest += __builtin_popcountll(escaped);
        return s;
    }

    template <int bits>
    [[gnu::noinline]] static int tier(
        const uint8_t* symbols, int n, const uint8_t* palette, uint8_t* words, uint8_t* rest) {
        const TierEncoder<bits> coder(palette);
        if (!coder.works()) {
            return PlainSteps::tier<bits>(symbols, n, palette, words, rest);
        }
        uint8_t* next = rest;
        const uint8_t* const whole = symbols + n / 64 * 64;
        for (; symbols != whole; symbols += 64) {
            const __m512i s = _mm512_loadu_si512(symbols);
            next = put_escapes(s, coder.encode(s, ~__mmask64{0}, words, 8), next);
            words += 8 * bits;
        }
        if (n % 64 != 0) {
            const __m512i s = _mm512_loadu_si512(symbols);
            next = put_escapes(s, coder.encode(s, first_lanes(n % 64), words, plane_bytes(n % 64)),
                               next);
        }
        return static_cast<int>(next - rest);
    }

    template <int bits>
    [[gnu::noinline]] static int untier(const uint8_t* words,
                                        int n,
                                        const uint8_t* palette,
                                        const uint8_t* rest,
                                        uint8_t* symbols) {
        const TierDecoder<bits> coder(palette);
        const uint8_t* next = rest;
        uint8_t* const whole = symbols + n / 64 * 64;
        __mmask64 escaped;
        for (; symbols != whole; symbols += 64) {
            const __m512i s = coder.decode(words, ~__mmask64{0}, 8, &escaped);
            _mm512_storeu_si512(symbols, take_escapes(s, escaped, &next));
            words += 8 * bits;
        }
        if (n % 64 != 0) {
            const __m512i s =
                coder.decode(words, first_lanes(n % 64), plane_bytes(n % 64), &escaped);
            _mm512_storeu_si512(symbols, take_escapes(s, escaped, &next));
        }
        return static_cast<int>(next - rest);
    }
};
