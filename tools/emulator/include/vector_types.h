// The few vector types that host code of a CUDA program passes around: dim3 and the small integer
// and float vectors. C and C++. Under nvcc the toolkit's own file is used instead. Source of the
// layouts: CUDA Runtime 13.0 ABI; tests/abi compares them where a toolkit is present.
#pragma once

#if defined(__CUDACC__)
#include_next <vector_types.h>
#else

// Host programs may mark functions for both sides; here there is only one.
#ifndef __host__
#define __host__
#endif
#ifndef __device__
#define __device__
#endif
#ifndef __global__
#define __global__
#endif

// Alignment of a vector is its size when that is a power of two, as on the device.
#define SLIMWIRE_EMU_VECTOR2(name, type)                     \
    struct __attribute__((aligned(2 * sizeof(type)))) name { \
        type x, y;                                           \
    };                                                       \
    typedef struct name name
#define SLIMWIRE_EMU_VECTOR4(name, type, alignment)   \
    struct __attribute__((aligned(alignment))) name { \
        type x, y, z, w;                              \
    };                                                \
    typedef struct name name

SLIMWIRE_EMU_VECTOR2(ushort2, unsigned short);
SLIMWIRE_EMU_VECTOR2(int2, int);
SLIMWIRE_EMU_VECTOR2(uint2, unsigned int);
SLIMWIRE_EMU_VECTOR2(ulonglong2, unsigned long long);
SLIMWIRE_EMU_VECTOR2(float2, float);
SLIMWIRE_EMU_VECTOR2(double2, double);
SLIMWIRE_EMU_VECTOR4(uchar4, unsigned char, 4);
SLIMWIRE_EMU_VECTOR4(ushort4, unsigned short, 8);
SLIMWIRE_EMU_VECTOR4(int4, int, 16);
SLIMWIRE_EMU_VECTOR4(uint4, unsigned int, 16);
SLIMWIRE_EMU_VECTOR4(float4, float, 16);

#undef SLIMWIRE_EMU_VECTOR2
#undef SLIMWIRE_EMU_VECTOR4

struct uint3 {
    unsigned int x, y, z;
};
typedef struct uint3 uint3;

struct dim3 {
    unsigned int x, y, z;
#if defined(__cplusplus)
    constexpr dim3(unsigned int vx = 1, unsigned int vy = 1, unsigned int vz = 1)
        : x(vx), y(vy), z(vz) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const {
        return uint3{x, y, z};
    }
#endif
};
typedef struct dim3 dim3;

#endif  // __CUDACC__
