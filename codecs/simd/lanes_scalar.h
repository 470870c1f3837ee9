// Sixteen fp32 lanes in plain C++, and the meaning of every lane function: the other lanes_*.h must
// give the same bits. Included by kernels.cpp inside an anonymous namespace.

#define SLIMWIRE_LANES static inline

// Whether eight registers of lanes and what works on them stay in registers.
constexpr bool kManyRegisters = false;

struct Floats {
    float v[16];
};
struct Words {
    uint32_t v[16];
};

SLIMWIRE_LANES Floats broadcast(float x) {
    Floats r;
    for (float& v : r.v) {
        v = x;
    }
    return r;
}
SLIMWIRE_LANES Words broadcast_bits(uint32_t x) {
    Words r;
    for (uint32_t& v : r.v) {
        v = x;
    }
    return r;
}
SLIMWIRE_LANES Floats as_floats(Words x) {
    return __builtin_bit_cast(Floats, x);
}
SLIMWIRE_LANES Words as_words(Floats x) {
    return __builtin_bit_cast(Words, x);
}

// Loads of sixteen consecutive elements, converted exactly; stores round to nearest even, overflow
// to infinity and write every NaN with the canonical bits (store_float32 stores the bits as they
// are).
SLIMWIRE_LANES Floats load_float32(const void* from) {
    Floats r;
    __builtin_memcpy(&r, from, sizeof(r));
    return r;
}
SLIMWIRE_LANES Words load_words(const void* from) {
    return as_words(load_float32(from));
}
SLIMWIRE_LANES Floats load_bfloat16(const void* from) {
    uint16_t half[16];
    __builtin_memcpy(half, from, sizeof(half));
    Words r;
    for (int i = 0; i < 16; ++i) {
        r.v[i] = static_cast<uint32_t>(half[i]) << 16;
    }
    return as_floats(r);
}
SLIMWIRE_LANES Floats load_float16(const void* from) {
    uint16_t half[16];
    __builtin_memcpy(half, from, sizeof(half));
    Words r;
    for (int i = 0; i < 16; ++i) {
        // Normal values move their exponent from bias 15 to 127. A subnormal m * 2^-24 is made as
        // the float 2^-14 + m * 2^-24 less 2^-14, which is exact.
        const uint32_t magnitude = static_cast<uint32_t>(half[i] & 0x7FFF) << 13;
        const uint32_t normal = magnitude + ((127 - 15) << 23);
        const uint32_t special = magnitude | kInfinityBits;
        const float small = __builtin_bit_cast(float, magnitude + (113u << 23)) - 0x1p-14f;
        uint32_t bits = magnitude < (1u << 23) ? __builtin_bit_cast(uint32_t, small) : normal;
        bits = magnitude >= (31u << 23) ? special : bits;
        r.v[i] = bits | static_cast<uint32_t>(half[i] & 0x8000) << 16;
    }
    return as_floats(r);
}

