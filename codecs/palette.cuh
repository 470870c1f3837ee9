// Kernels of the palette codec; byte for byte the bodies of codecs/host. A thread block of 256
// codes one block of 4096 elements, 16 consecutive ones a thread, in shared memory: bit planes are
// a thread's own 16 bits, escapes move together by a scan over the thread block. The encoder learns
// where its payload goes from the blocks before it while they work (decoupled look-back, Merrill
// and Garland 2016), so one launch reads the input once. Instantiated by palette.cu for elements of
// 1, 2, 4 and 8 bytes.
#pragma once

#include "codecs/cuda/elements.cuh"
#include "codecs/cuda/launchers.h"
#include "codecs/cuda/work.cuh"
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

// Exclusive sum of `value` over the threads of the block, and the sum of all.
__device__ __forceinline__ int scan_block(PaletteShared& shared, int value, int* total) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
    int inclusive = value;
#pragma unroll
    for (int by = 1; by < kWarpThreads; by *= 2) {
        const int other = __shfl_up_sync(0xFFFFFFFFu, inclusive, static_cast<unsigned>(by));
        inclusive += lane >= by ? other : 0;
    }
    if (lane == kWarpThreads - 1) {
        shared.sums[warp] = inclusive;
    }
    __syncthreads();
    int before = 0;
    int all = 0;
#pragma unroll
    for (int i = 0; i < kThreads / kWarpThreads; ++i) {
        before += i < warp ? shared.sums[i] : 0;
        all += shared.sums[i];
    }
    __syncthreads();
    *total = all;
    return before + inclusive - value;
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

// The inverse; at most `limit` bytes of `rest` are read. Returns the escapes seen.
template <int kBits>
__device__ __forceinline__ int decode_tier(PaletteShared& shared,
                                           const uint8_t* words,
                                           int n,
                                           const uint8_t* palette,
                                           const uint8_t* rest,
                                           int limit,
                                           uint8_t* symbols) {
    const int begin = static_cast<int>(threadIdx.x) * kEach;
    uint32_t plane[kBits];
    uint32_t escapes = 0xFFFF;
#pragma unroll
    for (int bit = 0; bit < kBits; ++bit) {
        plane[bit] = get_word(words, bit, kBits, n);
        escapes &= plane[bit];
    }
    int total = 0;
    int at = scan_block(shared, __popc(escapes), &total);
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
        if (begin + k < n) {
            uint32_t code = 0;
#pragma unroll
            for (int bit = 0; bit < kBits; ++bit) {
                code |= (plane[bit] >> k & 1) << bit;
            }
            const bool escape = (escapes >> k & 1) != 0;
            symbols[begin + k] = !escape ? palette[code] : at < limit ? rest[at] : uint8_t{0};
            at += escape;
        }
    }
    __syncthreads();
    return total;
}

