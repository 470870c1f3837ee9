// What the kernels of the block integers are made of: scales, codes, spikes and rotations as one
// thread with eight neighbours sees them, and what a warp does together. Byte for byte the steps of
// codecs/host/block_int_tile.h, block_int_spikes.h and rotation.h. Rules: FORMAT.md.
#pragma once

#include "codecs/block_int_shape.h"
#include "codecs/cuda/code_stream.cuh"
#include "codecs/cuda/elements.cuh"
#include "codecs/cuda/random.cuh"
#include "codecs/cuda/work.cuh"

namespace slimwire {
namespace {

// What a kernel was compiled for; kAll looks at the arguments.
enum class Extras { kNone, kRotation, kAll };

// Evaluated here because device code may not call constant expressions of host functions.
template <int kBits>
struct Limits {
    static constexpr float kLargestCode = largest_code(kBits);
    static constexpr int kLargest = largest_code(kBits);
    static constexpr uint32_t kMaxScaleBits = max_scale_bits(kBits);
};

__device__ __forceinline__ void put_scale(uint8_t* scales, int64_t b, uint32_t bits, int bytes) {
    if (bytes == 4) {
        reinterpret_cast<uint32_t*>(scales)[b] = bits;
    } else {
        reinterpret_cast<uint16_t*>(scales)[b] = static_cast<uint16_t>(bits >> 16);
    }
}
__device__ __forceinline__ uint32_t get_scale(const uint8_t* scales, int64_t b, int bytes) {
    return bytes == 4 ? reinterpret_cast<const uint32_t*>(scales)[b]
                      : static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(scales)[b]) << 16;
}

// fp32 bits of the scale for a block of this largest magnitude, neither zero nor non-finite.
template <int kBits>
__device__ __forceinline__ uint32_t choose_scale(uint32_t magnitude, int scale_bytes) {
    uint32_t bits =
        __float_as_uint(__fdiv_rn(__uint_as_float(magnitude), Limits<kBits>::kLargestCode));
    if (scale_bytes == 2) {
        bits = (bits + 0xFFFF) & 0xFFFF0000u;
    }
    bits = min(bits, Limits<kBits>::kMaxScaleBits);
    return max(bits, kMinScaleBits);
}

// A code as the float kRoundingMagic + code: nearest, or stochastic by a byte.
__device__ __forceinline__ float quantise(float y, float inverse) {
    return __fmaf_rn(y, inverse, kRoundingMagic);
}
template <int kBits>
__device__ __forceinline__ float quantise_stochastic(float y, float inverse, uint32_t byte) {
    const uint32_t fixed =
        __float_as_uint(__fmaf_rn(y, inverse, kStochasticMagic)) - kStochasticMagicBits;
    int code = static_cast<int>(fixed + byte) >> 8;
    code = code < Limits<kBits>::kLargest ? code : Limits<kBits>::kLargest;
    code = code > -Limits<kBits>::kLargest ? code : -Limits<kBits>::kLargest;
    return __uint_as_float(kRoundingMagicBits + static_cast<uint32_t>(code));
}

// code * (scale * factor) of eight codes; NaN under a non-finite scale.
template <int kBits>
__device__ __forceinline__ void get_values(const uint8_t* from,
                                           uint32_t scale_bits,
                                           float factor,
                                           Eight& x) {
    uint32_t w[2];
    get_code_words<kBits>(from, w);
    const bool poison = (scale_bits & kMagnitudeMask) >= kInfinityBits;
    const float scale = __fmul_rn(__uint_as_float(scale_bits), factor);
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
        const uint32_t up = w[k / 4] << (32 - kBits - kBits * (k % 4));
        const float code = static_cast<float>(static_cast<int32_t>(up) >> (32 - kBits));
        x.v[k] = poison ? __uint_as_float(kNanFloat32) : __fmul_rn(code, scale);
    }
}

// --- Spikes

