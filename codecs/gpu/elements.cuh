// Device side of the element types, shared by the kernels of all families: eight consecutive
// elements per thread as fp32, 16-byte accesses where the address allows, element by element at
// ragged ends and misaligned buffers. Conversions equal codecs/simd/lanes_scalar.h to the bit:
// explicit rounding, no contraction (-fmad=false), denormals kept.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "codecs/base/dtype.h"
#include "codecs/gpu/work.cuh"
#include "codecs/numeric.h"

namespace slimwire {
namespace {

constexpr int kPerThread = 8;
constexpr int64_t kWarpElems = kWarpThreads * kPerThread;  // of one span
constexpr int kSpans = 2;                                  // that a warp takes at a time
constexpr int64_t kUnitElems = kSpans * kWarpElems;

struct Eight {
    float v[kPerThread];
};

__device__ __forceinline__ uint32_t magnitude_of(float x) {
    return __float_as_uint(x) & kMagnitudeMask;
}
__device__ __forceinline__ bool is_nan(float x) {
    return magnitude_of(x) > kInfinityBits;
}
__device__ __forceinline__ float canonical(float x) {
    return is_nan(x) ? __uint_as_float(kNanFloat32) : x;
}

// x / kDivisor of a finite x, to the nearest where that is a normal number, and below the least
// where it is not.
template <int kDivisor>
__device__ __forceinline__ float divided_by(float x) {
    constexpr float kInverse = 1.0f / kDivisor;
    const float quotient = __fmul_rn(x, kInverse);
    const float left = __fmaf_rn(-quotient, static_cast<float>(kDivisor), x);
    return __fmaf_rn(left, kInverse, quotient);
}

// A finite x moved into [-most, most], given as fp32 bits.
__device__ __forceinline__ float saturated(float x, uint32_t most) {
    const uint32_t magnitude = magnitude_of(x);
    const bool outside = magnitude > most && magnitude < kInfinityBits;
    return outside ? __uint_as_float((__float_as_uint(x) & ~kMagnitudeMask) | most) : x;
}
// A sum within a limit.
__device__ __forceinline__ float limited(float x, SumLimit limit) {
    const uint32_t magnitude = magnitude_of(x);
    if (magnitude <= __float_as_uint(limit.most) || magnitude > kInfinityBits) {
        return x;
    }
    const bool infinite = magnitude >= __float_as_uint(__fmul_rn(limit.most, limit.overflow));
    return copysignf(infinite ? __uint_as_float(kInfinityBits) : limit.most, x);
}
// x, infinite from the magnitude bits `overflow` on.
__device__ __forceinline__ float overflowed(float x, uint32_t overflow) {
    return magnitude_of(x) >= overflow ? __fmul_rn(x, __uint_as_float(kInfinityBits)) : x;
}
// x + residual; of a finite x at most the largest fp32.
__device__ __forceinline__ float add_residual(float x, float residual) {
    const float sum = __fadd_rn(x, residual);
    const bool left = magnitude_of(sum) == kInfinityBits && magnitude_of(x) < kInfinityBits;
    return left ? __uint_as_float(__float_as_uint(sum) - 1) : sum;
}

// The larger magnitude of two as fp32 bits, above those of infinity where one is NaN.
__device__ __forceinline__ uint32_t larger_magnitude(uint32_t a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(__uint_as_float(a)), "f"(fabsf(b)));
    return __float_as_uint(larger);
#else
    return max(a, magnitude_of(b));
#endif
}
__device__ __forceinline__ uint32_t largest_of(const Eight& x, uint32_t magnitude = 0) {
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
        magnitude = larger_magnitude(magnitude, x.v[k]);
    }
    return magnitude;
}