// --- Encoding

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
    return t / kPaletteRun * (n / kPaletteRuns) + t % kPaletteRun;
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
    if (shared.zeros * 4 > samples) {
#pragma unroll
        for (int k = 0; k < kEach; ++k) {
            mine |= (value[k] != 0 ? 1u : 0u) << k;
        }
        int nonzero = 0;
        const int before = scan_block(shared, __popc(mine), &nonzero);
        if (nonzero == 0) {
            return 0;
        }
        zero_mode = (len - nonzero) * 4 > len;
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

// Adds one to a counter that counts from 0 under `nonce`, whatever it held before; returns what it
// was. The nonce has its upper 40 bits.
__device__ __forceinline__ int64_t count_up(unsigned long long* counter, uint64_t nonce) {
    constexpr uint64_t kCount = 0xFFFFFF;
    unsigned long long seen = __ldcv(counter);
    while ((seen & ~kCount) != nonce) {
        const unsigned long long before = atomicCAS(counter, seen, nonce);
        seen = before == seen ? nonce : before;
    }
    return static_cast<int64_t>(atomicAdd(counter, 1ull) & kCount);
}

// Publishes the size of this block's payload and returns where it starts, both in units of 8 bytes
// from the first payload of the chunk. Called by the first warp.
__device__ __forceinline__ int64_t look_back(PaletteState* states,
                                             int64_t block,
                                             int64_t size,
                                             uint64_t nonce) {
    const int lane = static_cast<int>(threadIdx.x);
    if (lane == 0) {
        __stcg(&states[block].aggregate, static_cast<unsigned long long>(size));
        __threadfence();
        __stcg(&states[block].tag, static_cast<unsigned long long>(nonce + 1));
    }
    int64_t sum = 0;
    for (int64_t behind = block - 1 - lane;; behind -= kWarpThreads) {
        bool whole = true;  // what this lane read is the sum of all blocks before
        int64_t value = 0;
        if (behind >= 0) {
            unsigned long long tag;
            do {
                tag = __ldcv(&states[behind].tag);
            } while (tag != nonce + 1 && tag != nonce + 2);
            __threadfence();
            whole = tag == nonce + 2;
            value = static_cast<int64_t>(
                __ldcv(whole ? &states[behind].prefix : &states[behind].aggregate));
        }
        const uint32_t wholes = __ballot_sync(0xFFFFFFFFu, whole);
        if (wholes != 0 && lane >= __ffs(static_cast<int>(wholes))) {
            value = 0;
        }
#pragma unroll
        for (unsigned by = kWarpThreads / 2; by > 0; by /= 2) {
            value += __shfl_xor_sync(0xFFFFFFFFu, value, static_cast<int>(by));
        }
        sum += value;
        if (wholes != 0) {
            break;
        }
    }
    if (lane == 0) {
        __stcg(&states[block].prefix, static_cast<unsigned long long>(sum + size));
        __threadfence();
        __stcg(&states[block].tag, static_cast<unsigned long long>(nonce + 2));
    }
    return sum;
}

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

// Copies a block that is stored raw; `to` is a multiple of 8, zeros follow up to the next.
__device__ __forceinline__ void copy_raw(const uint8_t* from, int64_t bytes, uint8_t* to) {
    const bool aligned = (reinterpret_cast<uintptr_t>(from) & 7) == 0;
    for (int64_t i = 8 * int64_t{threadIdx.x}; i < bytes; i += 8 * kThreads) {
        unsigned long long word = 0;
        if (aligned && i + 8 <= bytes) {
            word = *reinterpret_cast<const unsigned long long*>(from + i);
        } else {
            for (int j = 0; j < 8 && i + j < bytes; ++j) {
                word |= static_cast<unsigned long long>(from[i + j]) << (8 * j);
            }
        }
        *reinterpret_cast<unsigned long long*>(to + i) = word;
    }
}

// The zeros of a fixed slot after its encoding, by `threads` threads of which this is number `t`.
__device__ __forceinline__ void fill_slots(const EncodeArgs& args,
                                           const PaletteWork& work,
                                           int64_t t,
                                           int64_t threads) {
    for (int64_t chunk = 0; chunk < work.chunks; ++chunk) {
        uint8_t* const slot = static_cast<uint8_t*>(args.output) + chunk * args.slot_bytes;
        const auto total =
            static_cast<int64_t>(__ldcv(reinterpret_cast<const unsigned long long*>(slot) + 1));
        const int64_t capacity = chunk_capacity(work, chunk);
        for (int64_t i = total + 8 * t; i < capacity; i += 8 * threads) {
            *reinterpret_cast<unsigned long long*>(slot + i) = 0;
        }
    }
}

__global__ void __launch_bounds__(kThreads) palette_fill(EncodeArgs args, PaletteWork work) {
    fill_slots(args, work, thread_index(), thread_total());
}

template <int kBytes>
__global__ void __launch_bounds__(kThreads) palette_encode(EncodeArgs args, PaletteWork work) {
    SLIMWIRE_DYNAMIC_SHARED(uint8_t, memory);
    __shared__ PaletteShared shared;
    uint8_t* const payload = memory;
    uint8_t* const a = memory + payload_room<kBytes>() / 16 * 16 + 16;
    uint8_t* const b = a + kPaletteBlock + 16;
    auto* const workspace = static_cast<unsigned long long*>(args.workspace);
    auto* const states = reinterpret_cast<PaletteState*>(workspace + 2);
    const int64_t units = work.chunks * work.blocks;
    for (;;) {
        if (threadIdx.x == 0) {
            shared.unit = count_up(workspace, work.nonce);
        }
        __syncthreads();
        const int64_t unit = shared.unit;
        __syncthreads();
        if (unit >= units) {
            break;
        }
        const int64_t chunk = unit / work.blocks;
        const int64_t block = unit - chunk * work.blocks;
        const int64_t count = chunk_count(work, chunk);
        const int64_t blocks = (count + kPaletteBlock - 1) / kPaletteBlock;
        if (block >= blocks) {
            continue;
        }
        const int64_t first = block * kPaletteBlock;
        const int len = static_cast<int>(min(count - first, int64_t{kPaletteBlock}));
        const uint8_t* const input =
            static_cast<const uint8_t*>(args.input) + (chunk * work.chunk_elems + first) * kBytes;
        uint8_t* const output = static_cast<uint8_t*>(args.output) + chunk * args.slot_bytes;
        const int64_t capacity = chunk_capacity(work, chunk);
        const int coded = encode_payload<kBytes>(shared, work, input, len, payload, a, b);
        const int64_t raw = int64_t{len} * kBytes;
        const int64_t bytes = padded8(coded < 0 ? raw : coded);
        if (threadIdx.x < kWarpThreads) {
            const int64_t before =
                look_back(states + chunk * work.blocks, block, bytes / 8, work.nonce);
            if (threadIdx.x == 0) {
                shared.offset = first_payload(blocks) + 8 * before;
            }
        }
        __syncthreads();
        const int64_t at = shared.offset;
        const int64_t end = at + bytes;
        if (end <= capacity) {
            if (coded < 0) {
                copy_raw(input, raw, output + at);
            } else {
                const auto* from = reinterpret_cast<const unsigned long long*>(payload);
                auto* to = reinterpret_cast<unsigned long long*>(output + at);
                for (int i = static_cast<int>(threadIdx.x); i < bytes / 8; i += kThreads) {
                    to[i] = from[i];
                }
            }
        }
        if (threadIdx.x == 0) {
            auto* const ends = reinterpret_cast<uint32_t*>(output + kPaletteChunkHeader);
            if (first_payload(blocks) <= capacity) {
                ends[block] = static_cast<uint32_t>(end / 8);
            }
            if (block + 1 == blocks) {
                const bool fits = end <= capacity;
                if (fits && blocks % 2 != 0) {
                    ends[blocks] = 0;
                }
                auto* const header = reinterpret_cast<uint32_t*>(output);
                header[0] = kPaletteMagic;
                header[1] = fits ? 0 : kPaletteOverflow;
                reinterpret_cast<unsigned long long*>(output)[1] =
                    static_cast<unsigned long long>(fits ? end : kPaletteChunkHeader);
                if (!fits && args.status != nullptr) {
                    atomicOr(args.status, static_cast<uint32_t>(kStatusOverflow));
                }
            }
        }
        __syncthreads();
    }
    // The last thread block to come here leaves no tag behind, for the next launch of a graph.
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        shared.last = count_up(workspace + 1, work.nonce) + 1 == int64_t{gridDim.x};
    }
    __syncthreads();
    if (shared.last) {
        __threadfence();
        for (int64_t i = threadIdx.x; i < units; i += kThreads) {
            states[i].tag = 0;
        }
        if (threadIdx.x < 2) {
            workspace[threadIdx.x] = 0;
        }
        if (work.fills) {
            fill_slots(args, work, threadIdx.x, kThreads);
        }
    }
}

