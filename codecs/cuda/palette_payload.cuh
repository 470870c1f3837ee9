// Puts the payload of one block together in shared memory, with all threads of a block: the sample
// and its palette, zero mode's marks, the three tiers. Byte for byte codecs/host/palette_encode.h.
// Included by codecs/cuda/palette_encode.cuh.
#pragma once

#include "codecs/cuda/palette_block.cuh"

namespace slimwire {
namespace {

// One tier: codes of `symbols` to `words`, escapes to `rest`; returns their number.
template <int kBits>
__device__ __forceinline__ int encode_tier(PaletteShared& shared,
                                           const uint8_t* symbols,
                                           int n,
                                           const uint8_t* palette,
                                           uint8_t* words,
                                           uint8_t* rest) {
    constexpr int kEscape = (1 << kBits) - 1;
    const int begin = static_cast<int>(threadIdx.x) * kEach;
    uint32_t plane[kBits] = {};
    uint32_t escapes = 0;
    if (begin < n) {
        uint32_t entry[kEscape];
#pragma unroll
        for (int i = 0; i < kEscape; ++i) {
            entry[i] = palette[i];
        }
#pragma unroll
        for (int k = 0; k < kEach; ++k) {
            if (begin + k < n) {
                const uint32_t symbol = symbols[begin + k];
                uint32_t code = kEscape;
#pragma unroll
                for (int i = kEscape - 1; i >= 0; --i) {
                    code = symbol == entry[i] ? static_cast<uint32_t>(i) : code;
                }
#pragma unroll
                for (int bit = 0; bit < kBits; ++bit) {
                    plane[bit] |= (code >> bit & 1) << k;
                }
                escapes |= (code == kEscape ? 1u : 0u) << k;
            }
        }
    }
#pragma unroll
    for (int bit = 0; bit < kBits; ++bit) {
        put_word(words, bit, kBits, n, plane[bit]);
    }
    int total = 0;
    int at = scan_block(shared, __popc(escapes), &total);
    while (escapes != 0) {
        rest[at++] = symbols[begin + __ffs(static_cast<int>(escapes)) - 1];
        escapes &= escapes - 1;
    }
    __syncthreads();
    return total;
}

// What encode_payload may write, worst case: header, marks, planes, words, symbols.
template <int kBytes>
__host__ __device__ constexpr int payload_room() {
    return kPaletteHeader + 8 + kPaletteBlock / 8 +
           kPaletteBlock / 8 *
               (kBytes == 8   ? 7
                : kBytes == 4 ? 7
                              : 7 + 4) +
           kPaletteBlock * (kBytes - 1) + kPaletteBlock + 16;
}
template <int kBytes>
__host__ __device__ constexpr int encode_shared_bytes() {
    return payload_room<kBytes>() / 16 * 16 + 16 + 2 * (kPaletteBlock + 16);
}

// Chooses the palette from symbols; each thread brings one of the sample, -1 beyond it.
__device__ __forceinline__ void choose_palette(PaletteShared& shared, int symbol, int samples) {
    const int t = static_cast<int>(threadIdx.x);
    if (t < 16) {
        shared.counts[t] = 0;
        shared.palette[t] = 0;
    }
    if (t == 0) {
        shared.sum = 0;
        shared.zeros = 0;
    }
    __syncthreads();
    if (symbol == 0) {
        atomicAdd(&shared.zeros, 1);
    } else if (symbol > 0) {
        atomicAdd(&shared.sum, symbol);
    }
    __syncthreads();
    const int nonzero = samples - shared.zeros;
    const int mean = nonzero > 0 ? shared.sum / nonzero : 0;
    const int base = min(max(mean - kPaletteBelowMean, kPaletteLeastBase), kPaletteMostBase);
    const int place = symbol == 0 ? 0 : symbol - base + 1;
    if (symbol >= 0 && (symbol == 0 || place >= 1) && place < 16) {
        atomicAdd(&shared.counts[place], 1);
    }
    __syncthreads();
    if (t < 16) {
        const int key = shared.counts[t] * 16 + t;
        int rank = 0;
        for (int i = 0; i < 16; ++i) {
            rank += shared.counts[i] * 16 + i > key;
        }
        if (rank < kPaletteEntries) {
            shared.palette[rank] = static_cast<uint8_t>(t == 0 ? 0 : base + t - 1);
        }
    }
    __syncthreads();
}

// The number of the sample's element that this thread brings; -1 beyond.
__device__ __forceinline__ int sampled(int n) {
    const int t = static_cast<int>(threadIdx.x);
    if (n < kPaletteSamples) {
        return t < n ? t : -1;
    }
    return t / kPaletteRun * ((n - kPaletteRun) / (kPaletteRuns - 1)) + t % kPaletteRun;
}

// Writes which elements are not zero, of which this thread has `mine`; returns the bytes.
__device__ __forceinline__ int put_marks(PaletteShared& shared, uint32_t mine, uint8_t* to) {
    const int t = static_cast<int>(threadIdx.x);
    shared.marks[t] = static_cast<uint16_t>(mine);
    __syncthreads();
    uint64_t word = 0;
    if (t < 64) {
        for (int i = 0; i < 4; ++i) {
            word |= static_cast<uint64_t>(shared.marks[4 * t + i]) << (16 * i);
        }
        const uint32_t some = __ballot_sync(0xFFFFFFFFu, word != 0);
        if (t % kWarpThreads == 0) {
            shared.groups[t / kWarpThreads] = some;
        }
    }
    __syncthreads();
    const uint64_t groups = shared.groups[0] | static_cast<uint64_t>(shared.groups[1]) << 32;
    if (t == 0) {
        *reinterpret_cast<unsigned long long*>(to) = groups;
    }
    if (word != 0) {
        const int before = __popcll(groups & ((uint64_t{1} << t) - 1));
        reinterpret_cast<unsigned long long*>(to)[1 + before] = word;
    }
    return 8 + 8 * __popcll(groups);
}

// Codes the `len` elements at `input`; returns the bytes of the payload in `payload`, unpadded, -1
// for a block that is stored raw, 0 for zeros. `a` and `b` hold a block of symbols each.
template <int kBytes>
__device__ __forceinline__ int encode_payload(PaletteShared& shared,
                                              const PaletteWork& work,
                                              const uint8_t* input,
                                              int len,
                                              uint8_t* payload,
                                              uint8_t* a,
                                              uint8_t* b) {
    constexpr int kPlanes = kBytes - 1;
    const int begin = static_cast<int>(threadIdx.x) * kEach;
    const int samples = min(len, kPaletteSamples);
    const int number = sampled(len);
    int symbol = -1;
    if (number >= 0) {
        const auto bits = rotate<kBytes>(load_element<kBytes>(input, number), work.rotates);
        symbol = static_cast<int>(bits >> (8 * kPlanes)) >> work.raw_bits;
    }
    choose_palette(shared, symbol, samples);

    WordOf<kBytes> value[kEach];
    load_elements<kBytes>(input, begin, len, work.rotates, value);
    int n = len;
    int at = begin;
    uint32_t mine = 0;
    bool zero_mode = false;
    if (shared.zeros * kPaletteZeroPart > samples) {
#pragma unroll
        for (int k = 0; k < kEach; ++k) {
            mine |= (value[k] != 0 ? 1u : 0u) << k;
        }
        int nonzero = 0;
        const int before = scan_block(shared, __popc(mine), &nonzero);
        if (nonzero == 0) {
            return 0;
        }
        zero_mode = (len - nonzero) * kPaletteZeroPart > len;
        if (zero_mode) {
            n = nonzero;
            at = before;
        }
    }
    if (!zero_mode) {
        const int left = len - begin;
        mine = left >= kEach ? 0xFFFF : left > 0 ? (1u << left) - 1 : 0;
    }
    const int marks = zero_mode ? put_marks(shared, mine, payload + kPaletteHeader) : 0;
    uint8_t* const planes = payload + kPaletteHeader + marks;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
        if ((mine >> k & 1) != 0) {
#pragma unroll
            for (int j = 0; j < kPlanes; ++j) {
                planes[j * n + at] = static_cast<uint8_t>(value[k] >> (8 * j));
            }
            a[at++] = static_cast<uint8_t>(value[k] >> (8 * kPlanes));
        }
    }
    __syncthreads();
    if (zero_mode) {
        const int kept = sampled(n);
        choose_palette(shared, kept >= 0 ? a[kept] >> work.raw_bits : -1, min(n, kPaletteSamples));
    }
    uint8_t* words = planes + kPlanes * n;
    for (int bit = 0; bit < work.raw_bits; ++bit) {
        uint32_t x = 0;
        for (int k = 0; k < kEach && begin + k < n; ++k) {
            x |= (a[begin + k] >> bit & 1u) << k;
        }
        put_word(words, bit, work.raw_bits, n, x);
    }
    for (int k = 0; k < kEach && begin + k < n; ++k) {
        b[begin + k] = static_cast<uint8_t>(a[begin + k] >> work.raw_bits);
    }
    __syncthreads();
    words += work.raw_bits * plane_bytes(n);
    const int n1 = encode_tier<2>(shared, b, n, shared.palette, words, a);
    words += 2 * plane_bytes(n);
    const int n2 = encode_tier<2>(shared, a, n1, shared.palette + 3, words, b);
    words += 2 * plane_bytes(n1);
    const int n3 = encode_tier<3>(shared, b, n2, shared.palette + 6, words, a);
    words += 3 * plane_bytes(n2);
    for (int i = static_cast<int>(threadIdx.x); i < n3; i += kThreads) {
        words[i] = a[i];
    }
    const int bytes = static_cast<int>(words - payload) + n3;
    if (threadIdx.x == 0) {
        auto* const header = reinterpret_cast<unsigned long long*>(payload);
        header[0] = static_cast<uint64_t>(n - 1) | static_cast<uint64_t>(n1) << 12 |
                    static_cast<uint64_t>(n2) << 25 | static_cast<uint64_t>(n3) << 38 |
                    static_cast<uint64_t>(zero_mode) << 51;
        for (int i = 0; i < 16; ++i) {
            payload[8 + i] = shared.palette[i];
        }
        for (int i = bytes; i % 8 != 0; ++i) {
            payload[i] = 0;
        }
    }
    __syncthreads();
    return padded8(bytes) >= padded8(int64_t{len} * kBytes) ? -1 : bytes;
}

}  // namespace
}  // namespace slimwire
