// The steps of the palette codec (FORMAT.md) in plain C++. They define what palette_avx2.h and
// palette_avx512.h compute faster. Included by palette.cpp inside its anonymous namespace.
//
// Contract of every step: elements are read and written exactly, planes written exactly. Words,
// symbols and planes may be read, and words and symbols written, up to kSlack bytes past their end;
// they are written from lower to higher addresses, so what follows them comes after.
// "Words" are runs of bit planes, 64 symbols a group: 8 bytes of plane 0, 8 of plane 1, ...; the
// last group of t symbols has ceil(t / 8) bytes a plane.

// An element type: bytes, and the low bits of its top byte (after rotating the sign to bit 0) that
// are stored as they are; the bits above them are the symbol.
template <int bytes, int raw_bits, bool rotates>
struct Shape {
    static constexpr int kBytes = bytes;
    static constexpr int kPlanes = bytes - 1;
    static constexpr int kRawBits = raw_bits;
    static constexpr bool kRotates = rotates;
    static constexpr int kBits = 8 * bytes;

    static uint64_t load(const uint8_t* element) {
        uint64_t value = 0;
        __builtin_memcpy(&value, element, bytes);
        if (rotates) {
            value = value << 1 | value >> (kBits - 1);
        }
        return value;
    }
    static void store(uint8_t* element, uint64_t value) {
        if (rotates) {
            value = (value & ~uint64_t{0} >> (64 - kBits)) >> 1 | value << (kBits - 1);
        }
        __builtin_memcpy(element, &value, bytes);
    }
};

// What a sample says of a block.
struct PaletteChoice {
    bool try_zeros;  // more than an eighth of it is symbol 0
    bool wide;       // so much of it lies outside the places of the palette that raw is likely
    bool made;       // the palette is there
    int base;        // place 1
};

constexpr int plane_bytes(int n) {
    return (n + 7) / 8;
}

// The first tier together with what goes before it or after it, by steps one after another.
template <class Steps>
struct FirstTier {
    // split, split_top and the first tier in one pass; planes have stride n.
    template <class S>
    static int encode_first(const uint8_t* input,
                            int n,
                            const uint8_t* palette,
                            uint8_t* planes,
                            uint8_t* raw_words,
                            uint8_t* words,
                            uint8_t* rest) {
        Steps::template split<S>(input, n, planes, n, rest);
        Steps::template split_top<S::kRawBits>(rest, n, raw_words);
        return Steps::template tier<2>(rest, n, palette, words, rest);
    }

    // Its inverse; `scratch` is a symbol buffer apart from `rest`. Returns the symbols taken. The
    // unnamed argument: whether the output may go past the caches, until fence().
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
        const int taken = Steps::template untier<2>(words, n, palette, rest, scratch);
        Steps::template merge_top<S::kRawBits>(raw_words, n, scratch);
        Steps::template merge<S>(planes, n, scratch, n, output);
        return taken;
    }
};

struct PlainSteps : FirstTier<PlainSteps> {
    // Whole words are the usual case, and then a single access.
    static void store_word(uint8_t* to, uint64_t word, int bytes) {
        if (bytes == 8) {
            __builtin_memcpy(to, &word, 8);
        } else {
            __builtin_memcpy(to, &word, static_cast<size_t>(bytes));
        }
    }
    static uint64_t load_word(const uint8_t* from, int bytes) {
        uint64_t word = 0;
        if (bytes == 8) {
            __builtin_memcpy(&word, from, 8);
        } else {
            __builtin_memcpy(&word, from, static_cast<size_t>(bytes));
        }
        return word;
    }

    // Elements -> byte planes at planes + j * stride, and their top bytes.
    template <class S>
    static void split(const uint8_t* input, int n, uint8_t* planes, int64_t stride, uint8_t* top) {
        for (int i = 0; i < n; ++i) {
            const uint64_t value = S::load(input + i * S::kBytes);
            for (int j = 0; j < S::kPlanes; ++j) {
                planes[j * stride + i] = static_cast<uint8_t>(value >> (8 * j));
            }
            top[i] = static_cast<uint8_t>(value >> (8 * S::kPlanes));
        }
    }

    template <class S>
    static void merge(
        const uint8_t* planes, int64_t stride, const uint8_t* top, int n, uint8_t* output) {
        for (int i = 0; i < n; ++i) {
            uint64_t value = static_cast<uint64_t>(top[i]) << (8 * S::kPlanes);
            for (int j = 0; j < S::kPlanes; ++j) {
                value |= static_cast<uint64_t>(planes[j * stride + i]) << (8 * j);
            }
            S::store(output + i * S::kBytes, value);
        }
    }

