#include "tests/e2e/conformance/elements.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

namespace conformance {
namespace {

// name, bytes, floating, signed, roundoff, tiny; by ncclDataType_t.
constexpr std::array<TypeFacts, ncclNumTypes> kFacts = {{
    {"int8", 1, false, true, 0, 0},
    {"uint8", 1, false, false, 0, 0},
    {"int32", 4, false, true, 0, 0},
    {"uint32", 4, false, false, 0, 0},
    {"int64", 8, false, true, 0, 0},
    {"uint64", 8, false, false, 0, 0},
    {"float16", 2, true, true, 0x1p-11, 0x1p-24},
    {"float32", 4, true, true, 0x1p-24, 0x1p-149},
    {"float64", 8, true, true, 0x1p-53, 0x1p-1074},
    {"bfloat16", 2, true, true, 0x1p-8, 0x1p-133},
    {"float8e4m3", 1, true, true, 0x1p-4, 0x1p-9},
    {"float8e5m2", 1, true, true, 0x1p-3, 0x1p-16},
}};

// A small float of `exponent_bits` and `mantissa_bits`; e4m3 gives its top exponent to numbers.
double small_float(uint32_t bits, int exponent_bits, int mantissa_bits, bool has_infinity) {
    const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
    const uint32_t top = (1u << exponent_bits) - 1;
    const uint32_t exponent = bits >> mantissa_bits & top;
    const double sign = (bits >> (exponent_bits + mantissa_bits) & 1) != 0 ? -1.0 : 1.0;
    const int bias = static_cast<int>(top >> 1);
    if (exponent == top && has_infinity) {
        return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                             : std::numeric_limits<double>::quiet_NaN();
    }
    if (exponent == top && mantissa == (1u << mantissa_bits) - 1) {
        return std::numeric_limits<double>::quiet_NaN();
    }
    if (exponent == 0) {
        return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
    }
    return sign * std::ldexp(mantissa + (1u << mantissa_bits),
                             static_cast<int>(exponent) - bias - mantissa_bits);
}

std::vector<double> decode_all(int exponent_bits, int mantissa_bits, bool has_infinity) {
    std::vector<double> values(size_t{1} << (1 + exponent_bits + mantissa_bits));
    for (size_t bits = 0; bits < values.size(); ++bits) {
        values[bits] =
            small_float(static_cast<uint32_t>(bits), exponent_bits, mantissa_bits, has_infinity);
    }
    return values;
}

// All values of a type of at most 16 bits, by their bits; null for the others.
const std::vector<double>* all_values(ncclDataType_t type) {
    static const std::vector<double> half = decode_all(5, 10, true);
    static const std::vector<double> bfloat = decode_all(8, 7, true);
    static const std::vector<double> e4m3 = decode_all(4, 3, false);
    static const std::vector<double> e5m2 = decode_all(5, 2, true);
    switch (static_cast<int>(type)) {
        case ncclFloat16:
            return &half;
        case ncclBfloat16:
            return &bfloat;
        case ncclFloat8e4m3:
            return &e4m3;
        case ncclFloat8e5m2:
            return &e5m2;
        default:
            return nullptr;
    }
}

template <class T>
T read(const void* element) {
    T value;
    std::memcpy(&value, element, sizeof(value));
    return value;
}

// Writes one element of magnitude in [low, high]; of 16-bit and smaller floats each value of that
// range is as likely as the others.
void draw_float(Chance& chance, ncclDataType_t type, double low, double high, void* element) {
    if (const std::vector<double>* values = all_values(type); values != nullptr) {
        for (;;) {
            const size_t bits = chance.next() % values->size();
            const double magnitude = std::fabs((*values)[bits]);
            if (magnitude >= low && magnitude <= high) {
                const auto word = static_cast<uint16_t>(bits);
                std::memcpy(element, &word, facts_of(type).bytes);
                return;
            }
        }
    }
    const double sign = chance.below(2) == 0 ? 1.0 : -1.0;
    const double value = sign * low * std::pow(high / low, chance.unit());
    if (type == ncclFloat32) {
        const auto single = static_cast<float>(value);
        std::memcpy(element, &single, sizeof(single));
    } else {
        std::memcpy(element, &value, sizeof(value));
    }
}

Table make_table(ncclDataType_t type, Shape shape) {
    const TypeFacts& signature = facts_of(type);
    Chance chance(0x5eed + static_cast<uint64_t>(type) * 64 + static_cast<uint64_t>(shape));
    Table table;
    table.type = type;
    table.bytes.resize(Table::kElems * signature.bytes);
    table.values.resize(Table::kElems);
    table.words.resize(Table::kElems);
    int zeros = 0;
    for (size_t i = 0; i < Table::kElems; ++i) {
        char* element = table.bytes.data() + i * signature.bytes;
        if (shape == Shape::kSparse && zeros == 0 && chance.below(100) == 0) {
            zeros = 30 + chance.below(200);
        }
        if (zeros > 0 || shape == Shape::kNothing) {
            zeros = std::max(zeros - 1, 0);
            std::memset(element, 0, signature.bytes);
        } else if (signature.floating) {
            const bool factors = shape == Shape::kFactors;
            draw_float(chance, type, factors ? 0.5 : 0x1p-6, factors ? 1.5 : 4.0, element);
        } else {
            uint64_t word = chance.next();
            if (shape == Shape::kSmall) {
                word = static_cast<uint64_t>(chance.below(21) - (signature.is_signed ? 10 : 0));
            }
            std::memcpy(element, &word, signature.bytes);
        }
        table.values[i] = to_double(type, element);
        uint64_t word = 0;
        std::memcpy(&word, element, signature.bytes);
        const auto unused = static_cast<int>(64 - 8 * signature.bytes);
        table.words[i] = signature.is_signed
                             ? static_cast<uint64_t>(static_cast<int64_t>(word << unused) >> unused)
                             : word;
    }
    return table;
}

}  // namespace

const TypeFacts& facts_of(ncclDataType_t type) {
    return kFacts[static_cast<size_t>(type)];
}

double to_double(ncclDataType_t type, const void* element) {
    switch (static_cast<int>(type)) {
        case ncclInt8:
            return read<int8_t>(element);
        case ncclUint8:
            return read<uint8_t>(element);
        case ncclInt32:
            return read<int32_t>(element);
        case ncclUint32:
            return read<uint32_t>(element);
        case ncclInt64:
            return static_cast<double>(read<int64_t>(element));
        case ncclUint64:
            return static_cast<double>(read<uint64_t>(element));
        case ncclFloat32:
            return read<float>(element);
        case ncclFloat64:
            return read<double>(element);
        case ncclFloat16:
        case ncclBfloat16:
            return (*all_values(type))[read<uint16_t>(element)];
        default:
            return (*all_values(type))[read<uint8_t>(element)];
    }
}

void write_special(ncclDataType_t type, bool infinity, void* element) {
    uint64_t bits = 0;
    switch (static_cast<int>(type)) {
        case ncclFloat16:
            bits = infinity ? 0x7c00 : 0x7e01;
            break;
        case ncclBfloat16:
            bits = infinity ? 0xff80 : 0x7fc1;
            break;
        case ncclFloat32:
            bits = infinity ? 0x7f800000 : 0x7fc00123;
            break;
        case ncclFloat64:
            bits = infinity ? 0xfff0000000000000ull : 0x7ff8000000000001ull;
            break;
        case ncclFloat8e4m3:
            bits = 0x7f;
            break;
        default:
            bits = infinity ? 0x7c : 0x7f;
            break;
    }
    std::memcpy(element, &bits, facts_of(type).bytes);
}

const Table& table_of(ncclDataType_t type, Shape shape) {
    static const std::vector<Table> tables = [] {
        std::vector<Table> made;
        for (int t = 0; t < ncclNumTypes; ++t) {
            for (int s = 0; s < kShapes; ++s) {
                made.push_back(make_table(static_cast<ncclDataType_t>(t), static_cast<Shape>(s)));
            }
        }
        return made;
    }();
    return tables[static_cast<size_t>(type) * kShapes + static_cast<size_t>(shape)];
}

}  // namespace conformance