// Keeps decoded values within the user's type, whose largest has the fp32 bits `most`. What few
// values need is done where one of eight does, here and below.
__device__ __forceinline__ void keep_within(uint32_t most, Eight& x) {
    if (most < kMaxFloat32Bits && largest_of(x) > most) {
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            x.v[k] = saturated(x.v[k], most);
        }
    }
}
// The same of sums.
__device__ __forceinline__ void limit_sums(SumLimit limit, Eight& x) {
    if (limit.most < kNoSumLimit && largest_of(x) > __float_as_uint(limit.most)) {
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            x.v[k] = limited(x.v[k], limit);
        }
    }
}
// The same of one block, whose values are at most `reach` times its scale: seldom more than a look.
__device__ __forceinline__ void keep_within(uint32_t most, float scale, float reach, Eight& x) {
    if (fabsf(scale) * reach > __uint_as_float(most)) {
        keep_within(most, x);
    }
}

// scale * x + old within a limit: the sum of their halves is finite where both are.
__device__ __forceinline__ float limited_sum(float scale, float x, float old, SumLimit limit) {
    const float sum = __fmaf_rn(__fmul_rn(0.5f, scale), x, __fmul_rn(0.5f, old));
    limit.most = __fmul_rn(0.5f, limit.most);
    return __fmul_rn(2.0f, limited(sum, limit));
}

struct Float32 {
    static constexpr int kBytes = 4;
    static constexpr uint32_t kMaxBits = kMaxFloat32Bits;
    static constexpr uint32_t kOverflowBits = kInfinityBits;
    __device__ static __forceinline__ float get(const uint8_t* from) {
        return *reinterpret_cast<const float*>(from);
    }
    __device__ static __forceinline__ void put(uint8_t* to, float x) {
        *reinterpret_cast<float*>(to) = x;
    }
    __device__ static __forceinline__ uint32_t word(const uint8_t* from) {
        return *reinterpret_cast<const uint32_t*>(from);
    }
    __device__ static __forceinline__ void values(const uint32_t (&w)[kPerThread], Eight& x) {
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            x.v[k] = __uint_as_float(w[k]);
        }
    }
    __device__ static __forceinline__ void get_eight(const uint8_t* from, Eight& x) {
        const auto* p = reinterpret_cast<const float4*>(from);
        const float4 a = p[0];
        const float4 b = p[1];
        x = {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
    }
    __device__ static __forceinline__ void put_eight(uint8_t* to, const Eight& x) {
        auto* p = reinterpret_cast<float4*>(to);
        p[0] = make_float4(x.v[0], x.v[1], x.v[2], x.v[3]);
        p[1] = make_float4(x.v[4], x.v[5], x.v[6], x.v[7]);
    }
    __device__ static __forceinline__ void put_word(uint8_t* to, uint32_t bits) {
        *reinterpret_cast<uint32_t*>(to) = bits;
    }
    __device__ static __forceinline__ void words(const Eight& x, uint32_t (&w)[kPerThread]) {
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            w[k] = __float_as_uint(x.v[k]);
        }
    }
};

// Types of 16 bits: Format says how one value converts.
template <class Format>
struct Sixteen {
    static constexpr int kBytes = 2;
    static constexpr uint32_t kMaxBits = Format::kMaxBits;
    static constexpr uint32_t kOverflowBits = Format::kOverflowBits;
    __device__ static __forceinline__ float get(const uint8_t* from) {
        return Format::to_float(*reinterpret_cast<const uint16_t*>(from));
    }
    __device__ static __forceinline__ void put(uint8_t* to, float x) {
        *reinterpret_cast<uint16_t*>(to) = Format::from_float(x);
    }
    __device__ static __forceinline__ uint32_t word(const uint8_t* from) {
        return *reinterpret_cast<const uint16_t*>(from);
    }
    __device__ static __forceinline__ void get_eight(const uint8_t* from, Eight& x) {
        const uint4 words = *reinterpret_cast<const uint4*>(from);
        values({words.x, words.y, words.z, words.w}, x);
    }
    __device__ static __forceinline__ void put_eight(uint8_t* to, const Eight& x) {
        uint32_t w[kPerThread / 2];
        words(x, w);
        *reinterpret_cast<uint4*>(to) = make_uint4(w[0], w[1], w[2], w[3]);
    }
    __device__ static __forceinline__ void put_word(uint8_t* to, uint32_t bits) {
        *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(bits);
    }
    __device__ static __forceinline__ void values(const uint32_t (&w)[kPerThread / 2], Eight& x) {
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            x.v[k] = Format::to_float(static_cast<uint16_t>(w[k / 2] >> (16 * (k % 2))));
        }
    }
    __device__ static __forceinline__ void words(const Eight& x, uint32_t (&w)[kPerThread / 2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#pragma unroll
        for (int j = 0; j < kPerThread / 2; ++j) {
            w[j] = Format::pair(x.v[2 * j], x.v[2 * j + 1]);
        }
        if (largest_of(x) <= kInfinityBits) {
            return;
        }
#endif
#pragma unroll
        for (int j = 0; j < kPerThread / 2; ++j) {
            w[j] = Format::from_float(x.v[2 * j]) |
                   static_cast<uint32_t>(Format::from_float(x.v[2 * j + 1])) << 16;
        }
    }
};