SLIMWIRE_LANES void store_float32(void* to, Floats x) {
    __builtin_memcpy(to, &x, sizeof(x));
}
SLIMWIRE_LANES void store_words(void* to, Words x) {
    __builtin_memcpy(to, &x, sizeof(x));
}
SLIMWIRE_LANES void store_bfloat16(void* to, Floats x) {
    uint16_t half[16];
    for (int i = 0; i < 16; ++i) {
        const uint32_t bits = __builtin_bit_cast(uint32_t, x.v[i]);
        const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
        half[i] = static_cast<uint16_t>(
            (bits & kMagnitudeMask) > kInfinityBits ? uint32_t{kNanBfloat16} : rounded);
    }
    __builtin_memcpy(to, half, sizeof(half));
}
SLIMWIRE_LANES void store_float16(void* to, Floats x) {
    uint16_t half[16];
    for (int i = 0; i < 16; ++i) {
        const uint32_t bits = __builtin_bit_cast(uint32_t, x.v[i]);
        const uint32_t magnitude = bits & kMagnitudeMask;
        // Normal: drop 13 bits after adding half of the last kept one; carries reach infinity.
        // Below 2^-14: adding 0.5 leaves units of 2^-24 as the last bits of the sum.
        const uint32_t normal =
            (magnitude - ((127 - 15) << 23) + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
        const float sum =
            __builtin_bit_cast(float, magnitude < (113u << 23) ? magnitude : 0) + 0.5f;
        const uint32_t small = __builtin_bit_cast(uint32_t, sum) - (126u << 23);
        uint32_t result = magnitude < (113u << 23) ? small : normal;
        result = magnitude >= 0x477FF000u ? 0x7C00u : result;
        result |= (bits >> 16) & 0x8000;
        half[i] = static_cast<uint16_t>(magnitude > kInfinityBits ? uint32_t{kNanFloat16} : result);
    }
    __builtin_memcpy(to, half, sizeof(half));
}

#define SLIMWIRE_LANEWISE(Type, name, expression) \
    SLIMWIRE_LANES Type name(Type a, Type b) {    \
        Type r;                                   \
        for (int i = 0; i < 16; ++i) {            \
            r.v[i] = expression;                  \
        }                                         \
        return r;                                 \
    }
SLIMWIRE_LANEWISE(Floats, add, a.v[i] + b.v[i])
SLIMWIRE_LANEWISE(Floats, subtract, a.v[i] - b.v[i])
SLIMWIRE_LANEWISE(Floats, multiply, a.v[i] * b.v[i])
SLIMWIRE_LANEWISE(Floats, divide, a.v[i] / b.v[i])
SLIMWIRE_LANEWISE(Words, add, a.v[i] + b.v[i])
SLIMWIRE_LANEWISE(Words, subtract, a.v[i] - b.v[i])
SLIMWIRE_LANEWISE(Words, bit_and, a.v[i] & b.v[i])
SLIMWIRE_LANEWISE(Words, bit_or, a.v[i] | b.v[i])
SLIMWIRE_LANEWISE(Words, bit_xor, a.v[i] ^ b.v[i])
SLIMWIRE_LANEWISE(Words, minimum, a.v[i] < b.v[i] ? a.v[i] : b.v[i])
SLIMWIRE_LANEWISE(Words, maximum, a.v[i] > b.v[i] ? a.v[i] : b.v[i])
#undef SLIMWIRE_LANEWISE

template <int kBy>
SLIMWIRE_LANES Words shift_left(Words x) {
    for (uint32_t& v : x.v) {
        v <<= kBy;
    }
    return x;
}
template <int kBy>
SLIMWIRE_LANES Words shift_right(Words x) {
    for (uint32_t& v : x.v) {
        v >>= kBy;
    }
    return x;
}
// Copies the sign bit in from the left.
template <int kBy>
SLIMWIRE_LANES Words shift_right_signed(Words x) {
    for (uint32_t& v : x.v) {
        v = static_cast<uint32_t>(static_cast<int32_t>(v) >> kBy);
    }
    return x;
}
template <int kBy>
SLIMWIRE_LANES Words rotate_left(Words x) {
    for (uint32_t& v : x.v) {
        v = v << kBy | v >> (32 - kBy);
    }
    return x;
}
// Whole part of each x in [0, 2^31).
SLIMWIRE_LANES Words truncate(Floats x) {
    Words r;
    for (int i = 0; i < 16; ++i) {
        r.v[i] = static_cast<uint32_t>(static_cast<int32_t>(x.v[i]));
    }
    return r;
}
// 0, 1, ..., 15.
SLIMWIRE_LANES Words lane_numbers() {
    Words r;
    for (uint32_t i = 0; i < 16; ++i) {
        r.v[i] = i;
    }
    return r;
}
// Sixteen bytes, unsigned.
SLIMWIRE_LANES Words load_bytes(const uint8_t* from) {
    Words r;
    for (int i = 0; i < 16; ++i) {
        r.v[i] = from[i];
    }
    return r;
}
// Writes a0 b0 c0 d0 a1 b1 c1 d1 ...: 256 bytes.
SLIMWIRE_LANES void store_interleaved(uint8_t* to, Words a, Words b, Words c, Words d) {
    for (int i = 0; i < 16; ++i, to += 16) {
        const uint32_t words[4] = {a.v[i], b.v[i], c.v[i], d.v[i]};
        __builtin_memcpy(to, words, sizeof(words));
    }
}

SLIMWIRE_LANES uint32_t largest(Words x) {
    uint32_t r = 0;
    for (uint32_t v : x.v) {
        r = v > r ? v : r;
    }
    return r;
}

// Per lane: x >= limit ? yes : no, unsigned.
SLIMWIRE_LANES Words select_at_least(Words x, uint32_t limit, Words yes, Words no) {
    Words r;
    for (int i = 0; i < 16; ++i) {
        r.v[i] = x.v[i] >= limit ? yes.v[i] : no.v[i];
    }
    return r;
}

// a * b + c, rounded once. Without an instruction for it: the product is exact in fp64, and a sum
// rounded to odd there rounds to fp32 as the exact one (Boldo and Melquiond 2008, theorem 3).
SLIMWIRE_LANES float multiply_add_one(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return __builtin_fmaf(a, b, c);
#else
    const double product = static_cast<double>(a) * b;
    const double sum = product + c;
    const double from_c = sum - product;
    const double error = (product - (sum - from_c)) + (c - from_c);
    uint64_t bits = __builtin_bit_cast(uint64_t, sum);
    if ((error < 0 || error > 0) && (bits & 1) == 0) {
        bits = (error > 0) == (sum > 0) ? bits + 1 : bits - 1;
    }
    return static_cast<float>(__builtin_bit_cast(double, bits));
#endif
}
SLIMWIRE_LANES Floats multiply_add(Floats a, Floats b, Floats c) {
    for (int i = 0; i < 16; ++i) {
        c.v[i] = multiply_add_one(a.v[i], b.v[i], c.v[i]);
    }
    return c;
}

// The sum of all lanes in pairs: the first half and the second half, again and again.
SLIMWIRE_LANES float sum_of_halves(Floats x) {
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) {
            x.v[i] += x.v[i + half];
        }
    }
    return x.v[0];
}
SLIMWIRE_LANES void four_sums_of_halves(const Floats* x, float* to) {
    for (int i = 0; i < 4; ++i) {
        to[i] = sum_of_halves(x[i]);
    }
}