// --- Decoding

template <int kBytes>
__host__ __device__ constexpr int decode_shared_bytes() {
    return kPaletteBlock * kBytes + 16 + 2 * (kPaletteBlock + 16);
}

// The value of an 8-bit float, and the code of a value: nearest even, overflow to infinity or NaN.
struct SmallFloat {
    int fraction_bits;
    int bias;
    uint32_t special;  // smallest code that is not finite
    uint32_t overflow;
    uint32_t nan;

    __device__ float value(uint32_t code) const {
        const uint32_t magnitude = code & 0x7F;
        const uint32_t sign = (code & 0x80) << 24;
        if (magnitude >= special) {
            const bool infinite = magnitude == 0x7C && overflow == 0x7C;
            return __uint_as_float(sign | (infinite ? kInfinityBits : kNanFloat32));
        }
        if (magnitude >> fraction_bits == 0) {
            const auto step = static_cast<uint32_t>(128 - bias - fraction_bits) << 23;
            const float x = __fmul_rn(__uint_as_float(step), static_cast<float>(magnitude));
            return __uint_as_float(sign | __float_as_uint(x));
        }
        return __uint_as_float(sign | ((magnitude << (23 - fraction_bits)) +
                                       (static_cast<uint32_t>(127 - bias) << 23)));
    }
    __device__ uint32_t code(float x) const {
        const uint32_t bits = __float_as_uint(x);
        const uint32_t magnitude = bits & kMagnitudeMask;
        const int shift = 23 - fraction_bits;
        if (magnitude > kInfinityBits) {
            return nan;
        }
        uint32_t result;
        if (magnitude < static_cast<uint32_t>(128 - bias) << 23) {
            const auto magic = static_cast<uint32_t>(151 - bias - fraction_bits) << 23;
            const float sum = __fadd_rn(__uint_as_float(magic), __uint_as_float(magnitude));
            result = __float_as_uint(sum) - magic;
        } else {
            const uint32_t half = (1u << (shift - 1)) - 1 + (magnitude >> shift & 1);
            result = ((magnitude + half) >> shift) -
                     (static_cast<uint32_t>(127 - bias) << fraction_bits);
            result = result >= special ? overflow : result;
        }
        return result | (bits >> 24 & 0x80);
    }
    __device__ uint32_t add(uint32_t a, uint32_t b) const {
        return code(__fadd_rn(value(a), value(b)));
    }
};

