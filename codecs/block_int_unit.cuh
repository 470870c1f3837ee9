// The unit of work of the block integers' encoders: a warp takes kRounds spans of 256 elements, or
// one block where blocks are larger; eight consecutive elements of each span per thread. What
// blocks share is found by shuffles among their lanes and then among a thread's spans. Blocks above
// kRounds * 256 elements are gone over several times, after the first from cache.
#pragma once

#include "codecs/block_int_parts.cuh"

namespace slimwire {
namespace {

__host__ __device__ inline int64_t unit_of(const CodecParams& params, int rounds) {
    const int64_t spans = rounds * kWarpElems;
    return params.block > spans ? params.block : spans;
}

struct Larger {
    template <class T>
    __device__ __forceinline__ T operator()(T a, T b) const {
        return a > b ? a : b;
    }
};
struct Smaller {
    template <class T>
    __device__ __forceinline__ T operator()(T a, T b) const {
        return a < b ? a : b;
    }
};

// What `pick` takes of all x that belong to one block, for every span of the thread.
template <int kRounds, class T, class Pick>
__device__ __forceinline__ void share(T (&x)[kRounds], int block, Pick pick) {
    const int lanes = block < kWarpElems ? block / kPerThread : kWarpThreads;
    for (int by = lanes / 2; by > 0; by /= 2) {
#pragma unroll
        for (int g = 0; g < kRounds; ++g) {
            x[g] = pick(x[g], __shfl_xor_sync(0xFFFFFFFFu, x[g], by));
        }
    }
#pragma unroll
    for (int by = 1; by < kRounds; by *= 2) {
        if (by * kWarpElems < block) {
#pragma unroll
            for (int g = 0; g < kRounds; ++g) {
                if ((g & by) == 0) {
                    x[g] = x[g + by] = pick(x[g], x[g + by]);
                }
            }
        }
    }
}

// Where an encoder's operation writes, and what it needs to know.
template <int kRounds>
struct Encoder {
    BlockIntShape shape;
    Rotation<kRounds> rotation;
    DeviceRandom random;
};

// A block's spikes: order and place of the smallest, order and complement of the place of the
// largest, so that the first of equals wins.
template <int kRounds>
struct DeviceSpikes {
    unsigned long long low[kRounds];
    unsigned long long high[kRounds];