struct Float16Format {
    static constexpr uint32_t kMaxBits = kMaxFloat16Bits;
    static constexpr uint32_t kOverflowBits = kOverflowFloat16Bits;
    __device__ static __forceinline__ float to_float(uint16_t bits) {
        return __half2float(__ushort_as_half(bits));
    }
    __device__ static __forceinline__ uint16_t from_float(float x) {
        return is_nan(x) ? kNanFloat16 : __half_as_ushort(__float2half_rn(x));
    }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    // Both in one word, by hardware, whose NaN is another one.
    __device__ static __forceinline__ uint32_t pair(float low, float high) {
        uint32_t both;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
        return both;
    }
#endif
};

struct Bfloat16Format {
    static constexpr uint32_t kMaxBits = kMaxBfloat16Bits;
    static constexpr uint32_t kOverflowBits = kOverflowBfloat16Bits;
    __device__ static __forceinline__ float to_float(uint16_t bits) {
        return __uint_as_float(static_cast<uint32_t>(bits) << 16);
    }
    __device__ static __forceinline__ uint16_t from_float(float x) {
        const uint32_t bits = __float_as_uint(x);
        const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
        return is_nan(x) ? kNanBfloat16 : static_cast<uint16_t>(rounded);
    }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    __device__ static __forceinline__ uint32_t pair(float low, float high) {
        uint32_t both;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
        return both;
    }
#endif
};

using Float16 = Sixteen<Float16Format>;
using Bfloat16 = Sixteen<Bfloat16Format>;

// Calls run(Element{}) for the three types that codecs take.
template <class Run>
auto visit(DType dtype, Run run) {
    if (dtype == DType::kFloat32) {
        return run(Float32{});
    }
    return dtype == DType::kFloat16 ? run(Float16{}) : run(Bfloat16{});
}

// The bits of a type that is known when the kernel runs.
__device__ __forceinline__ uint32_t max_bits(DType dtype) {
    return dtype == DType::kFloat32   ? kMaxFloat32Bits
           : dtype == DType::kFloat16 ? kMaxFloat16Bits
                                      : kMaxBfloat16Bits;
}
__device__ __forceinline__ uint32_t overflow_bits(DType dtype) {
    return dtype == DType::kFloat32   ? kInfinityBits
           : dtype == DType::kFloat16 ? kOverflowFloat16Bits
                                      : kOverflowBfloat16Bits;
}
__device__ __forceinline__ bool is_aligned16(const void* pointer) {
    return (reinterpret_cast<uintptr_t>(pointer) & 15) == 0;
}

// How many of elements i, ..., i + 7 are there; below 0 if none is.
__device__ __forceinline__ int elements_there(int64_t i, int64_t count) {
    const int64_t left = count - i;
    return left < kPerThread ? static_cast<int>(left) : kPerThread;
}

// Eight elements as they lie in memory: a thread loads all that it needs before it uses any.
template <class Element>
struct Raw {
    uint32_t w[kPerThread * Element::kBytes / 4];
};