// Unsigned order of the values; both zeros are one.
__device__ __forceinline__ uint32_t order_of(float x) {
    const uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f));
    return bits ^ ((bits >> 31) != 0 ? ~0u : ~kMagnitudeMask);
}
__device__ __forceinline__ float value_of_order(uint32_t order) {
    return __uint_as_float(order ^ ((order >> 31) != 0 ? ~kMagnitudeMask : ~0u));
}

// What a value of the spikes' type reads back as; finite ones stay finite.
__device__ __forceinline__ float stored_spike(float x, DType type) {
    if (type == DType::kFloat32) {
        return x;
    }
    const uint32_t most = type == DType::kFloat16 ? kMaxFloat16Bits : kMaxBfloat16Bits;
    const uint32_t sign = __float_as_uint(x) & ~kMagnitudeMask;
    const float near = __uint_as_float(sign | min(magnitude_of(x), most));
    return type == DType::kFloat16 ? Float16::round(near) : Bfloat16::round(near);
}
// The planes are aligned to two bytes only.
__device__ __forceinline__ void put_spike(uint8_t* spikes, int64_t at, float stored, DType type) {
    auto* half = reinterpret_cast<uint16_t*>(spikes);
    if (type == DType::kFloat32) {
        half[2 * at] = static_cast<uint16_t>(__float_as_uint(stored));
        half[2 * at + 1] = static_cast<uint16_t>(__float_as_uint(stored) >> 16);
    } else if (type == DType::kFloat16) {
        Float16::put(spikes + 2 * at, stored);
    } else {
        Bfloat16::put(spikes + 2 * at, stored);
    }
}
__device__ __forceinline__ float get_spike(const uint8_t* spikes, int64_t at, DType type) {
    const auto* half = reinterpret_cast<const uint16_t*>(spikes);
    if (type == DType::kFloat32) {
        return __uint_as_float(half[2 * at] | static_cast<uint32_t>(half[2 * at + 1]) << 16);
    }
    return type == DType::kFloat16 ? Float16::get(spikes + 2 * at) : Bfloat16::get(spikes + 2 * at);
}
__device__ __forceinline__ void put_place(uint8_t* places, int64_t at, uint32_t place, int bytes) {
    if (bytes == 1) {
        places[at] = static_cast<uint8_t>(place);
    } else {
        reinterpret_cast<uint16_t*>(places)[at] = static_cast<uint16_t>(place);
    }
}
__device__ __forceinline__ uint32_t get_place(const uint8_t* places, int64_t at, int bytes) {
    return bytes == 1 ? places[at] : reinterpret_cast<const uint16_t*>(places)[at];
}

// Eight decoded values from element i of an encoding on, with their block's spikes in place; scales
// and spikes are multiplied by `factor`. Zeros from `layout.padded` on.
template <int kBits, Extras kExtras>
__device__ __forceinline__ void decode_eight(const uint8_t* encoding,
                                             const BlockIntShape& shape,
                                             const BlockIntLayout& layout,
                                             int64_t i,
                                             float factor,
                                             Eight& x) {
    if (i >= layout.padded) {
        x = {};
        return;
    }
    const int64_t b = i >> shape.log2_block;
    const uint32_t scale = get_scale(encoding + layout.scales, b, shape.scale_bytes);
    get_values<kBits>(encoding + i / 8 * kBits, scale, factor, x);
    if constexpr (kExtras == Extras::kAll) {
        if (shape.spike_bytes == 0 || (scale & kMagnitudeMask) >= kInfinityBits) {
            return;
        }
        const uint32_t first = static_cast<uint32_t>(i) & static_cast<uint32_t>(shape.block - 1);
#pragma unroll 1
        for (int64_t at = 2 * b; at < 2 * b + 2; ++at) {
            const uint32_t place = get_place(encoding + layout.indices, at, shape.index_bytes);
            if (place - first < kPerThread) {
                const float value =
                    __fmul_rn(factor, get_spike(encoding + layout.spikes, at, shape.spike_type));
#pragma unroll
                for (int k = 0; k < kPerThread; ++k) {
                    x.v[k] = place == first + static_cast<uint32_t>(k) ? value : x.v[k];
                }
            }
        }
    }
}

