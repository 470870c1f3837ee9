// What the kernels of all sparsifiers share: the order of selection, values, and the shape of the
// work. Byte for byte the bodies of codecs/sparse/host/sparse_*.h. A warp takes 256 consecutive
// elements at a time, eight a lane, so that order within a warp is order of positions.
#pragma once

#include "codecs/gpu/elements.cuh"
#include "codecs/gpu/work.cuh"
#include "codecs/sparse/launchers.h"
#include "codecs/sparse/sparse_plan.h"
#include "codecs/threefry.h"

namespace slimwire {
namespace {

constexpr int kBroadBlocks = 1;  // for kernels that take the registers they need
constexpr unsigned kAllLanes = 0xFFFFFFFFu;
constexpr int64_t kRoundElems = kWarpThreads * kPerThread;
constexpr int64_t kOneLaunchBytes = 256 << 10;  // of input, encoded by one launch

__device__ __forceinline__ int lane_number() {
    return static_cast<int>(threadIdx.x % kWarpThreads);
}

// Magnitude bits, every NaN alike.
__device__ __forceinline__ uint32_t order_of(float p) {
    return min(magnitude_of(p), kNanFloat32);
}
__device__ __forceinline__ bool is_finite(float p) {
    return magnitude_of(p) < kInfinityBits;
}

template <class T>
__device__ __forceinline__ T sum_of_warp(T value) {
#pragma unroll
    for (int by = kWarpThreads / 2; by > 0; by /= 2) {
        value += __shfl_xor_sync(kAllLanes, value, by);
    }
    return value;
}
// The sum of the lanes before this one.
__device__ __forceinline__ uint32_t sum_before(uint32_t value) {
    uint32_t sum = value;
#pragma unroll
    for (int by = 1; by < kWarpThreads; by *= 2) {
        const uint32_t other = __shfl_up_sync(kAllLanes, sum, by);
        sum += lane_number() >= by ? other : 0;
    }
    return sum - value;
}

// The eight elements' bits that stand in `mask`, as a byte.
template <class Test>
__device__ __forceinline__ uint32_t byte_of(const Eight& p, int64_t i, int64_t count, Test test) {
    uint32_t byte = 0;
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
        byte |= static_cast<uint32_t>(i + k < count && test(order_of(p.v[k]))) << k;
    }
    return byte;
}

// --- Values

// Puts p as native value `number`; what is decoded from it comes back.
template <class Element>
__device__ __forceinline__ float put_native(uint8_t* values, int64_t number, float p) {
    uint8_t* to = values + number * Element::kBytes;
    Element::put(to, canonical(saturated(p, Element::kMaxBits)));
    return Element::get(to);
}

template <int kBits>
__device__ __forceinline__ float code_value(const SparsePlan& plan,
                                            const uint8_t* input,
                                            int64_t number) {
    const uint16_t high =
        reinterpret_cast<const uint16_t*>(input + plan.scales)[number / kSparseBlock];
    const uint32_t bits = static_cast<uint32_t>(high) << 16;
    if ((bits & kMagnitudeMask) >= kInfinityBits) {
        return __uint_as_float(kNanFloat32);
    }
    const uint32_t byte = input[plan.values + number * kBits / 8];
    const uint32_t up = byte << (32 - kBits - (kBits == 4 ? static_cast<int>(number & 1) * 4 : 0));
    const float value = __fmul_rn(static_cast<float>(static_cast<int32_t>(up) >> (32 - kBits)),
                                  __uint_as_float(bits));
    return saturated(value, max_bits(plan.dtype));
}

// fp32 value `number` of an encoding whose native type is `Element`.
template <class Element>
__device__ __forceinline__ float get_value(const SparsePlan& plan,
                                           const uint8_t* input,
                                           int64_t number) {
    if (plan.format == ValueFormat::kInt8) {
        return code_value<8>(plan, input, number);
    }
    if (plan.format == ValueFormat::kInt4) {
        return code_value<4>(plan, input, number);
    }
    return Element::get(input + plan.values + number * Element::kBytes);
}
__device__ __forceinline__ float get_value_of(const SparsePlan& plan,
                                              const uint8_t* input,
                                              int64_t number) {
    switch (plan.dtype) {
        case DType::kFloat16:
            return get_value<Float16>(plan, input, number);
        case DType::kBfloat16:
            return get_value<Bfloat16>(plan, input, number);
        default:
            return get_value<Float32>(plan, input, number);
    }
}

// A block of 64 values as integers by one warp, two neighbours a lane. p become what is left of
// them; false, and p as they were, where the block is poison.
__device__ __forceinline__ bool put_block(const SparsePlan& plan,
                                          uint8_t* output,
                                          int64_t block,
                                          float (&p)[2]) {
    uint32_t magnitude = max(magnitude_of(p[0]), magnitude_of(p[1]));
#pragma unroll
    for (int by = kWarpThreads / 2; by > 0; by /= 2) {
        magnitude = max(magnitude, __shfl_xor_sync(kAllLanes, magnitude, by));
    }
    const bool wide = plan.format == ValueFormat::kInt8;
    const bool poison = magnitude >= kInfinityBits;
    uint32_t scale = 0;
    float inverse = 0;
    if (magnitude != 0 && !poison) {
        scale = __float_as_uint(__fdiv_rn(__uint_as_float(magnitude), wide ? 127.0f : 7.0f));
        scale = (scale + 0xFFFF) & 0xFFFF0000u;
        scale = min(scale, wide ? 0x7C010000u : 0x7E120000u);
        scale = max(scale, kMinScaleBits);
        inverse = __fdiv_rn(1.0f, __uint_as_float(scale));
    }
    uint32_t code[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        const float rounded = __fmaf_rn(p[k], inverse, kRoundingMagic);
        code[k] = poison ? 0 : __float_as_uint(rounded);
        if (!poison) {
            const float value =
                __fmul_rn(__fsub_rn(rounded, kRoundingMagic), __uint_as_float(scale));
            p[k] = __fsub_rn(p[k], saturated(value, max_bits(plan.dtype)));
        }
    }
    const int64_t pair = block * (kSparseBlock / 2) + lane_number();
    if (wide) {
        reinterpret_cast<uint16_t*>(output + plan.values)[pair] =
            static_cast<uint16_t>((code[0] & 0xFF) | (code[1] & 0xFF) << 8);
    } else {
        output[plan.values + pair] = static_cast<uint8_t>((code[0] & 15) | (code[1] & 15) << 4);
    }
    if (lane_number() == 0) {
        reinterpret_cast<uint16_t*>(output + plan.scales)[block] =
            static_cast<uint16_t>((poison ? kNanScaleBits : scale) >> 16);
    }
    return !poison;
}
static_assert(max_scale_bits(8) == 0x7C010000u && max_scale_bits(4) == 0x7E120000u);

// --- The user's side of a decoder

// What a decoder does with a value: output[i] = scale * x, or output[i] + scale * x within the
// limit of the sum.
template <class Element>
__device__ __forceinline__ void place(uint8_t* output,
                                      int64_t i,
                                      const DecodeArgs& decode,
                                      float x) {
    uint8_t* to = output + i * Element::kBytes;
    const float scale = decode.scale;
    if (!decode.accumulate) {
        x = __fmul_rn(scale, x);
    } else if (decode.sum_limit.most == kNoSumLimit) {
        x = __fmaf_rn(scale, x, Element::get(to));
    } else {
        x = limited_sum(scale, x, Element::get(to), decode.sum_limit);
    }
    Element::put(to, canonical(x));
}

// `value` to elements [first, first + count) by `workers` threads. The buffer of the whole
// operation is aligned to its element only.
template <class Element>
__device__ __forceinline__ void fill_elements(
    uint8_t* output, int64_t first, int64_t count, float value, int worker, int workers) {
    uint8_t* begin = output + first * Element::kBytes;
    const int64_t bytes = count * Element::kBytes;
    const auto ragged = static_cast<int64_t>((0 - reinterpret_cast<uintptr_t>(begin)) & 15);
    const int64_t head = ragged < bytes ? ragged : bytes;
    constexpr int64_t kEightBytes = kPerThread * Element::kBytes;
    const int64_t eights = (bytes - head) / kEightBytes;
    const float x = canonical(value);
    for (int64_t i = worker; i < head / Element::kBytes; i += workers) {
        Element::put(begin + i * Element::kBytes, x);
    }
    for (int64_t i = worker; i < eights; i += workers) {
        Element::put_eight(begin + head + i * kEightBytes, {{x, x, x, x, x, x, x, x}});
    }
    const int64_t done = (head + eights * kEightBytes) / Element::kBytes;
    for (int64_t i = done + worker; i < count; i += workers) {
        Element::put(begin + i * Element::kBytes, x);
    }
}
template <class Element>
__device__ __forceinline__ void zero_elements(
    uint8_t* output, int64_t first, int64_t count, int worker, int workers) {
    fill_elements<Element>(output, first, count, 0.0f, worker, workers);
}

__device__ __forceinline__ void report(uint32_t* status, bool good) {
    if (!good && status != nullptr) {
        atomicOr(status, static_cast<uint32_t>(kStatusCorrupt));
    }
}

// --- Lists of positions, read by one warp

// Bits [0, elems) for values [start, end): calls take(position, number of the value).
template <class Take>
__device__ __forceinline__ bool read_bits(
    const uint8_t* bits, int64_t elems, int64_t start, int64_t end, Take take) {
    const int64_t bytes = (elems + 7) / 8;
    bool good = true;
    for (int64_t first = 0; first < bytes; first += kWarpThreads) {
        const int64_t byte = first + lane_number();
        const uint32_t mask = byte < bytes ? bits[byte] : 0;
        int64_t number = start + sum_before(static_cast<uint32_t>(__popc(mask)));
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            if ((mask >> k & 1) != 0) {
                const int64_t at = byte * 8 + k;
                if (number < end && at < elems) {
                    take(at, number);
                } else {
                    good = false;
                }
                ++number;
            }
        }
        start = __shfl_sync(kAllLanes, number, kWarpThreads - 1);
    }
    return good && start == end;
}