// Elements i, ..., i + 7 of a buffer of `count`; zero past its end. i is a multiple of eight.
template <class Element>
__device__ __forceinline__ void load_raw(const uint8_t* buffer,
                                         int64_t i,
                                         int64_t count,
                                         Raw<Element>& raw) {
    constexpr int kWords = kPerThread * Element::kBytes / 4;
    const uint8_t* from = buffer + i * Element::kBytes;
    if (i + kPerThread <= count && is_aligned16(buffer)) {
#pragma unroll
        for (int j = 0; j < kWords; j += 4) {
            const uint4 words = reinterpret_cast<const uint4*>(from)[j / 4];
            raw.w[j] = words.x;
            raw.w[j + 1] = words.y;
            raw.w[j + 2] = words.z;
            raw.w[j + 3] = words.w;
        }
        return;
    }
    constexpr int kEach = 4 / Element::kBytes;
    const int there = elements_there(i, count);
#pragma unroll
    for (int j = 0; j < kWords; ++j) {
        raw.w[j] = 0;
#pragma unroll
        for (int k = j * kEach; k < (j + 1) * kEach; ++k) {
            if (k < there) {
                raw.w[j] |= Element::word(from + k * Element::kBytes) << (16 * (k % kEach));
            }
        }
    }
}

template <class Element>
__device__ __forceinline__ void load_eight(const uint8_t* buffer,
                                           int64_t i,
                                           int64_t count,
                                           Eight& x) {
    if (i + kPerThread <= count && is_aligned16(buffer)) {
        Element::get_eight(buffer + i * Element::kBytes, x);
        return;
    }
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
        x.v[k] = i + k < count ? Element::get(buffer + (i + k) * Element::kBytes) : 0.0f;
    }
}

template <class Element>
__device__ __forceinline__ void store_raw(uint8_t* buffer,
                                          int64_t i,
                                          int64_t count,
                                          const Raw<Element>& raw) {
    constexpr int kWords = kPerThread * Element::kBytes / 4;
    uint8_t* to = buffer + i * Element::kBytes;
    if (i + kPerThread <= count && is_aligned16(buffer)) {
#pragma unroll
        for (int j = 0; j < kWords; j += 4) {
            reinterpret_cast<uint4*>(to)[j / 4] =
                make_uint4(raw.w[j], raw.w[j + 1], raw.w[j + 2], raw.w[j + 3]);
        }
        return;
    }
    constexpr int kEach = 4 / Element::kBytes;
    const int there = elements_there(i, count);
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
        if (k < there) {
            Element::put_word(to + k * Element::kBytes, raw.w[k / kEach] >> (16 * (k % kEach)));
        }
    }
}
template <class Element>
__device__ __forceinline__ void store_eight(uint8_t* buffer,
                                            int64_t i,
                                            int64_t count,
                                            const Eight& x) {
    Raw<Element> raw;
    Element::words(x, raw.w);
    store_raw<Element>(buffer, i, count, raw);
}

// p = factor * x + residual, rounding twice; zero past the end. The product is infinite where the
// user's type would round it to that, from `overflow` on.
__device__ __forceinline__ void scale_and_add(
    float factor, uint32_t overflow, const float* residual, int64_t i, int64_t count, Eight& x) {
    Eight old = {};
    if (residual != nullptr) {
        load_eight<Float32>(reinterpret_cast<const uint8_t*>(residual), i, count, old);
    }
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
        const float scaled = __fmul_rn(factor, x.v[k]);
        const float product = overflow < kInfinityBits ? overflowed(scaled, overflow) : scaled;
        const float p = residual != nullptr ? add_residual(product, old.v[k]) : product;
        x.v[k] = i + k < count ? p : 0.0f;
    }
}
// The same with a residual that is loaded; what few values need is done where one of eight does.
__device__ __forceinline__ void scale_and_add(float factor,
                                              uint32_t overflow,
                                              bool add,
                                              const Raw<Float32>& residual,
                                              int64_t i,
                                              int64_t count,
                                              Eight& x) {
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
        x.v[k] = __fmul_rn(factor, x.v[k]);
    }
    if (overflow < kInfinityBits && largest_of(x) >= overflow) {
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            x.v[k] = overflowed(x.v[k], overflow);
        }
    }
    if (add) {
        constexpr uint32_t kHalfOfLargest = 0x7E800000u;  // 2^126: no sum below is infinite
        Eight old;
        Float32::values(residual.w, old);
        if (largest_of(old, largest_of(x)) < kHalfOfLargest) {
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                x.v[k] = __fadd_rn(x.v[k], old.v[k]);
            }
        } else {
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                x.v[k] = add_residual(x.v[k], old.v[k]);
            }
        }
    }
    if (i + kPerThread > count) {
        const int there = elements_there(i, count);
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            x.v[k] = k < there ? x.v[k] : 0.0f;
        }
    }
}