// --- Rotation, of kRounds * 256 elements by a warp: element 256 g + 8 lane + k is x[g].v[k].

template <int kRounds>
struct Rotation {
    int rotate = 0;
    uint32_t signs = 0;  // bit 8 g + k: that element is negated; g counts to four

    __device__ static __forceinline__ Rotation of(const BlockIntShape& shape) {
        static_assert(kRounds <= 4);
        Rotation rotation;
        rotation.rotate = shape.rotate;
        const unsigned lane = threadIdx.x % kWarpThreads;
#pragma unroll 1
        for (unsigned g = 0; g < kRounds && shape.rotate != 0; ++g) {
            const unsigned at = (256 * g + kPerThread * lane) % static_cast<unsigned>(shape.rotate);
            uint32_t x[4] = {at / 128, 0, 0, 0};
            threefry(x,
                     RandomWords{{shape.seed, 0, 0, static_cast<uint32_t>(RandomPurpose::kSigns)}});
            const unsigned word = at % 128 / 32;
            const uint32_t low = word % 2 == 0 ? x[0] : x[1];
            const uint32_t high = word % 2 == 0 ? x[2] : x[3];
            rotation.signs |= ((word < 2 ? low : high) >> (at % 32) & 0xFF) << (8 * g);
        }
        return rotation;
    }

    __device__ __forceinline__ void flip(Eight (&x)[kRounds]) const {
#pragma unroll
        for (int g = 0; g < kRounds; ++g) {
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                const uint32_t sign = (signs >> (8 * g + k)) << 31;
                x[g].v[k] = __uint_as_float(__float_as_uint(x[g].v[k]) ^ sign);
            }
        }
    }

    // H of every group; strides in the order 1, 2, 4, ...
    __device__ __forceinline__ void hadamard(Eight (&x)[kRounds]) const {
#pragma unroll
        for (int g = 0; g < kRounds; ++g) {
#pragma unroll
            for (int stride = 1; stride < kPerThread; stride *= 2) {
#pragma unroll
                for (int k = 0; k < kPerThread; ++k) {
                    if ((k & stride) == 0) {
                        butterfly(x[g].v[k], x[g].v[k + stride]);
                    }
                }
            }
        }
        const int lanes = rotate < 256 ? rotate / kPerThread : kWarpThreads;
        const int lane = static_cast<int>(threadIdx.x % kWarpThreads);
#pragma unroll 1
        for (int stride = 1; stride < lanes; stride *= 2) {
            const bool upper = (lane & stride) != 0;
#pragma unroll
            for (int g = 0; g < kRounds; ++g) {
#pragma unroll
                for (int k = 0; k < kPerThread; ++k) {
                    const float mine = x[g].v[k];
                    const float other = __shfl_xor_sync(0xFFFFFFFFu, mine, stride);
                    x[g].v[k] = upper ? __fsub_rn(other, mine) : __fadd_rn(mine, other);
                }
            }
        }
#pragma unroll
        for (int stride = 1; stride < kRounds; stride *= 2) {
            if (256 * stride < rotate) {
#pragma unroll
                for (int g = 0; g < kRounds; ++g) {
#pragma unroll
                    for (int k = 0; k < kPerThread; ++k) {
                        if ((g & stride) == 0) {
                            butterfly(x[g].v[k], x[g + stride].v[k]);
                        }
                    }
                }
            }
        }
    }

    __device__ static __forceinline__ void butterfly(float& a, float& b) {
        const float sum = __fadd_rn(a, b);
        b = __fsub_rn(a, b);
        a = sum;
    }

    // A whole warp calls these.
    __device__ __forceinline__ void forward(Eight (&x)[kRounds]) const {
        flip(x);
        hadamard(x);
    }
    __device__ __forceinline__ void backward(Eight (&x)[kRounds]) const {
        hadamard(x);
        flip(x);
    }
};

}  // namespace
}  // namespace slimwire