// NaN lanes become the canonical NaN.
SLIMWIRE_LANES Floats canonical(Floats x) {
    Words r = as_words(x);
    for (uint32_t& v : r.v) {
        v = (v & kMagnitudeMask) > kInfinityBits ? kNanFloat32 : v;
    }
    return as_floats(r);
}

// Sums and differences of the lanes that kStride parts: a + b in the lower, a - b in the upper one.
template <int kStride>
SLIMWIRE_LANES Floats butterfly(Floats x) {
    Floats r;
    for (int i = 0; i < 16; ++i) {
        const float other = x.v[i ^ kStride];
        r.v[i] = (i & kStride) == 0 ? x.v[i] + other : other - x.v[i];
    }
    return r;
}

// One bit for each lane that equals `value`, lane 0 the lowest.
SLIMWIRE_LANES uint32_t equal_lanes(Words x, uint32_t value) {
    uint32_t mask = 0;
    for (int i = 0; i < 16; ++i) {
        mask |= (x.v[i] == value ? 1u : 0u) << i;
    }
    return mask;
}

// Larger of the 16-bit halves, unsigned.
SLIMWIRE_LANES Words maximum_halves(Words a, Words b) {
    Words r;
    for (int i = 0; i < 16; ++i) {
        const uint32_t low_a = a.v[i] & 0xFFFF;
        const uint32_t low_b = b.v[i] & 0xFFFF;
        const uint32_t high_a = a.v[i] >> 16;
        const uint32_t high_b = b.v[i] >> 16;
        r.v[i] = (high_a > high_b ? high_a : high_b) << 16 | (low_a > low_b ? low_a : low_b);
    }
    return r;
}
// Sums in the 16-bit halves, modulo 2^16.
SLIMWIRE_LANES Words add_halves(Words a, Words b) {
    Words r;
    for (int i = 0; i < 16; ++i) {
        r.v[i] = ((a.v[i] + b.v[i]) & 0xFFFF) | (((a.v[i] >> 16) + (b.v[i] >> 16)) << 16);
    }
    return r;
}
// The low halves of two as low and high ones.
SLIMWIRE_LANES Words join_halves(Words low, Words high) {
    return bit_or(bit_and(low, broadcast_bits(0xFFFF)), shift_left<16>(high));
}
// 32 bytes, unsigned, as halves.
SLIMWIRE_LANES Words load_bytes_to_halves(const uint8_t* from) {
    Words r;
    for (int i = 0; i < 16; ++i) {
        r.v[i] = from[2 * i] | static_cast<uint32_t>(from[2 * i + 1]) << 16;
    }
    return r;
}

// Largest lane of each of sixteen.
SLIMWIRE_LANES Words largest_of_each(const Words (&x)[16]) {
    Words r;
    for (int i = 0; i < 16; ++i) {
        r.v[i] = largest(x[i]);
    }
    return r;
}
// The larger of the two largest halves of each of sixteen, in the upper half, above rubbish.
SLIMWIRE_LANES Words largest_half_of_each(const Words (&x)[16]) {
    Words r;
    for (int i = 0; i < 16; ++i) {
        const Words both = maximum_halves(x[i], shift_left<16>(x[i]));
        r.v[i] = largest(both);
    }
    return r;
}
