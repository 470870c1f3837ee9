#include "tools/cli/codec/elements.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "codecs/float16.h"

namespace slimwire::cli {
namespace {

template <class T>
T load(const uint8_t* buffer, int64_t i) {
    T value;
    std::memcpy(&value, buffer + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return value;
}

template <class T>
void store(uint8_t* buffer, int64_t i, T value) {
    std::memcpy(buffer + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

template <class T>
void store_integer(uint8_t* buffer, int64_t i, double x) {
    using Limits = std::numeric_limits<T>;
    if (!(x > static_cast<double>(Limits::min()))) {
        store(buffer, i, x != x ? T{0} : Limits::min());
    } else if (x >= static_cast<double>(Limits::max())) {
        store(buffer, i, Limits::max());
    } else {
        store(buffer, i, static_cast<T>(std::nearbyint(x)));
    }
}

// OCP 8-bit floating point (OFP8, 2023): e4m3 has no infinity and one NaN a sign, e5m2 is the upper
// half of an fp16.
double float8(DType dtype, uint8_t bits) {
    if (dtype == DType::kFloat8e5m2) {
        return float16_to_float(static_cast<uint16_t>(bits << 8));
    }
    const int exponent = bits >> 3 & 15;
    const int fraction = bits & 7;
    double magnitude =
        exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
    if ((bits & 0x7F) == 0x7F) {
        magnitude = std::numeric_limits<double>::quiet_NaN();
    }
    return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

// Nearest finite value, ties to the even code.
uint8_t to_float8(DType dtype, double x) {
    const uint8_t largest = dtype == DType::kFloat8e5m2 ? 0x7B : 0x7E;
    uint8_t best = 0;
    for (uint8_t bits = 1; bits <= largest; ++bits) {
        const double distance = std::fabs(float8(dtype, bits) - std::fabs(x));
        const double before = std::fabs(float8(dtype, best) - std::fabs(x));
        if (distance < before || (distance == before && bits % 2 == 0)) {
            best = bits;
        }
    }
    return std::signbit(x) ? best | 0x80 : best;
}

}  // namespace

double element(DType dtype, const uint8_t* buffer, int64_t i) {
    switch (dtype) {
        case DType::kInt8:
            return load<int8_t>(buffer, i);
        case DType::kUint8:
            return load<uint8_t>(buffer, i);
        case DType::kInt32:
            return load<int32_t>(buffer, i);
        case DType::kUint32:
            return load<uint32_t>(buffer, i);
        case DType::kInt64:
            return static_cast<double>(load<int64_t>(buffer, i));
        case DType::kUint64:
            return static_cast<double>(load<uint64_t>(buffer, i));
        case DType::kFloat16:
            return float16_to_float(load<uint16_t>(buffer, i));
        case DType::kFloat32:
            return load<float>(buffer, i);
        case DType::kFloat64:
            return load<double>(buffer, i);
        case DType::kBfloat16:
            return bfloat16_to_float(load<uint16_t>(buffer, i));
        case DType::kFloat8e4m3:
        case DType::kFloat8e5m2:
            return float8(dtype, buffer[i]);
    }
    return 0;
}

void put_element(DType dtype, uint8_t* buffer, int64_t i, double x) {
    switch (dtype) {
        case DType::kInt8:
            return store_integer<int8_t>(buffer, i, x);
        case DType::kUint8:
            return store_integer<uint8_t>(buffer, i, x);
        case DType::kInt32:
            return store_integer<int32_t>(buffer, i, x);
        case DType::kUint32:
            return store_integer<uint32_t>(buffer, i, x);
        case DType::kInt64:
            return store_integer<int64_t>(buffer, i, x);
        case DType::kUint64:
            return store_integer<uint64_t>(buffer, i, x);
        case DType::kFloat16:
            return store(buffer, i, float_to_float16(static_cast<float>(x)));
        case DType::kFloat32:
            return store(buffer, i, static_cast<float>(x));
        case DType::kFloat64:
            return store(buffer, i, x);
        case DType::kBfloat16:
            return store(buffer, i, float_to_bfloat16(static_cast<float>(x)));
        case DType::kFloat8e4m3:
        case DType::kFloat8e5m2:
            buffer[i] = to_float8(dtype, x);
            return;
    }
}

double relative_error(DType dtype, const uint8_t* a, const uint8_t* b, int64_t count) {
    double difference = 0;
    double norm = 0;
    for (int64_t i = 0; i < count; ++i) {
        const double x = element(dtype, a, i);
        const double y = element(dtype, b, i);
        difference += (x - y) * (x - y);
        norm += y * y;
    }
    return difference == 0 ? 0 : std::sqrt(difference / norm);
}

}  // namespace slimwire::cli
