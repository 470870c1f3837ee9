// Codes of block integers on sixteen lanes in plain C++: quantising, packing, and back to values.
// The meaning of the functions of the same names for other instruction sets. Included by lanes.h
// after lanes_scalar.h.

// Bits of fma(p, inverse, kRoundingMagic), for |p * inverse| < 2^21. Without a fused instruction
// the product is exact in double and the sum rounds once, at the same unit (1) and with the same
// ties.
SLIMWIRE_LANES Words quantise(Floats p, Floats inverse) {
    Words r;
    for (int i = 0; i < 16; ++i) {
#ifdef __FP_FAST_FMAF
        r.v[i] = __builtin_bit_cast(uint32_t, __builtin_fmaf(p.v[i], inverse.v[i], kRoundingMagic));
#else
        const double product = static_cast<double>(p.v[i]) * static_cast<double>(inverse.v[i]);
        const uint64_t bits = __builtin_bit_cast(uint64_t, product + 0x1.8p52);
        r.v[i] = kRoundingMagicBits + static_cast<uint32_t>(bits);
#endif
    }
    return r;
}

// The whole number nearest to 256 * p * inverse, modulo 2^32.
SLIMWIRE_LANES uint32_t fixed_code(float p, float inverse) {
#ifdef __FP_FAST_FMAF
    const float sum = __builtin_fmaf(p, inverse, kStochasticMagic);
    return __builtin_bit_cast(uint32_t, sum) - kStochasticMagicBits;
#else
    const double product = static_cast<double>(p) * static_cast<double>(inverse);
    return static_cast<uint32_t>(__builtin_bit_cast(uint64_t, product + 0x1.8p44));
#endif
}

// As quantise(), but up with the probability of what is cut off, by sixteen random bytes, and then
// within the largest code: the low bits of fma(p, inverse, 1.5 * 2^15) count 1/256 of a code.
template <int kBits>
SLIMWIRE_LANES Words quantise_stochastic(Floats p, Floats inverse, Words random) {
    constexpr int kLargest = largest_code(kBits);
    Words r;
    for (int i = 0; i < 16; ++i) {
        const uint32_t fixed = fixed_code(p.v[i], inverse.v[i]);
        const int32_t code = static_cast<int32_t>(fixed + random.v[i]) >> 8;
        const int32_t low = code < kLargest ? code : kLargest;
        r.v[i] = kRoundingMagicBits + static_cast<uint32_t>(low > -kLargest ? low : -kLargest);
    }
    return r;
}

// 256 times the code, to the nearest whole number: the low sixteen bits of each lane count.
SLIMWIRE_LANES Words quantise_fixed(Floats p, Floats inverse) {
    Words r;
    for (int i = 0; i < 16; ++i) {
        r.v[i] = fixed_code(p.v[i], inverse.v[i]);
    }
    return r;
}

// Writes the low kBits of sixteen codes as a little-endian bit stream of 2 * kBits bytes.
template <int kBits>
SLIMWIRE_LANES void pack(Words codes, uint8_t* to) {
    constexpr int kRun = kBits == 6 ? 4 : 8 / kBits;  // codes that fill whole bytes
    constexpr int kRunBytes = kRun * kBits / 8;
    for (int i = 0; i < 16; i += kRun, to += kRunBytes) {
        uint32_t value = 0;
        for (int k = 0; k < kRun; ++k) {
            value |= (codes.v[i + k] & ((1u << kBits) - 1)) << (k * kBits);
        }
        for (int byte = 0; byte < kRunBytes; ++byte) {
            to[byte] = static_cast<uint8_t>(value >> (8 * byte));
        }
    }
}

// Sixteen codes as pack wrote them, unsigned.
template <int kBits>
SLIMWIRE_LANES Words unpack(const uint8_t* from) {
    constexpr int kRun = 8 / kBits;  // codes of a byte
    Words r;
    for (int i = 0; i < 16; ++i) {
        r.v[i] = from[i / kRun] >> (i % kRun * kBits) & ((1u << kBits) - 1);
    }
    return r;
}