// old + added, as the elements of `dtype` add.
__device__ __forceinline__ uint64_t add_bits(DType dtype, uint64_t old, uint64_t added) {
    const auto a = static_cast<uint32_t>(old);
    const auto b = static_cast<uint32_t>(added);
    switch (dtype) {
        case DType::kFloat32:
            return __float_as_uint(canonical(__fadd_rn(__uint_as_float(a), __uint_as_float(b))));
        case DType::kFloat16:
            return Float16Format::from_float(
                __fadd_rn(Float16Format::to_float(static_cast<uint16_t>(a)),
                          Float16Format::to_float(static_cast<uint16_t>(b))));
        case DType::kBfloat16:
            return Bfloat16Format::from_float(
                __fadd_rn(Bfloat16Format::to_float(static_cast<uint16_t>(a)),
                          Bfloat16Format::to_float(static_cast<uint16_t>(b))));
        case DType::kFloat64: {
            double x;
            double y;
            memcpy(&x, &old, 8);
            memcpy(&y, &added, 8);
            x += y;
            uint64_t bits;
            memcpy(&bits, &x, 8);
            return x != x ? kNanFloat64 : bits;
        }
        case DType::kFloat8e4m3:
            return SmallFloat{3, 7, 0x7F, 0x7F, 0x7F}.add(a, b);
        case DType::kFloat8e5m2:
            return SmallFloat{2, 15, 0x7C, 0x7C, 0x7E}.add(a, b);
        case DType::kInt8:
        case DType::kUint8:
        case DType::kInt32:
        case DType::kUint32:
        case DType::kInt64:
        case DType::kUint64:
            break;
    }
    return old + added;
}

