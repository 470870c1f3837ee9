// output + decoded, for every element type, rounded once: in fp32 for floats up to 32 bits, in fp64
// for fp64, modulo 2^bits for integers. Included by host/palette.cpp inside its anonymous
// namespace, after the lanes.

template <class Element>
void add_lanes(const uint8_t* decoded, int64_t count, uint8_t* output) {
    const Sink<Element, true> sink{output};
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        sink.sixteen(i, Element::load(decoded + i * Element::kBytes));
    }
    if (i < count) {
        sink.some(i, load_some<Element>(decoded + i * Element::kBytes, count - i), count - i);
    }
}

template <class Integer>
void add_integers(const uint8_t* decoded, int64_t count, uint8_t* output) {
    for (int64_t i = 0; i < count; ++i) {
        Integer a;
        Integer b;
        __builtin_memcpy(&a, output + i * int64_t{sizeof(Integer)}, sizeof(Integer));
        __builtin_memcpy(&b, decoded + i * int64_t{sizeof(Integer)}, sizeof(Integer));
        a = static_cast<Integer>(a + b);
        __builtin_memcpy(output + i * int64_t{sizeof(Integer)}, &a, sizeof(Integer));
    }
}

inline void add_float64(const uint8_t* decoded, int64_t count, uint8_t* output) {
    for (int64_t i = 0; i < count; ++i) {
        double a;
        double b;
        __builtin_memcpy(&a, output + 8 * i, 8);
        __builtin_memcpy(&b, decoded + 8 * i, 8);
        a += b;
        uint64_t bits;
        __builtin_memcpy(&bits, &a, 8);
        bits = a != a ? kNanFloat64 : bits;
        __builtin_memcpy(output + 8 * i, &bits, 8);
    }
}

// An 8-bit float: bits of the fraction, exponent bias, code from which values are not finite, what
// overflow becomes, the canonical NaN.
struct Float8Format {
    int fraction_bits;
    int bias;
    uint32_t first_special;
    uint32_t overflow;
    uint32_t nan;
};
constexpr Float8Format kE4m3 = {3, 7, 0x7F, 0x7F, 0x7F};
constexpr Float8Format kE5m2 = {2, 15, 0x7C, 0x7C, 0x7E};

inline float float8_value(const Float8Format& format, uint8_t code) {
    const uint32_t magnitude = code & 0x7Fu;
    const int shift = 23 - format.fraction_bits;
    uint32_t bits;
    float value;
    if (magnitude >= format.first_special) {
        bits = magnitude == 0x7C && format.overflow == 0x7C ? kInfinityBits : kNanFloat32;
    } else if (magnitude >> format.fraction_bits != 0) {
        bits = (magnitude << shift) + (static_cast<uint32_t>(127 - format.bias) << 23);
    } else {
        // A subnormal: its code times the smallest step.
        const uint32_t step = static_cast<uint32_t>(128 - format.bias - format.fraction_bits) << 23;
        __builtin_memcpy(&value, &step, 4);
        value *= static_cast<float>(magnitude);
        __builtin_memcpy(&bits, &value, 4);
    }
    bits |= static_cast<uint32_t>(code & 0x80u) << 24;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}

inline uint8_t float8_code(const Float8Format& format, float value) {
    const int shift = 23 - format.fraction_bits;
    uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    const uint32_t magnitude = bits & kMagnitudeMask;
    if (magnitude > kInfinityBits) {
        return static_cast<uint8_t>(format.nan);
    }
    uint32_t code;
    if (magnitude < static_cast<uint32_t>(128 - format.bias) << 23) {
        // Units in the last place of the sum are the smallest steps.
        const uint32_t magic = static_cast<uint32_t>(151 - format.bias - format.fraction_bits)
                               << 23;
        float sum;
        float small;
        __builtin_memcpy(&sum, &magic, 4);
        __builtin_memcpy(&small, &magnitude, 4);
        sum += small;
        __builtin_memcpy(&code, &sum, 4);
        code -= magic;
    } else {
        const uint32_t half = (1u << (shift - 1)) - 1 + (magnitude >> shift & 1);
        code = ((magnitude + half) >> shift) -
               (static_cast<uint32_t>(127 - format.bias) << format.fraction_bits);
        code = code >= format.first_special ? format.overflow : code;
    }
    return static_cast<uint8_t>(code | (bits >> 24 & 0x80u));
}

inline void add_float8(const Float8Format& format,
                       const uint8_t* decoded,
                       int64_t count,
                       uint8_t* output) {
    for (int64_t i = 0; i < count; ++i) {
        output[i] =
            float8_code(format, float8_value(format, output[i]) + float8_value(format, decoded[i]));
    }
}

inline void accumulate(DType dtype, const uint8_t* decoded, int64_t bytes, uint8_t* output) {
    switch (dtype) {
        case DType::kInt8:
        case DType::kUint8:
            return add_integers<uint8_t>(decoded, bytes, output);
        case DType::kInt32:
        case DType::kUint32:
            return add_integers<uint32_t>(decoded, bytes / 4, output);
        case DType::kInt64:
        case DType::kUint64:
            return add_integers<uint64_t>(decoded, bytes / 8, output);
        case DType::kFloat16:
            return add_lanes<Float16>(decoded, bytes / 2, output);
        case DType::kFloat32:
            return add_lanes<Float32>(decoded, bytes / 4, output);
        case DType::kFloat64:
            return add_float64(decoded, bytes / 8, output);
        case DType::kBfloat16:
            return add_lanes<Bfloat16>(decoded, bytes / 2, output);
        case DType::kFloat8e4m3:
            return add_float8(kE4m3, decoded, bytes, output);
        case DType::kFloat8e5m2:
            return add_float8(kE5m2, decoded, bytes, output);
    }
}