// Where p comes from when the user's buffer is encoded, or sums of values of the type User are.
template <class Element, class User = Element>
struct UserSource {
    const uint8_t* input;
    const float* residual;
    int64_t count;
    float factor;

    __device__ static constexpr uint32_t most() { return User::kMaxBits; }
    // Elements of a type leave it by a factor above 1 only.
    __device__ __forceinline__ uint32_t overflow() const {
        return !std::is_same_v<Element, User> || fabsf(factor) > 1.0f ? User::kOverflowBits
                                                                      : kInfinityBits;
    }
    // As many eights, a span apart, all loaded before any is used.
    template <int kCount>
    __device__ __forceinline__ void spans(int64_t i, Eight (&p)[kCount]) const {
        Raw<Element> x[kCount];
        Raw<Float32> old[kCount];
#pragma unroll
        for (int g = 0; g < kCount; ++g) {
            load_raw<Element>(input, i + g * kWarpElems, count, x[g]);
            if (residual != nullptr) {
                load_raw<Float32>(reinterpret_cast<const uint8_t*>(residual), i + g * kWarpElems,
                                  count, old[g]);
            }
        }
#pragma unroll
        for (int g = 0; g < kCount; ++g) {
            Element::values(x[g].w, p[g]);
            scale_and_add(factor, overflow(), residual != nullptr, old[g], i + g * kWarpElems,
                          count, p[g]);
        }
    }
    __device__ __forceinline__ void eight(int64_t i, Eight& p) const {
        load_eight<Element>(input, i, count, p);
        scale_and_add(factor, overflow(), residual, i, count, p);
    }
    // The same of one element, which is there.
    __device__ __forceinline__ float one(int64_t i) const {
        const float scaled = __fmul_rn(factor, Element::get(input + i * Element::kBytes));
        const float product = overflowed(scaled, overflow());
        return residual != nullptr ? add_residual(product, residual[i]) : product;
    }
};

// output = value, or `old` + value within a limit, rounded once, NaN canonical.
template <class Element>
__device__ __forceinline__ void deliver(uint8_t* output,
                                        int64_t i,
                                        int64_t count,
                                        bool accumulate,
                                        const Raw<Element>& old,
                                        Eight& x,
                                        SumLimit sum_limit) {
    if (accumulate) {
        Eight before;
        Element::values(old.w, before);
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            x.v[k] = sum_limit.most == kNoSumLimit
                         ? __fadd_rn(before.v[k], x.v[k])
                         : limited_sum(1.0f, x.v[k], before.v[k], sum_limit);
        }
    }
    if (Element::kBytes == 4 && largest_of(x) > kInfinityBits) {  // others are when they are stored
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            x.v[k] = canonical(x.v[k]);
        }
    }
    store_eight<Element>(output, i, count, x);
}
template <class Element>
__device__ __forceinline__ void deliver(
    uint8_t* output, int64_t i, int64_t count, bool accumulate, Eight& x, SumLimit sum_limit = {}) {
    Raw<Element> old;
    if (accumulate) {
        load_raw<Element>(output, i, count, old);
    }
    deliver<Element>(output, i, count, accumulate, old, x, sum_limit);
}

// The same with a type that is known when the kernel runs: one kernel for all of them.
__device__ __forceinline__ void deliver(
    DType dtype, uint8_t* output, int64_t i, int64_t count, bool accumulate, Eight& x) {
    if (dtype == DType::kFloat32) {
        deliver<Float32>(output, i, count, accumulate, x);
    } else if (dtype == DType::kFloat16) {
        deliver<Float16>(output, i, count, accumulate, x);
    } else {
        deliver<Bfloat16>(output, i, count, accumulate, x);
    }
}

}  // namespace
}  // namespace slimwire