// Delivers this thread's 16 elements: stores them, or adds them to what is there.
template <int kBytes>
__device__ __forceinline__ void deliver_elements(
    const DecodeArgs& args, uint8_t* output, int begin, int len, const WordOf<kBytes>* value) {
    if constexpr (kBytes < 8) {
        if (!args.accumulate && begin + kEach <= len && is_aligned16(output)) {
            constexpr int kPerWord = 4 / kBytes;
            uint32_t words[4 * kBytes] = {};
#pragma unroll
            for (int k = 0; k < kEach; ++k) {
                words[k / kPerWord] |= static_cast<uint32_t>(value[k])
                                       << (8 * kBytes * (k % kPerWord));
            }
            auto* const to = reinterpret_cast<uint4*>(output + begin * kBytes);
#pragma unroll
            for (int i = 0; i < kBytes; ++i) {
                to[i] =
                    make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
            }
            return;
        }
    }
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
        if (begin + k < len) {
            store_element<kBytes>(output, begin + k, value[k]);
        }
    }
}

// Integers are coded byte by byte and added whole, from the decoded bytes in shared memory.
template <class Integer>
__device__ __forceinline__ void add_integers(const uint8_t* decoded, int bytes, uint8_t* output) {
    constexpr int kWidth = static_cast<int>(sizeof(Integer));
    for (int i = static_cast<int>(threadIdx.x); i < bytes / kWidth; i += kThreads) {
        reinterpret_cast<Integer*>(output)[i] += reinterpret_cast<const Integer*>(decoded)[i];
    }
}

// Decodes a coded payload in shared memory to this thread's 16 elements; false, the same in all
// threads, when it is malformed. `a` and `b` hold a block of symbols each.
template <int kBytes>
__device__ __forceinline__ bool decode_payload(PaletteShared& shared,
                                               const PaletteWork& work,
                                               const uint8_t* payload,
                                               int64_t bytes,
                                               int len,
                                               uint8_t* a,
                                               uint8_t* b,
                                               WordOf<kBytes>* value) {
    constexpr int kPlanes = kBytes - 1;
    const int t = static_cast<int>(threadIdx.x);
    const int begin = t * kEach;
    const uint64_t counts = *reinterpret_cast<const unsigned long long*>(payload);
    const int n = static_cast<int>(counts & 0xFFF) + 1;
    const int n1 = static_cast<int>(counts >> 12 & 0x1FFF);
    const int n2 = static_cast<int>(counts >> 25 & 0x1FFF);
    const int n3 = static_cast<int>(counts >> 38 & 0x1FFF);
    const bool zero_mode = (counts >> 51 & 1) != 0;
    if (n > len || (!zero_mode && n != len) || n1 > n || n2 > n1 || n3 > n2) {
        return false;
    }
    int64_t planes = kPaletteHeader;
    const int left = len - begin;
    uint32_t mine = left >= kEach ? 0xFFFF : left > 0 ? (1u << left) - 1 : 0;
    int at = begin;
    if (zero_mode) {
        if (bytes < kPaletteHeader + 8) {
            return false;
        }
        const auto* from = reinterpret_cast<const unsigned long long*>(payload + kPaletteHeader);
        const uint64_t groups = from[0];
        planes += 8 + 8 * __popcll(groups);
        if (planes > bytes) {
            return false;
        }
        const int group = t / 4;
        uint32_t marked = 0;
        if ((groups >> group & 1) != 0) {
            const int before = __popcll(groups & ((uint64_t{1} << group) - 1));
            marked = static_cast<uint32_t>(from[1 + before] >> (16 * (t % 4))) & 0xFFFF;
        }
        const bool outside =
            (marked & ~mine) != 0 || ((groups >> group & 1) != 0 && group * 64 >= len);
        mine = marked;
        int ones = 0;
        at = scan_block(shared, __popc(mine), &ones);
        if (__syncthreads_or(outside) != 0 || ones != n) {
            return false;
        }
    }
    const int64_t raw_words = planes + int64_t{kPlanes} * n;
    const int64_t words1 = raw_words + work.raw_bits * plane_bytes(n);
    const int64_t words2 = words1 + 2 * plane_bytes(n);
    const int64_t words3 = words2 + 2 * plane_bytes(n1);
    const int64_t symbols = words3 + 3 * plane_bytes(n2);
    if (padded8(symbols + n3) != bytes) {
        return false;
    }
    const uint8_t* const palette = payload + 8;
    if (decode_tier<3>(shared, payload + words3, n2, palette + 6, payload + symbols, n3, a) != n3 ||
        decode_tier<2>(shared, payload + words2, n1, palette + 3, a, n2, b) != n2 ||
        decode_tier<2>(shared, payload + words1, n, palette, b, n1, a) != n1) {
        return false;
    }
    if (work.raw_bits != 0) {
        for (int bit = work.raw_bits - 1; bit >= 0; --bit) {
            const uint32_t x = get_word(payload + raw_words, bit, work.raw_bits, n);
            const int shift = work.raw_bits - 1 - bit;
            for (int k = 0; k < kEach && begin + k < n; ++k) {
                // The symbol moves up as its lower bits come, the highest first.
                const uint32_t top = shift == 0 ? a[begin + k] : b[begin + k];
                b[begin + k] = static_cast<uint8_t>(top << 1 | (x >> k & 1));
            }
        }
        __syncthreads();
    }
    const uint8_t* const tops = work.raw_bits != 0 ? b : a;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
        WordOf<kBytes> bits = 0;
        if ((mine >> k & 1) != 0) {
            bits = static_cast<WordOf<kBytes>>(WordOf<kBytes>{tops[at]} << (8 * kPlanes));
#pragma unroll
            for (int j = 0; j < kPlanes; ++j) {
                bits |= static_cast<WordOf<kBytes>>(WordOf<kBytes>{payload[planes + j * n + at]}
                                                    << (8 * j));
            }
            ++at;
        }
        value[k] = rotate_back<kBytes>(bits, work.rotates);
    }
    return true;
}