// Ascending positions of kBytes bytes, values [start, end), by one warp.
template <int kBytes, class Take>
__device__ __forceinline__ bool read_list(
    const uint8_t* indices, int64_t elems, int64_t start, int64_t end, Take take) {
    uint32_t last = 0;  // 1 above the last position
    for (int64_t first = start; first < end; first += kWarpThreads) {
        const int64_t i = first + lane_number();
        uint32_t at = 0;
        if (i < end) {
            at = kBytes == 1 ? indices[i] : reinterpret_cast<const uint16_t*>(indices)[i];
        }
        uint32_t before = __shfl_up_sync(kAllLanes, at, 1) + 1;
        before = lane_number() == 0 ? last : before;
        const unsigned bad = __ballot_sync(kAllLanes, i < end && (at < before || at >= elems));
        if (i < end && (bad == 0 || lane_number() < __ffs(static_cast<int>(bad)) - 1)) {
            take(int64_t{at}, i);
        }
        if (bad != 0) {
            return false;
        }
        last = __shfl_sync(kAllLanes, at, kWarpThreads - 1) + 1;
    }
    return true;
}

// --- Launches

// The chunks of an operation, with the plans of a full one and of the last.
struct SparseWork {
    int64_t chunks;
    int64_t chunk_elems;
    SparsePlan full;
    SparsePlan last;

