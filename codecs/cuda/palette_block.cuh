// What the encoder and the decoder of the palette codec have in common: a thread block of 256 has
// one block of 4096 elements, 16 consecutive ones a thread; shared memory, elements, bit planes,
// and where chunks and their parts lie. Included by palette_encode.cuh and palette_decode.cuh.
#pragma once

#include "codecs/cuda/elements.cuh"
#include "codecs/cuda/look_back.cuh"
#include "codecs/palette_format.h"
#include "codecs/palette_work.h"

namespace slimwire {
namespace {

constexpr int kEach = kPaletteBlock / kThreads;  // elements of a thread: 16, a quarter of a group
static_assert(kEach == 16 && kPaletteSamples == kThreads);

__device__ __forceinline__ int64_t padded8(int64_t bytes) {
    return (bytes + 7) / 8 * 8;
}
__device__ __forceinline__ int plane_bytes(int n) {
    return (n + 7) / 8;
}

// Small things that the threads of a block share.
struct PaletteShared {
    int counts[16];
    int sums[kThreads / kWarpThreads];
    int sum;
    int zeros;
    uint32_t groups[2];
    uint16_t marks[kThreads];
    uint8_t palette[16];
    int64_t unit;
    int64_t offset;
    bool last;
};

__device__ __forceinline__ int scan_block(PaletteShared& shared, int value, int* total) {
    return scan_block(shared.sums, value, total);
}

// --- Elements

template <int kBytes>
struct ElementWord;
template <>
struct ElementWord<1> {
    using Type = uint8_t;
};
template <>
struct ElementWord<2> {
    using Type = uint16_t;
};
template <>
struct ElementWord<4> {
    using Type = uint32_t;
};
template <>
struct ElementWord<8> {
    using Type = unsigned long long;
};

template <int kBytes>
__device__ __forceinline__ typename ElementWord<kBytes>::Type load_element(const uint8_t* from,
                                                                           int64_t i) {
    return reinterpret_cast<const typename ElementWord<kBytes>::Type*>(from)[i];
}
template <int kBytes>
__device__ __forceinline__ void store_element(uint8_t* to, int64_t i, uint64_t bits) {
    using Word = typename ElementWord<kBytes>::Type;
    reinterpret_cast<Word*>(to)[i] = static_cast<Word>(bits);
}

// Sign to bit 0, and back.
template <int kBytes>
using WordOf = typename ElementWord<kBytes>::Type;

template <int kBytes>
__device__ __forceinline__ WordOf<kBytes> rotate(WordOf<kBytes> bits, bool rotates) {
    using Word = WordOf<kBytes>;
    return rotates ? static_cast<Word>(bits << 1 | bits >> (8 * kBytes - 1)) : bits;
}
template <int kBytes>
__device__ __forceinline__ WordOf<kBytes> rotate_back(WordOf<kBytes> bits, bool rotates) {
    using Word = WordOf<kBytes>;
    return rotates ? static_cast<Word>(bits >> 1 | bits << (8 * kBytes - 1)) : bits;
}

// The 16 elements from `begin` of `len`, rotated; zero past the end.
template <int kBytes>
__device__ __forceinline__ void load_elements(
    const uint8_t* input, int begin, int len, bool rotates, WordOf<kBytes>* value) {
    using Word = WordOf<kBytes>;
    if constexpr (kBytes < 8) {
        if (begin + kEach <= len && is_aligned16(input)) {
            uint32_t words[4 * kBytes];
            const auto* from = reinterpret_cast<const uint4*>(input + begin * kBytes);
#pragma unroll
            for (int i = 0; i < kBytes; ++i) {
                const uint4 quad = from[i];
                words[4 * i] = quad.x;
                words[4 * i + 1] = quad.y;
                words[4 * i + 2] = quad.z;
                words[4 * i + 3] = quad.w;
            }
            constexpr int kPerWord = 4 / kBytes;
#pragma unroll
            for (int k = 0; k < kEach; ++k) {
                const uint32_t word = words[k / kPerWord] >> (8 * kBytes * (k % kPerWord));
                value[k] = rotate<kBytes>(static_cast<Word>(word), rotates);
            }
            return;
        }
    }
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
        value[k] = begin + k < len ? rotate<kBytes>(load_element<kBytes>(input, begin + k), rotates)
                                   : Word{0};
    }
}

// --- Words: bit planes of 64 codes a group

// Where this thread's 16 bits of plane `bit` of `bits` stand.
__device__ __forceinline__ int word_at(int bit, int bits, int n) {
    const int t = static_cast<int>(threadIdx.x);
    const int left = n - t / 4 * 64;
    return t / 4 * 8 * bits + bit * (left >= 64 ? 8 : plane_bytes(left)) + t % 4 * 2;
}
__device__ __forceinline__ void put_word(uint8_t* words, int bit, int bits, int n, uint32_t x) {
    const int left = n - static_cast<int>(threadIdx.x) * kEach;
    if (left > 0) {
        uint8_t* const to = words + word_at(bit, bits, n);
        to[0] = static_cast<uint8_t>(x);
        if (left > 8) {
            to[1] = static_cast<uint8_t>(x >> 8);
        }
    }
}
__device__ __forceinline__ uint32_t get_word(const uint8_t* words, int bit, int bits, int n) {
    const int left = n - static_cast<int>(threadIdx.x) * kEach;
    if (left <= 0) {
        return 0;
    }
    const uint8_t* const from = words + word_at(bit, bits, n);
    const uint32_t x = from[0] | (left > 8 ? static_cast<uint32_t>(from[1]) << 8 : 0);
    return left < kEach ? x & ((1u << left) - 1) : x;
}

// --- Chunks

__device__ __forceinline__ int64_t chunk_count(const PaletteWork& work, int64_t chunk) {
    const int64_t left = work.count - chunk * work.chunk_elems;
    return left < work.chunk_elems ? left : work.chunk_elems;
}
__device__ __forceinline__ int64_t chunk_capacity(const PaletteWork& work, int64_t chunk) {
    return chunk + 1 < work.chunks ? work.capacity : work.last_capacity;
}
__device__ __forceinline__ int64_t first_payload(int64_t blocks) {
    return kPaletteChunkHeader + padded8(4 * blocks);
}

}  // namespace
}  // namespace slimwire
