// Device side of the element types, shared by the kernels of all families: eight consecutive
// elements per thread as fp32, 16-byte accesses where the address allows, element by element at
// ragged ends and misaligned buffers. Conversions equal codecs/simd/lanes_scalar.h to the bit:
// explicit rounding, no contraction (-fmad=false), denormals kept.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "codecs/base/dtype.h"
#include "codecs/numeric.h"

namespace slimwire {
namespace {

constexpr int kPerThread = 8;

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

// A finite x moved into [-most, most], given as fp32 bits.
__device__ __forceinline__ float saturated(float x, uint32_t most) {
    const uint32_t magnitude = magnitude_of(x);
    const bool outside = magnitude > most && magnitude < kInfinityBits;
    return outside ? __uint_as_float((__float_as_uint(x) & ~kMagnitudeMask) | most) : x;
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

// Keeps decoded values within the user's type, whose largest has the fp32 bits `most`.
__device__ __forceinline__ void keep_within(uint32_t most, Eight& x) {
    if (most < kMaxFloat32Bits) {
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            x.v[k] = saturated(x.v[k], most);
        }
    }
}
// The same of one block, whose values are at most `reach` times its scale: seldom more than a look.
__device__ __forceinline__ void keep_within(uint32_t most, float scale, float reach, Eight& x) {
    if (fabsf(scale) * reach > __uint_as_float(most)) {
        keep_within(most, x);
    }
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
    // The value that a stored x reads back as.
    __device__ static __forceinline__ float round(float x) {
        return Format::to_float(Format::from_float(x));
    }
    __device__ static __forceinline__ void get_eight(const uint8_t* from, Eight& x) {
        const uint4 words = *reinterpret_cast<const uint4*>(from);
        const uint32_t w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int i = 0; i < kPerThread; ++i) {
            x.v[i] = Format::to_float(static_cast<uint16_t>(w[i / 2] >> (16 * (i % 2))));
        }
    }
    __device__ static __forceinline__ void put_eight(uint8_t* to, const Eight& x) {
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            w[i] = Format::from_float(x.v[2 * i]) |
                   static_cast<uint32_t>(Format::from_float(x.v[2 * i + 1])) << 16;
        }
        *reinterpret_cast<uint4*>(to) = make_uint4(w[0], w[1], w[2], w[3]);
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

// Elements i, ..., i + 7 of a buffer of `count`; zero past its end. i is a multiple of eight.
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
__device__ __forceinline__ void store_eight(uint8_t* buffer,
                                            int64_t i,
                                            int64_t count,
                                            const Eight& x) {
    if (i + kPerThread <= count && is_aligned16(buffer)) {
        Element::put_eight(buffer + i * Element::kBytes, x);
        return;
    }
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
        if (i + k < count) {
            Element::put(buffer + (i + k) * Element::kBytes, x.v[k]);
        }
    }
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

// output = value, or output + value, rounded once, NaN canonical.
template <class Element>
__device__ __forceinline__ void deliver(
    uint8_t* output, int64_t i, int64_t count, bool accumulate, Eight& x) {
    if (accumulate) {
        Eight old;
        load_eight<Element>(output, i, count, old);
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            x.v[k] = __fadd_rn(old.v[k], x.v[k]);
        }
    }
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
        x.v[k] = canonical(x.v[k]);
    }
    store_eight<Element>(output, i, count, x);
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