    __device__ __forceinline__ uint32_t place(int g, int which) const {
        return which == 0 ? static_cast<uint32_t>(low[g]) : ~static_cast<uint32_t>(high[g]);
    }
    __device__ __forceinline__ float value(int g, int which) const {
        return value_of_order(static_cast<uint32_t>((which == 0 ? low[g] : high[g]) >> 32));
    }
    __device__ __forceinline__ bool has(int g, uint32_t at) const {
        return at == place(g, 0) || at == place(g, 1);
    }
};

// Encodes the unit that starts at element `begin` of a chunk of `count`; one whole warp calls it.
// source.load(i, p, y) gives what a thread's spans hold from element i on: p, and what is
// quantised.
template <class Variant, class Source>
__device__ __forceinline__ void encode_unit(const Encoder<Variant::kRounds>& encoder,
                                            const Source& source,
                                            uint32_t chunk,
                                            int64_t begin,
                                            int64_t count,
                                            uint8_t* output,
                                            float* residual) {
    const BlockIntShape& shape = encoder.shape;
    const BlockIntLayout layout = block_int_layout(shape, count);
    constexpr int kBits = Variant::kBits;
    constexpr int kRounds = Variant::kRounds;
    constexpr Extras kExtras = Variant::kExtras;
    constexpr bool kSpikes = kExtras == Extras::kAll;
    const bool stochastic = kExtras == Extras::kNone ? Variant::kStochastic : shape.stochastic;
    const bool spiked = kSpikes && shape.spike_bytes != 0;
    const bool rotated = kExtras == Extras::kRotation || (kSpikes && shape.rotate != 0);
    constexpr int kStep = kRounds * static_cast<int>(kWarpElems);
    const int steps = shape.block > kStep ? shape.block / kStep : 1;
    const int64_t first = begin + int64_t{threadIdx.x % kWarpThreads} * kPerThread;
    const auto in_block = [&](int64_t i) {
        return static_cast<uint32_t>(i) & static_cast<uint32_t>(shape.block - 1);
    };
    Eight p[kRounds];
    Eight y[kRounds];
    uint32_t magnitude[kRounds] = {};
    [[maybe_unused]] DeviceSpikes<kRounds> spikes;
    if constexpr (kSpikes) {
#pragma unroll
        for (int g = 0; g < kRounds; ++g) {
            spikes.low[g] = ~0ull;
            spikes.high[g] = 0;
        }
    }
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        source.load(first + step * kStep, p, y);
#pragma unroll
        for (int g = 0; g < kRounds; ++g) {
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                magnitude[g] = max(magnitude[g], magnitude_of(y[g].v[k]));
                if constexpr (kSpikes) {
                    if (spiked) {
                        const unsigned long long order = order_of(y[g].v[k]);
                        const uint32_t at = in_block(first + step * kStep + g * kWarpElems + k);
                        spikes.low[g] = Smaller()(spikes.low[g], order << 32 | at);
                        spikes.high[g] = Larger()(spikes.high[g], order << 32 | uint32_t{~at});
                    }
                }
            }
        }
    }
    share(magnitude, shape.block, Larger());
    if constexpr (kSpikes) {
        if (spiked) {
            share(spikes.low, shape.block, Smaller());
            share(spikes.high, shape.block, Larger());
            uint32_t others[kRounds] = {};
#pragma unroll 1
            for (int step = 0; step < steps; ++step) {
                if (steps > 1) {
                    source.load(first + step * kStep, p, y);
                }
#pragma unroll
                for (int g = 0; g < kRounds; ++g) {
#pragma unroll
                    for (int k = 0; k < kPerThread; ++k) {
                        if (!spikes.has(g, in_block(first + step * kStep + g * kWarpElems + k))) {
                            others[g] = max(others[g], magnitude_of(y[g].v[k]));
                        }
                    }
                }
            }
            share(others, shape.block, Larger());
#pragma unroll
            for (int g = 0; g < kRounds; ++g) {
                if (magnitude[g] < kInfinityBits) {
                    magnitude[g] = others[g];
                } else {  // smallest and largest of a poisoned block: zeros in its first place
                    spikes.low[g] = 0x80000000ull << 32;
                    spikes.high[g] = 0x80000000ull << 32 | 0xFFFFFFFFull;
                }
            }
        }
    }

#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        const int64_t here = first + step * kStep;
        if (steps > 1) {
            source.load(here, p, y);
        }
        [[maybe_unused]] EightBytes bytes[kRounds] = {};
        if (stochastic) {
#pragma unroll
            for (int g = 0; g < kRounds; g += 2) {
                draw_twice_eight(encoder.random, begin + step * kStep + g * kWarpElems, chunk,
                                 bytes[g], bytes[g + 1]);
            }
        }
#pragma unroll
        for (int g = 0; g < kRounds; ++g) {
            const int64_t i = here + g * kWarpElems;
            const bool poison = magnitude[g] >= kInfinityBits;
            const bool empty = magnitude[g] == 0;
            const uint32_t chosen = choose_scale<kBits>(magnitude[g], shape.scale_bytes);
            const float scale = empty ? 0.0f : __uint_as_float(chosen);
            const float inverse = empty ? 0.0f : __fdiv_rn(1.0f, __uint_as_float(chosen));
            const float unit = rotated ? __fmul_rn(scale, shape.unrotate) : scale;
            uint32_t code[kPerThread];
            Eight left;
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                const uint32_t byte = bytes[g].v[k / 4] >> (8 * (k % 4)) & 0xFF;
                float value = y[g].v[k];
                bool spike = false;
                float exact = 0.0f;
                if constexpr (kSpikes) {
                    if (spiked && !poison) {
                        const uint32_t at = in_block(i + k);
                        spike = spikes.has(g, at);
                        exact = spikes.value(g, at == spikes.place(g, 1) ? 1 : 0);
                        value = spike ? 0.0f : value;
                    }
                }
                const float rounded = stochastic ? quantise_stochastic<kBits>(value, inverse, byte)
                                                 : quantise(value, inverse);
                code[k] = poison ? 0 : __float_as_uint(rounded);
                float decoded = __fmul_rn(__fsub_rn(rounded, kRoundingMagic), unit);
                if constexpr (kSpikes) {
                    if (spike) {
                        const float stored = stored_spike(exact, shape.spike_type);
                        decoded = rotated ? __fmul_rn(shape.unrotate, stored) : stored;
                        value = exact;
                    }
                }
                if constexpr (kExtras != Extras::kNone) {
                    if (rotated) {
                        y[g].v[k] = poison ? __uint_as_float(kNanFloat32) : decoded;
                    }
                }
                left.v[k] = __fsub_rn(value, decoded);
            }
            if (i < layout.padded) {
                put_codes<kBits>(output + i / 8 * kBits, code);
                if (in_block(i) == 0) {
                    const int64_t b = i >> shape.log2_block;
                    put_scale(output + layout.scales, b,
                              poison ? kNanScaleBits : __float_as_uint(scale), shape.scale_bytes);
                    if constexpr (kSpikes) {
#pragma unroll 1
                        for (int which = 0; spiked && which < 2; ++which) {
                            put_spike(output + layout.spikes, 2 * b + which,
                                      stored_spike(spikes.value(g, which), shape.spike_type),
                                      shape.spike_type);
                            put_place(output + layout.indices, 2 * b + which,
                                      spikes.place(g, which), shape.index_bytes);
                        }
                    }
                }
            }
            if (residual != nullptr && !poison && !rotated) {
                store_eight<Float32>(reinterpret_cast<uint8_t*>(residual), i, count, left);
            }
        }
        if constexpr (kExtras != Extras::kNone) {
            if (residual != nullptr && rotated) {
                encoder.rotation.backward(y);
#pragma unroll
                for (int g = 0; g < kRounds; ++g) {
                    const int64_t i = here + g * kWarpElems;
                    uint8_t* kept = reinterpret_cast<uint8_t*>(residual);
                    Eight left;
                    load_eight<Float32>(kept, i, count, left);
#pragma unroll
                    for (int k = 0; k < kPerThread; ++k) {
                        if (magnitude_of(y[g].v[k]) < kInfinityBits) {
                            left.v[k] = __fsub_rn(p[g].v[k], y[g].v[k]);
                        }
                    }
                    store_eight<Float32>(kept, i, count, left);
                }
            }
        }
    }
}

}  // namespace
}  // namespace slimwire
