// Arithmetic, bit and conversion intrinsics with the device's results: a NaN that arithmetic gives
// is 0x7FFFFFFF, conversions to integers saturate and take NaN for 0. Compile without contraction.
#pragma once

#include <cuda_runtime_api.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

// --- Vectors

inline float2 make_float2(float x, float y) {
    return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}
inline uint2 make_uint2(unsigned x, unsigned y) {
    return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return {x, y, z, w};
}
inline int2 make_int2(int x, int y) {
    return {x, y};
}
inline int4 make_int4(int x, int y, int z, int w) {
    return {x, y, z, w};
}
inline double2 make_double2(double x, double y) {
    return {x, y};
}
inline uchar4 make_uchar4(unsigned char x, unsigned char y, unsigned char z, unsigned char w) {
    return {x, y, z, w};
}
inline ushort2 make_ushort2(unsigned short x, unsigned short y) {
    return {x, y};
}
inline ushort4 make_ushort4(unsigned short x,
                            unsigned short y,
                            unsigned short z,
                            unsigned short w) {
    return {x, y, z, w};
}
inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) {
    return {x, y};
}

// --- Bit patterns

inline unsigned __float_as_uint(float x) {
    return std::bit_cast<unsigned>(x);
}
inline float __uint_as_float(unsigned x) {
    return std::bit_cast<float>(x);
}
inline int __float_as_int(float x) {
    return std::bit_cast<int>(x);
}
inline float __int_as_float(int x) {
    return std::bit_cast<float>(x);
}
inline long long __double_as_longlong(double x) {
    return std::bit_cast<long long>(x);
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
inline double __fma_rn(double a, double b, double c) {
    return device_result(std::fma(a, b, c));
}

template <class Integer, class Float>
Integer device_integer(Float whole) {
    using Limits = std::numeric_limits<Integer>;
    // Both limits as the nearest power of two, which is exact: above `most` means at least 2^n.
    const auto most = std::ldexp(Float{1}, Limits::digits);
    if (whole != whole) {
        return 0;
    }
    if (whole >= most) {
        return Limits::max();
    }
    if (whole < (Limits::is_signed ? -most : Float{0})) {
        return Limits::min();
    }
    return static_cast<Integer>(whole);
}
inline int __float2int_rn(float x) {
    return device_integer<int>(std::nearbyint(x));
}
inline int __float2int_rz(float x) {
    return device_integer<int>(std::trunc(x));
}
inline int __float2int_rd(float x) {
    return device_integer<int>(std::floor(x));
}
inline int __float2int_ru(float x) {
    return device_integer<int>(std::ceil(x));
}
inline unsigned __float2uint_rn(float x) {
    return device_integer<unsigned>(std::nearbyint(x));
}
inline unsigned __float2uint_rz(float x) {
    return device_integer<unsigned>(std::trunc(x));
}
inline float __int2float_rn(int x) {
    return static_cast<float>(x);
}
inline float __uint2float_rn(unsigned x) {
    return static_cast<float>(x);
}
inline float __double2float_rn(double x) {
    return device_result(static_cast<float>(x));
}

// --- Integers

inline int __popc(unsigned x) {
    return std::popcount(x);
}
inline int __popcll(unsigned long long x) {
    return std::popcount(x);
}
inline int __clz(int x) {
    return std::countl_zero(static_cast<unsigned>(x));
}
inline int __clzll(long long x) {
    return std::countl_zero(static_cast<unsigned long long>(x));
}
// 1 + the position of the lowest bit that is set; 0 for 0.
inline int __ffs(int x) {
    return x == 0 ? 0 : 1 + std::countr_zero(static_cast<unsigned>(x));
}
inline int __ffsll(long long x) {
    return x == 0 ? 0 : 1 + std::countr_zero(static_cast<unsigned long long>(x));
}
inline unsigned long long __brevll(unsigned long long x) {
    unsigned long long result = 0;
    for (int i = 0; i < 64; ++i) {
        result |= (x >> i & 1) << (63 - i);
    }
    return result;
}
inline unsigned __brev(unsigned x) {
    return static_cast<unsigned>(__brevll(x) >> 32);
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
// Of high:low shifted: the upper (left) or lower (right) word. The shift counts modulo 32, with a
// final c up to 32.
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>(((uint64_t{high} << 32 | low) << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((uint64_t{high} << 32 | low) >> (shift & 31));
}
inline unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift) {
    return shift >= 32 ? low : __funnelshift_l(low, high, shift);
}
inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift) {
    return shift >= 32 ? high : __funnelshift_r(low, high, shift);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(uint64_t{a} * b >> 32);
}
inline int __mulhi(int a, int b) {
    return static_cast<int>(int64_t{a} * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<unsigned long long>(static_cast<Wide>(a) * b >> 64);
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
