// NCCL's types as the sweep of the emulated NCCL reads them: what each rank gives, and its values.
#pragma once

#include <nccl.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

namespace slimwire::test {

using Bytes = std::vector<unsigned char>;

// How a type's bits are read: integers by width and sign, floats by exponent and mantissa bits.
struct TypeInfo {
    ncclDataType_t type;
    const char* name;
    int bytes;
    int exponent_bits;  // 0: an integer
    int mantissa_bits;
    bool is_signed;
};

inline constexpr TypeInfo kTypes[] = {
    {ncclInt8, "i8", 1, 0, 0, true},         {ncclUint8, "u8", 1, 0, 0, false},
    {ncclInt32, "i32", 4, 0, 0, true},       {ncclUint32, "u32", 4, 0, 0, false},
    {ncclInt64, "i64", 8, 0, 0, true},       {ncclUint64, "u64", 8, 0, 0, false},
    {ncclFloat16, "f16", 2, 5, 10, true},    {ncclFloat32, "f32", 4, 8, 23, true},
    {ncclFloat64, "f64", 8, 11, 52, true},   {ncclBfloat16, "bf16", 2, 8, 7, true},
    {ncclFloat8e4m3, "e4m3", 1, 4, 3, true}, {ncclFloat8e5m2, "e5m2", 1, 5, 2, true},
};

inline uint64_t bits_at(const Bytes& data, const TypeInfo& type, size_t index) {
    uint64_t bits = 0;
    memcpy(&bits, &data[index * static_cast<size_t>(type.bytes)], static_cast<size_t>(type.bytes));
    return bits;
}

// From 2 ** -1022 on; 2 ** 1024 is infinite.
inline double power_of_two(int exponent) {
    return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

// The value of an element, from the definition of its format.
inline double value_of(uint64_t bits, const TypeInfo& type) {
    const int width = type.bytes * 8;
    if (type.exponent_bits == 0) {
        const bool negative = type.is_signed && (bits >> (width - 1) & 1) != 0;
        const uint64_t high = width == 64 ? 0 : ~uint64_t{0} << width;
        return negative ? static_cast<double>(static_cast<int64_t>(bits | high))
                        : static_cast<double>(bits);
    }
    const int bias = (1 << (type.exponent_bits - 1)) - 1;
    const uint64_t mantissa = bits & ((uint64_t{1} << type.mantissa_bits) - 1);
    const auto exponent =
        static_cast<int>(bits >> type.mantissa_bits & ((uint64_t{1} << type.exponent_bits) - 1));
    const double fraction = static_cast<double>(mantissa) * power_of_two(-type.mantissa_bits);
    const double magnitude = exponent == 0 ? fraction * power_of_two(1 - bias)
                                           : (1 + fraction) * power_of_two(exponent - bias);
    return (bits >> (width - 1) & 1) != 0 ? -magnitude : magnitude;
}

inline uint64_t hash(uint64_t a, uint64_t b) {
    uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x7f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

// Element `index` of rank `rank`'s input: small integers; floats of magnitude 0.5 to 4.
inline uint64_t input_bits(const TypeInfo& type, int rank, size_t index) {
    const uint64_t random = hash(static_cast<uint64_t>(rank) + 1, index);
    const int width = type.bytes * 8;
    if (type.exponent_bits == 0) {
        const int64_t small = static_cast<int64_t>(random % 8) - (type.is_signed ? 4 : 0);
        const uint64_t mask = width == 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
        return static_cast<uint64_t>(small) & mask;
    }
    const uint64_t bias = (uint64_t{1} << (type.exponent_bits - 1)) - 1;
    const uint64_t mantissa = random >> 8 & ((uint64_t{1} << type.mantissa_bits) - 1);
    const uint64_t exponent = bias - 1 + random % 3;
    return (random >> 7 & 1) << (width - 1) | exponent << type.mantissa_bits | mantissa;
}

// The first elements of rank `rank`, at least `count`; those of a type are found once.
inline const Bytes& given_by(const TypeInfo& type, int rank, size_t count) {
    static ncclDataType_t known = ncclNumTypes;
    static std::map<int, Bytes> inputs;
    if (known != type.type) {
        known = type.type;
        inputs.clear();
    }
    Bytes& data = inputs[rank];
    const auto bytes = static_cast<size_t>(type.bytes);
    for (size_t i = data.size() / bytes; i < count; ++i) {
        const uint64_t bits = input_bits(type, rank, i);
        data.resize((i + 1) * bytes);
        memcpy(&data[i * bytes], &bits, bytes);
    }
    return data;
}

inline Bytes make_input(const TypeInfo& type, int rank, size_t count) {
    const Bytes& data = given_by(type, rank, count);
    return {data.begin(), data.begin() + static_cast<ptrdiff_t>(count) * type.bytes};
}

}  // namespace slimwire::test
