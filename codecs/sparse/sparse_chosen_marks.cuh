// Reading elements of which few matter: the eight of a lane against a magnitude, as bits. 16-bit
// elements that are encoded as they are get compared two at a time without becoming fp32.
#pragma once

#include "codecs/sparse/sparse.cuh"

namespace slimwire {
namespace {

// The least 16-bit magnitude whose fp32 value is at least the magnitude `least`, which is at most
// that of infinity.
template <class Element>
__device__ __forceinline__ uint32_t least_of(uint32_t least) {
    if constexpr (Element::kMaxBits == kMaxBfloat16Bits) {
        return (least + 0xFFFF) >> 16;
    }
    uint32_t low = 0;
    uint32_t high = 0x7FFF;
    while (low < high) {
        const auto middle = static_cast<uint16_t>((low + high) / 2);
        if (order_of(Element::get(reinterpret_cast<const uint8_t*>(&middle))) >= least) {
            high = middle;
        } else {
            low = middle + 1u;
        }
    }
    return low;
}

constexpr uint32_t kCompareWide = 0xFFFF;  // in place of a 16-bit magnitude: compare fp32

// A byte that says which of eight 16-bit elements are at least `least`. Each half word's sum stays
// within it: 0x7FFF + 0x8000 at most.
__device__ __forceinline__ uint32_t raw_mask(const uint4& words, uint32_t least) {
    constexpr uint32_t kMagnitudes = 0x7FFF7FFF;
    constexpr uint32_t kTops = 0x80008000;
    const uint32_t add = (0x8000 - least) * 0x10001;
    uint32_t bits = (((words.x & kMagnitudes) + add) & kTops) >> 15;
    bits |= (((words.y & kMagnitudes) + add) & kTops) >> 13;
    bits |= (((words.z & kMagnitudes) + add) & kTops) >> 11;
    bits |= (((words.w & kMagnitudes) + add) & kTops) >> 9;
    return (bits | bits >> 15) & 0xFF;
}

// Starts a read into the second-level cache.
__device__ __forceinline__ void prefetch(const void* at) {
#ifdef SLIMWIRE_CUDA_ON_HOST
    (void)at;
#else
    asm volatile("prefetch.L2 [%0];" ::"l"(at));
#endif
}

// Calls body(round, mask, get) for the eights of a chunk at first, first + step, ... of `rounds`
// rounds (a multiple of four), by every lane: bit k of mask is set where element k of the eight is
// there and its magnitude is not below `least`; get() is the eight. `least16`: least_of(least), or
// kCompareWide.
template <class Source, class Body>
__device__ __forceinline__ void read_marked(const Source source,
                                            uint32_t least,
                                            uint32_t least16,
                                            int64_t first,
                                            int step,
                                            int rounds,
                                            Body body) {
    using Element = typename Source::ElementType;
    if constexpr (Element::kBytes == 2 && Source::kContiguous) {
        const bool whole = first + int64_t{step} * (rounds - 1) + kPerThread <= source.count;
        if (least16 != kCompareWide && __all_sync(kAllLanes, whole)) {
            constexpr int kAtOnce = 4;
            const uint8_t* from = source.input + first * 2;
#pragma unroll 1
            for (int round = 0; round < rounds; round += kAtOnce) {
                uint4 words[kAtOnce];
#pragma unroll
                for (int j = 0; j < kAtOnce; ++j) {
                    words[j] = *reinterpret_cast<const uint4*>(from);
                    from += int64_t{step} * 2;
                }
#pragma unroll
                for (int j = 0; j < kAtOnce; ++j) {
                    body(round + j, raw_mask(words[j], least16), [&] {
                        Eight p;
                        Element::get_eight(reinterpret_cast<const uint8_t*>(&words[j]), p);
                        return p;
                    });
                }
            }
            return;
        }
    }
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
        const int64_t i = first + int64_t{step} * round;
        Eight p;
        source.eight(i, p);
        const uint32_t mask = byte_of(p, i, source.count, [&](uint32_t x) { return x >= least; });
        body(round, mask, [&] { return p; });
    }
}

// least_of() where the chunk may be compared in 16 bits.
template <class Source>
__device__ __forceinline__ uint32_t raw_limit(const Source& source, bool as_is, uint32_t least) {
    using Element = typename Source::ElementType;
    if constexpr (Element::kBytes == 2 && Source::kContiguous) {
        if (as_is && least <= kInfinityBits && is_aligned16(source.input)) {
            return least_of<Element>(least);
        }
    }
    return kCompareWide;
}

}  // namespace
}  // namespace slimwire
