// The steps of palette_scalar.h with AArch64 Advanced SIMD, 64 symbols a group in four registers:
// bits of bytes to a word by sums of pairs, codes through a table. Escapes move one by one.
// Included by palette.cpp inside its anonymous namespace.

struct VectorSteps : PlainSteps {
    // 64 bytes.
    struct Group {
        uint8x16_t v[4];
    };
    static Group load(const uint8_t* from) {
        return {{load_16(from), load_16(from + 16), load_16(from + 32), load_16(from + 48)}};
    }
    static void store(uint8_t* to, const Group& x) {
        store_16(to, x.v[0]);
        store_16(to + 16, x.v[1]);
        store_16(to + 32, x.v[2]);
        store_16(to + 48, x.v[3]);
    }
    static uint8x16_t places() { return vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u)); }
    // Bit i: byte i of x has bit `bit`.
    static uint64_t bits_of(const Group& x, int bit) {
        const uint8x16_t one = vdupq_n_u8(static_cast<uint8_t>(1 << bit));
        const auto some = [&](int k) { return vandq_u8(vtstq_u8(x.v[k], one), places()); };
        const uint8x16_t fours =
            vpaddq_u8(vpaddq_u8(some(0), some(1)), vpaddq_u8(some(2), some(3)));
        return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(fours, fours)), 0);
    }
    // x, with bit `bit` in the bytes whose bit of `word` is 1.
    static void add_bit(Group& x, uint64_t word, int bit) {
        const uint8x16_t one = vdupq_n_u8(static_cast<uint8_t>(1 << bit));
        const uint8x16_t bytes = vreinterpretq_u8_u64(vdupq_n_u64(word));
        const uint8x16_t first = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
        for (int k = 0; k < 4; ++k) {
            const uint8x16_t from = vaddq_u8(first, vdupq_n_u8(static_cast<uint8_t>(2 * k)));
            const uint8x16_t set = vtstq_u8(vqtbl1q_u8(bytes, from), places());
            x.v[k] = vorrq_u8(x.v[k], vandq_u8(set, one));
        }
    }
    static uint64_t first_lanes(int n) { return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }

    template <class S>
    static void split(const uint8_t* input, int n, uint8_t* planes, int64_t stride, uint8_t* top) {
        int i = 0;
        if constexpr (S::kBytes == 2) {
            for (; i + 16 <= n; i += 16) {
                const auto rotated = [&](int half) {
                    const uint16x8_t x = load_eight_halves(input + 2 * i + 16 * half);
                    return vreinterpretq_u8_u16(vsriq_n_u16(vshlq_n_u16(x, 1), x, 15));
                };
                const uint8x16_t low = rotated(0);
                const uint8x16_t high = rotated(1);
                store_16(planes + i, vuzp1q_u8(low, high));
                store_16(top + i, vuzp2q_u8(low, high));
            }
        } else if constexpr (S::kBytes == 4) {
            for (; i + 16 <= n; i += 16) {
                const Words x = rotate_left<1>(load_words(input + 4 * i));
                const uint8x16_t low_even = vreinterpretq_u8_u16(low_halves(x.q0, x.q1));
                const uint8x16_t low_odd = vreinterpretq_u8_u16(low_halves(x.q2, x.q3));
                const uint8x16_t high_even = vreinterpretq_u8_u16(high_halves(x.q0, x.q1));
                const uint8x16_t high_odd = vreinterpretq_u8_u16(high_halves(x.q2, x.q3));
                store_16(planes + i, vuzp1q_u8(low_even, low_odd));
                store_16(planes + stride + i, vuzp2q_u8(low_even, low_odd));
                store_16(planes + 2 * stride + i, vuzp1q_u8(high_even, high_odd));
                store_16(top + i, vuzp2q_u8(high_even, high_odd));
            }
        }
        PlainSteps::split<S>(input + S::kBytes * i, n - i, planes + i, stride, top + i);
    }

    template <class S>
    static void merge(
        const uint8_t* planes, int64_t stride, const uint8_t* top, int n, uint8_t* output) {
        int i = 0;
        if constexpr (S::kBytes == 2) {
            for (; i + 16 <= n; i += 16) {
                const uint8x16_t low = load_16(planes + i);
                const uint8x16_t high = load_16(top + i);
                const auto put = [&](int half, uint8x16_t bytes) {
                    const uint16x8_t x = vreinterpretq_u16_u8(bytes);
                    store_16(output + 2 * i + 16 * half,
                             vreinterpretq_u8_u16(vsliq_n_u16(vshrq_n_u16(x, 1), x, 15)));
                };
                put(0, vzip1q_u8(low, high));
                put(1, vzip2q_u8(low, high));
            }
        } else if constexpr (S::kBytes == 4) {
            for (; i + 16 <= n; i += 16) {
                uint8x16_t part[4];
                for (int j = 0; j < 4; ++j) {
                    part[j] = load_16(j < 3 ? planes + j * stride + i : top + i);
                }
                const auto zip = [](uint8x16_t a, uint8x16_t b) {
                    return uint16x8x2_t{{vreinterpretq_u16_u8(vzip1q_u8(a, b)),
                                         vreinterpretq_u16_u8(vzip2q_u8(a, b))}};
                };
                const uint16x8x2_t low = zip(part[0], part[1]);
                const uint16x8x2_t high = zip(part[2], part[3]);
                const Words x = {vreinterpretq_u32_u16(vzip1q_u16(low.val[0], high.val[0])),
                                 vreinterpretq_u32_u16(vzip2q_u16(low.val[0], high.val[0])),
                                 vreinterpretq_u32_u16(vzip1q_u16(low.val[1], high.val[1])),
                                 vreinterpretq_u32_u16(vzip2q_u16(low.val[1], high.val[1]))};
                store_words(output + 4 * i, rotate_left<31>(x));
            }
        }
        PlainSteps::merge<S>(planes + i, stride, top + i, n - i, output + S::kBytes * i);
    }

    template <int raw_bits>
    static void split_top(uint8_t* top, int n, uint8_t* words) {
        if constexpr (raw_bits != 0) {
            for (int i = 0; i < n; i += 64) {
                const int t = n - i < 64 ? n - i : 64;
                Group x = load(top + i);
                for (int bit = 0; bit < raw_bits; ++bit) {
                    store_word(words, bits_of(x, bit) & first_lanes(t), plane_bytes(t));
                    words += plane_bytes(t);
                }
                for (uint8x16_t& v : x.v) {
                    v = vshrq_n_u8(v, raw_bits);
                }
                store(top + i, x);
            }
        }
    }

    template <int raw_bits>
    static void merge_top(const uint8_t* words, int n, uint8_t* symbols) {
        if constexpr (raw_bits != 0) {
            for (int i = 0; i < n; i += 64) {
                const int word_bytes = n - i < 64 ? plane_bytes(n - i) : 8;
                Group x = load(symbols + i);
                for (uint8x16_t& v : x.v) {
                    v = vshlq_n_u8(v, raw_bits);
                }
                for (int bit = 0; bit < raw_bits; ++bit) {
                    add_bit(x, load_word(words, word_bytes), bit);
                    words += word_bytes;
                }
                store(symbols + i, x);
            }
        }
    }

    template <int bits>
    static int tier(
        const uint8_t* symbols, int n, const uint8_t* palette, uint8_t* words, uint8_t* rest) {
        constexpr int kEscape = (1 << bits) - 1;
        int escaped = 0;
        for (int i = 0; i < n; i += 64) {
            const int t = n - i < 64 ? n - i : 64;
            const Group x = load(symbols + i);
            Group code;
            for (uint8x16_t& v : code.v) {
                v = vdupq_n_u8(kEscape);
            }
            for (int entry = kEscape - 1; entry >= 0; --entry) {
                const uint8x16_t e = vdupq_n_u8(palette[entry]);
                const uint8x16_t number = vdupq_n_u8(static_cast<uint8_t>(entry));
                for (int k = 0; k < 4; ++k) {
                    code.v[k] = vbslq_u8(vceqq_u8(x.v[k], e), number, code.v[k]);
                }
            }
            uint64_t escapes = first_lanes(t);
            for (int bit = 0; bit < bits; ++bit) {
                const uint64_t word = bits_of(code, bit) & first_lanes(t);
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
        uint8_t entries[16] = {};
        __builtin_memcpy(entries, palette, (1 << bits) - 1);
        const uint8x16_t table = load_16(entries);
        int taken = 0;
        for (int i = 0; i < n; i += 64) {
            const int t = n - i < 64 ? n - i : 64;
            uint64_t escapes = first_lanes(t);
            Group code = {{vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0)}};
            for (int bit = 0; bit < bits; ++bit) {
                const uint64_t word = load_word(words, plane_bytes(t));
                words += plane_bytes(t);
                escapes &= word;
                add_bit(code, word, bit);
            }
            for (uint8x16_t& v : code.v) {
                v = vqtbl1q_u8(table, v);
            }
            store(symbols + i, code);
            for (; escapes != 0; escapes &= escapes - 1) {
                symbols[i + __builtin_ctzll(escapes)] = rest[taken++];
            }
        }
        return taken;
    }

    template <class S>
    static int encode_first(const uint8_t* input,
                            int n,
                            const uint8_t* palette,
                            uint8_t* planes,
                            uint8_t* raw_words,
                            uint8_t* words,
                            uint8_t* rest) {
        split<S>(input, n, planes, n, rest);
        split_top<S::kRawBits>(rest, n, raw_words);
        return tier<2>(rest, n, palette, words, rest);
    }

    template <class S>
    static int decode_first(const uint8_t* planes,
                            const uint8_t* raw_words,
                            const uint8_t* words,
                            int n,
                            const uint8_t* palette,
                            const uint8_t* rest,
                            uint8_t* scratch,
                            bool,
                            uint8_t* output) {
        const int taken = untier<2>(words, n, palette, rest, scratch);
        merge_top<S::kRawBits>(raw_words, n, scratch);
        merge<S>(planes, n, scratch, n, output);
        return taken;
    }
};