    // Top bytes -> symbols, in place, and words of the bits below them.
    template <int raw_bits>
    static void split_top(uint8_t* top, int n, uint8_t* words) {
        for (int begin = 0; begin < n; begin += 64) {
            const int t = n - begin < 64 ? n - begin : 64;
            for (int bit = 0; bit < raw_bits; ++bit) {
                uint64_t word = 0;
                for (int i = 0; i < t; ++i) {
                    word |= static_cast<uint64_t>(top[begin + i] >> bit & 1) << i;
                }
                store_word(words, word, plane_bytes(t));
                words += plane_bytes(t);
            }
            for (int i = 0; i < t; ++i) {
                top[begin + i] = static_cast<uint8_t>(top[begin + i] >> raw_bits);
            }
        }
    }

    template <int raw_bits>
    static void merge_top(const uint8_t* words, int n, uint8_t* symbols) {
        for (int begin = 0; begin < n; begin += 64) {
            const int t = n - begin < 64 ? n - begin : 64;
            for (int i = 0; i < t; ++i) {
                symbols[begin + i] = static_cast<uint8_t>(symbols[begin + i] << raw_bits);
            }
            for (int bit = 0; bit < raw_bits; ++bit) {
                const uint64_t word = load_word(words, plane_bytes(t));
                words += plane_bytes(t);
                for (int i = 0; i < t; ++i) {
                    symbols[begin + i] |= static_cast<uint8_t>((word >> i & 1) << bit);
                }
            }
        }
    }

    // The palette of `n` elements, from a sample of them. Without `always` it may be left out where
    // zero mode is to be tried, or raw.
    template <class S>
    static PaletteChoice choose_palette(const uint8_t* input, int n, bool, uint8_t* palette) {
        const int samples = n < kPaletteSamples ? n : kPaletteSamples;
        const int distance = n < kPaletteSamples ? kPaletteRun : palette_run_distance(n);
        uint8_t sample[kPaletteSamples];
        int zeros = 0;
        int sum = 0;
        for (int i = 0; i < samples; ++i) {
            const int element = i / kPaletteRun * distance + i % kPaletteRun;
            const uint64_t value = S::load(input + element * S::kBytes) >> (8 * S::kPlanes) & 255;
            sample[i] = static_cast<uint8_t>(value >> S::kRawBits);
            zeros += sample[i] == 0;
            sum += sample[i];
        }
        const int base = palette_base(samples - zeros, sum);
        int keys[16];
        for (int i = 0; i < 16; ++i) {
            keys[i] = i;
        }
        keys[0] += 16 * zeros;
        for (int i = 0; i < samples; ++i) {
            const int place = sample[i] - base + 1;
            if (sample[i] != 0 && place >= 1 && place < 16) {
                keys[place] += 16;
            }
        }
        for (int rank = 0; rank < kPaletteEntries; ++rank) {
            int best = 0;
            for (int i = 1; i < 16; ++i) {
                best = keys[i] > keys[best] ? i : best;
            }
            palette[rank] = best == 0 ? 0 : static_cast<uint8_t>(base + best - 1);
            keys[best] = -1;
        }
        return {zeros * kPaletteZeroPart > samples, false, true, base};
    }

    // True when more symbols lie outside the places that compete for a palette, which start at
    // `base`, than a payload shorter than raw can hold. May miss that.
    template <class S>
    static bool surely_raw(const uint8_t*, int, int) {
        return false;
    }

    // The smallest symbol of the 15 that may be in a palette besides 0.
    static int palette_base(int nonzero, int sum) {
        const int mean = nonzero > 0 ? sum / nonzero : 0;
        const int base = mean - kPaletteBelowMean;
        return base < kPaletteLeastBase  ? kPaletteLeastBase
               : base > kPaletteMostBase ? kPaletteMostBase
                                         : base;
    }

    // One tier: words of `bits` planes with the code of each symbol (its place in the palette, or
    // all ones). Symbols the palette lacks go to `rest` (may be `symbols`); returns their number.
    template <int bits>
    static int tier(
        const uint8_t* symbols, int n, const uint8_t* palette, uint8_t* words, uint8_t* rest) {
        constexpr int kEscape = (1 << bits) - 1;
        int escaped = 0;
        for (int begin = 0; begin < n; begin += 64) {
            const int t = n - begin < 64 ? n - begin : 64;
            uint64_t planes[bits] = {};
            for (int i = 0; i < t; ++i) {
                const uint8_t symbol = symbols[begin + i];
                int code = kEscape;
                for (int entry = kEscape - 1; entry >= 0; --entry) {
                    code = symbol == palette[entry] ? entry : code;
                }
                for (int bit = 0; bit < bits; ++bit) {
                    planes[bit] |= static_cast<uint64_t>(code >> bit & 1) << i;
                }
                rest[escaped] = symbol;
                escaped += code == kEscape;
            }
            for (int bit = 0; bit < bits; ++bit) {
                store_word(words, planes[bit], plane_bytes(t));
                words += plane_bytes(t);
            }
        }
        return escaped;
    }