template <int kBytes>
__global__ void __launch_bounds__(kThreads) palette_decode(DecodeArgs args, PaletteWork work) {
    SLIMWIRE_DYNAMIC_SHARED(uint8_t, payload);
    __shared__ PaletteShared shared;
    uint8_t* const a = payload + kPaletteBlock * kBytes + 16;
    uint8_t* const b = a + kPaletteBlock + 16;
    const int begin = static_cast<int>(threadIdx.x) * kEach;
    for (int64_t unit = blockIdx.x; unit < work.chunks * work.blocks; unit += gridDim.x) {
        const int64_t chunk = unit / work.blocks;
        const int64_t block = unit - chunk * work.blocks;
        const int64_t count = chunk_count(work, chunk);
        const int64_t blocks = (count + kPaletteBlock - 1) / kPaletteBlock;
        if (block >= blocks) {
            continue;
        }
        const int64_t first = block * kPaletteBlock;
        const int len = static_cast<int>(min(count - first, int64_t{kPaletteBlock}));
        const int64_t raw = int64_t{len} * kBytes;
        const uint8_t* const input =
            static_cast<const uint8_t*>(args.input) + chunk * args.slot_bytes;
        uint8_t* const output =
            static_cast<uint8_t*>(args.output) + (chunk * work.chunk_elems + first) * kBytes;
        const int64_t size = chunk_capacity(work, chunk);
        const int64_t payloads = first_payload(blocks);
        const auto* const header = reinterpret_cast<const uint32_t*>(input);
        uint32_t magic = 0;
        uint32_t flags = 0;
        int64_t total = 0;
        if (size >= kPaletteChunkHeader) {
            magic = header[0];
            flags = header[1];
            total = static_cast<int64_t>(reinterpret_cast<const unsigned long long*>(input)[1]);
        }
        uint32_t status = 0;
        int64_t at = 0;
        int64_t end = 0;
        bool good = false;
        if (magic == kPaletteMagic && flags == kPaletteOverflow && total == kPaletteChunkHeader) {
            status = kStatusOverflow;
        } else if (magic == kPaletteMagic && flags == 0 && total >= payloads && total <= size) {
            const auto* const ends = reinterpret_cast<const uint32_t*>(input + kPaletteChunkHeader);
            at = block == 0 ? payloads : int64_t{ends[block - 1]} * 8;
            end = int64_t{ends[block]} * 8;
            good = at >= payloads && at <= end && end <= total && end - at <= padded8(raw);
            status = block + 1 == blocks && end != total ? uint32_t{kStatusCorrupt} : 0;
        }
        const int64_t bytes = good ? end - at : 0;
        for (int64_t i = threadIdx.x; i < bytes / 8; i += kThreads) {
            reinterpret_cast<unsigned long long*>(payload)[i] =
                reinterpret_cast<const unsigned long long*>(input + at)[i];
        }
        __syncthreads();
        WordOf<kBytes> value[kEach] = {};
        if (good && bytes == padded8(raw)) {
#pragma unroll
            for (int k = 0; k < kEach; ++k) {
                value[k] =
                    begin + k < len ? load_element<kBytes>(payload, begin + k) : WordOf<kBytes>{0};
            }
        } else if (bytes != 0) {
            good = bytes >= kPaletteHeader &&
                   decode_payload<kBytes>(shared, work, payload, bytes, len, a, b, value);
            if (!good) {
#pragma unroll
                for (int k = 0; k < kEach; ++k) {
                    value[k] = 0;
                }
            }
        }
        if (!good && status == 0) {
            status = kStatusCorrupt;
        }
        if (!args.accumulate) {
            deliver_elements<kBytes>(args, output, begin, len, value);
        } else if (kBytes == 1 && work.element_bytes > 1) {
            __syncthreads();  // `b` may still be read
#pragma unroll
            for (int k = 0; k < kEach; ++k) {
                b[begin + k] = static_cast<uint8_t>(value[k]);
            }
            __syncthreads();
            if (work.element_bytes == 4) {
                add_integers<uint32_t>(b, len, output);
            } else {
                add_integers<unsigned long long>(b, len, output);
            }
        } else {
#pragma unroll
            for (int k = 0; k < kEach; ++k) {
                if (begin + k < len) {
                    const uint64_t old = load_element<kBytes>(output, begin + k);
                    store_element<kBytes>(output, begin + k, add_bits(args.dtype, old, value[k]));
                }
            }
        }
        if (status != 0 && threadIdx.x == 0 && args.status != nullptr) {
            atomicOr(args.status, status);
        }
        __syncthreads();
    }
}