// The same for 64 codes, of which even[0] and odd[0] hold the first 32.
template <int kBits>
SLIMWIRE_LANES void pack_pairs(const Words (&even)[2], const Words (&odd)[2], uint8_t* to) {
    for (int begin = 0; begin < 64; begin += 16, to += 2 * kBits) {
        Words codes;
        for (int i = 0; i < 16; ++i) {
            const int lane = begin % 32 / 2 + i / 2;
            codes.v[i] = i % 2 == 0 ? even[begin / 32].v[lane] : odd[begin / 32].v[lane];
        }
        pack<kBits>(codes, to);
    }
}

// What quantised codes, which are within the largest code, decode to.
template <int kBits>
struct CodeValues {
    Floats scale;

    explicit CodeValues(float s) : scale(broadcast(s)) {}

    Floats operator()(Words quantised) const {
        return multiply(subtract(as_floats(quantised), broadcast(kRoundingMagic)), scale);
    }
};

// Reads what pack wrote; two's complement code times scale, one multiplication.
template <int kBits>
struct Dequantiser {
    float scale;

    explicit Dequantiser(float s) : scale(s) {}

    Floats operator()(const uint8_t* from) const {
        constexpr int kRun = kBits == 6 ? 4 : 8 / kBits;
        constexpr int kRunBytes = kRun * kBits / 8;
        Floats r;
        for (int i = 0; i < 16; i += kRun, from += kRunBytes) {
            uint32_t value = 0;
            for (int byte = 0; byte < kRunBytes; ++byte) {
                value |= static_cast<uint32_t>(from[byte]) << (8 * byte);
            }
            for (int k = 0; k < kRun; ++k) {
                const uint32_t up = value << (32 - kBits - k * kBits);
                r.v[i + k] = static_cast<float>(static_cast<int32_t>(up) >> (32 - kBits)) * scale;
            }
        }
        return r;
    }
};

// Decodes 32 codes to bf16, under a finite scale with these bits that it takes.
template <int kBits>
struct PairDequantiser {
    Dequantiser<kBits> half;

    static bool takes(uint32_t) { return true; }

    explicit PairDequantiser(float s) : half(s) {}

    void operator()(const uint8_t* from, uint8_t* to) const {
        store_bfloat16(to, half(from));
        store_bfloat16(to + 32, half(from + 2 * kBits));
    }
};

// Decodes 32 codes in an order of its own, which in_order() restores.
template <int kBits>
struct WideDequantiser {
    Dequantiser<kBits> half;

    explicit WideDequantiser(float s) : half(s) {}

    void operator()(const uint8_t* from, Floats (&x)[2]) const {
        x[0] = half(from);
        x[1] = half(from + 2 * kBits);
    }
    static void in_order(Floats (&)[2]) {}
};

// The sign bits of sixteen floats, that of lane 0 the lowest.
SLIMWIRE_LANES uint32_t sign_bits(Floats x) {
    uint32_t signs = 0;
    for (int i = 0; i < 16; ++i) {
        signs |= __builtin_bit_cast(uint32_t, x.v[i]) >> 31 << i;
    }
    return signs;
}
// x, negated in the lanes whose bit is 1.
SLIMWIRE_LANES Floats flip_signs(Floats x, uint32_t signs) {
    Words r = as_words(x);
    for (int i = 0; i < 16; ++i) {
        r.v[i] ^= (signs >> i & 1) << 31;
    }
    return as_floats(r);
}

// What sixteen elements of a quantizer draw: twice 256 * byte i + byte (i xor 1), plus 1.
SLIMWIRE_LANES Words load_drawn(const uint8_t* from) {
    Words r;
    for (int i = 0; i < 16; ++i) {
        r.v[i] = (static_cast<uint32_t>(from[i]) << 8 | from[i ^ 1]) * 2 + 1;
    }
    return r;
}