    template <class Args>
    static SparseWork of(SparseKind kind, const Args& args, int64_t chunk_elems) {
        if (chunk_elems > args.count) {
            chunk_elems = args.count;
        }
        const int64_t chunks = (args.count + chunk_elems - 1) / chunk_elems;
        return {
            chunks, chunk_elems, sparse_plan(kind, args.params, args.dtype, chunk_elems),
            sparse_plan(kind, args.params, args.dtype, args.count - (chunks - 1) * chunk_elems)};
    }
    __device__ __forceinline__ const SparsePlan& plan(int64_t chunk) const {
        return chunk + 1 == chunks ? last : full;
    }
};

// Zeros to the bytes [from, to) of an encoding, by `workers` threads.
__device__ __forceinline__ void zero_bytes(
    uint8_t* output, int64_t from, int64_t to, int64_t worker, int64_t workers) {
    for (int64_t i = from + worker; i < to; i += workers) {
        output[i] = 0;
    }
}

// The choice of randomk, and what it chooses of a stratum.
struct Choice {
    uint32_t step;
    uint32_t tensor;
    uint32_t chunk;
};
__device__ __forceinline__ Choice choice_of(const uint8_t* input) {
    const auto* words = reinterpret_cast<const uint32_t*>(input);
    return {words[0], words[1], words[2]};
}

struct Stratum {
    int64_t first;
    int64_t end;
    int64_t chosen;
};
__device__ __forceinline__ Stratum stratum_of(const SparsePlan& plan,
                                              const Choice& choice,
                                              int64_t j) {
    const auto group = static_cast<uint64_t>(j) / 4;
    uint32_t drawn[4] = {static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32),
                         choice.chunk, choice.step};
    threefry(drawn, {{plan.seed, choice.tensor, 0, static_cast<uint32_t>(RandomPurpose::kChoice)}});
    const int64_t runs = (plan.count + kSparseRun - 1) / kSparseRun;
    const int64_t low = j * runs / plan.groups;
    const int64_t high = (j + 1) * runs / plan.groups;
    const uint32_t which = static_cast<uint32_t>(j & 3);
    const uint32_t word = which == 0   ? drawn[0]
                          : which == 1 ? drawn[1]
                          : which == 2 ? drawn[2]
                                       : drawn[3];
    const uint64_t offset = uint64_t{word} * static_cast<uint64_t>(high - low) >> 32;
    const int64_t end = high * kSparseRun;
    return {low * kSparseRun, end < plan.count ? end : plan.count,
            (low + static_cast<int64_t>(offset)) * kSparseRun};
}

}  // namespace
}  // namespace slimwire