// --- Launching

// Thread blocks for the operation's blocks: as many as run at once, or may.
template <class Args>
cudaError_t palette_grid(const Args& args, const PaletteWork& work, unsigned* grid) {
    int processors = 0;
    const cudaError_t error = processor_count(&processors);
    if (error != cudaSuccess) {
        return error;
    }
    const int64_t most =
        args.max_blocks > 0 ? args.max_blocks : int64_t{processors} * kBlocksPerProcessor;
    const int64_t units = work.chunks * work.blocks;
    *grid = static_cast<unsigned>(units < most ? units : most);
    return cudaSuccess;
}

template <int kBytes>
cudaError_t launch_encode(const EncodeArgs& args, const PaletteWork& work, cudaStream_t stream) {
    unsigned grid = 0;
    cudaError_t error = palette_grid(args, work, &grid);
    if (error != cudaSuccess) {
        return error;
    }
    error = start_kernel(palette_encode<kBytes>, grid, kThreads, encode_shared_bytes<kBytes>(),
                         stream, args, work);
    if (error != cudaSuccess || args.params.slot <= 0 || work.fills) {
        return error;
    }
    return start_kernel(palette_fill, grid, kThreads, 0, stream, args, work);
}

template <int kBytes>
cudaError_t launch_decode(const DecodeArgs& args, const PaletteWork& work, cudaStream_t stream) {
    unsigned grid = 0;
    const cudaError_t error = palette_grid(args, work, &grid);
    if (error != cudaSuccess) {
        return error;
    }
    return start_kernel(palette_decode<kBytes>, grid, kThreads, decode_shared_bytes<kBytes>(),
                        stream, args, work);
}

}  // namespace
}  // namespace slimwire