    // The inverse; returns how many symbols of `rest` were taken. Takes no more than n.
    template <int bits>
    static int untier(const uint8_t* words,
                      int n,
                      const uint8_t* palette,
                      const uint8_t* rest,
                      uint8_t* symbols) {
        constexpr int kEscape = (1 << bits) - 1;
        int taken = 0;
        for (int begin = 0; begin < n; begin += 64) {
            const int t = n - begin < 64 ? n - begin : 64;
            uint64_t planes[bits];
            for (int bit = 0; bit < bits; ++bit) {
                planes[bit] = load_word(words, plane_bytes(t));
                words += plane_bytes(t);
            }
            for (int i = 0; i < t; ++i) {
                int code = 0;
                for (int bit = 0; bit < bits; ++bit) {
                    code |= static_cast<int>(planes[bit] >> i & 1) << bit;
                }
                symbols[begin + i] = code == kEscape ? rest[taken] : palette[code];
                taken += code == kEscape;
            }
        }
        return taken;
    }

    // Writes the words that are not 0 to `to`, one after another; bit i of the result: marks[i] is
    // one of them.
    static uint64_t pack_marks(const uint64_t* marks, int words, uint8_t* to) {
        uint64_t groups = 0;
        for (int i = 0; i < words; ++i) {
            if (marks[i] != 0) {
                groups |= uint64_t{1} << i;
                __builtin_memcpy(to, &marks[i], 8);
                to += 8;
            }
        }
        return groups;
    }

    // The inverse, all 64 words; returns the number of ones.
    static int unpack_marks(uint64_t groups, const uint8_t* from, uint64_t* marks) {
        int ones = 0;
        for (int i = 0; i < 64; ++i) {
            marks[i] = 0;
            if ((groups >> i & 1) != 0) {
                __builtin_memcpy(&marks[i], from, 8);
                from += 8;
            }
            ones += __builtin_popcountll(marks[i]);
        }
        return ones;
    }

    // Marks the elements that are not zero, bit i of word i / 64, and gives their byte planes and
    // top bytes as split() would if there were no others. Returns how many there are.
    template <class S>
    static int gather(const uint8_t* input,
                      int n,
                      uint64_t* marks,
                      uint8_t* planes,
                      int64_t stride,
                      uint8_t* top,
                      const uint8_t* later) {
        (void)later;
        int ones = 0;
        for (int i = 0; i < n; ++i) {
            const uint64_t value = S::load(input + i * S::kBytes);
            const uint64_t some = value != 0 ? 1 : 0;
            marks[i / 64] = (i % 64 == 0 ? 0 : marks[i / 64]) | some << (i % 64);
            for (int j = 0; j < S::kPlanes; ++j) {
                planes[j * stride + ones] = static_cast<uint8_t>(value >> (8 * j));
            }
            top[ones] = static_cast<uint8_t>(value >> (8 * S::kPlanes));
            ones += static_cast<int>(some);
        }
        return ones;
    }

    // The inverse: elements that are not marked become 0. Bit i of `groups`: marks[i] is not 0.
    template <class S>
    static void spread(const uint8_t* planes,
                       int64_t stride,
                       const uint8_t* top,
                       uint64_t groups,
                       const uint64_t* marks,
                       int n,
                       const uint8_t*,
                       bool,
                       uint8_t* output) {
        __builtin_memset(output, 0, static_cast<size_t>(n) * S::kBytes);
        for (; groups != 0; groups &= groups - 1) {
            const int group = __builtin_ctzll(groups);
            for (uint64_t word = marks[group]; word != 0; word &= word - 1) {
                const int i = 64 * group + __builtin_ctzll(word);
                uint64_t value = static_cast<uint64_t>(*top++) << (8 * S::kPlanes);
                for (int j = 0; j < S::kPlanes; ++j) {
                    value |= static_cast<uint64_t>(planes[j * stride]) << (8 * j);
                }
                ++planes;
                S::store(output + i * S::kBytes, value);
            }
        }
    }

    static void fence() {}

    // Elements as they are, exactly.
    static void copy_raw(uint8_t* to, const uint8_t* from, int64_t bytes, bool) {
        __builtin_memcpy(to, from, static_cast<size_t>(bytes));
    }

    // Copies a finished block to the output, exactly. `ahead` is the way to what will be written
    // next.
    static void copy(uint8_t* to, const uint8_t* from, int64_t bytes, int64_t ahead) {
        (void)ahead;
        __builtin_memcpy(to, from, static_cast<size_t>(bytes));
    }
};
