// Arithmetic, bit and conversion intrinsics with the device's results: a NaN that arithmetic gives
// is 0x7FFFFFFF. Compile without contraction.
#pragma once

#include <cuda_runtime_api.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

// --- Vectors

inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}
inline uint2 make_uint2(unsigned x, unsigned y) {
    return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return {x, y, z, w};
}

// --- Bit patterns

inline unsigned __float_as_uint(float x) {
    return std::bit_cast<unsigned>(x);
}
inline float __uint_as_float(unsigned x) {
    return std::bit_cast<float>(x);
}
inline double __longlong_as_double(long long x) {
    return std::bit_cast<double>(x);
}

// --- Floating point

inline float device_result(float x) {
    return x == x ? x : __uint_as_float(0x7FFFFFFFu);
}
inline double device_result(double x) {
    return x == x ? x : __longlong_as_double(std::numeric_limits<long long>::max());
}
inline float __fadd_rn(float a, float b) {
    return device_result(a + b);
}
inline float __fsub_rn(float a, float b) {
    return device_result(a - b);
}
inline float __fmul_rn(float a, float b) {
    return device_result(a * b);
}
inline float __fdiv_rn(float a, float b) {
    return device_result(a / b);
}
inline float __frcp_rn(float x) {
    return device_result(1.0f / x);
}
inline float __fsqrt_rn(float x) {
    return device_result(std::sqrt(x));
}
inline float __fmaf_rn(float a, float b, float c) {
    return device_result(std::fma(a, b, c));
}
inline double __dadd_rn(double a, double b) {
    return device_result(a + b);
}
inline double __dsub_rn(double a, double b) {
    return device_result(a - b);
}
inline double __dmul_rn(double a, double b) {
    return device_result(a * b);
}
inline double __ddiv_rn(double a, double b) {
    return device_result(a / b);
}
inline double __dsqrt_rn(double x) {
    return device_result(std::sqrt(x));
}

inline float __int2float_rn(int x) {
    return static_cast<float>(x);
}

// --- Integers

inline int __popc(unsigned x) {
    return std::popcount(x);
}
inline int __clz(int x) {
    return std::countl_zero(static_cast<unsigned>(x));
}
// 1 + the position of the lowest bit that is set; 0 for 0.
inline int __ffs(int x) {
    return x == 0 ? 0 : 1 + std::countr_zero(static_cast<unsigned>(x));
}
// Byte i of the result is the byte of y:x that nibble i of the selector names; its top bit asks for
// the byte's sign instead.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const uint64_t bytes = uint64_t{y} << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned pick = selector >> (4 * i) & 15;
        unsigned byte = static_cast<unsigned>(bytes >> (8 * (pick & 7))) & 0xFF;
        if ((pick & 8) != 0) {
            byte = (byte & 0x80) != 0 ? 0xFF : 0;
        }
        result |= byte << (8 * i);
    }
    return result;
}

#define CUDA_ON_HOST_MIN_MAX(type)    \
    inline type min(type a, type b) { \
        return a < b ? a : b;         \
    }                                 \
    inline type max(type a, type b) { \
        return a > b ? a : b;         \
    }
CUDA_ON_HOST_MIN_MAX(int)
CUDA_ON_HOST_MIN_MAX(unsigned)
CUDA_ON_HOST_MIN_MAX(long)
CUDA_ON_HOST_MIN_MAX(unsigned long)
CUDA_ON_HOST_MIN_MAX(long long)
CUDA_ON_HOST_MIN_MAX(unsigned long long)
#undef CUDA_ON_HOST_MIN_MAX
