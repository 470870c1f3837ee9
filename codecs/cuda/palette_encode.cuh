// The encoder of the palette codec; byte for byte codecs/host/palette_encode.h. A payload is put
// together in shared memory, escapes move together by a scan over the thread block. Where it goes a
// block learns from those before it while they work (decoupled look-back), so one launch reads the
// input once. Included by codecs/palette.cuh.
#pragma once

#include "codecs/cuda/look_back.cuh"
#include "codecs/cuda/palette_payload.cuh"

namespace slimwire {
namespace {

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
    auto* const states = reinterpret_cast<LookBackState*>(workspace + kLookBackCounters);
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
            const uint64_t before = look_back(states + chunk * work.blocks, block,
                                              static_cast<uint64_t>(bytes) / 8, work.nonce, Plus{});
            if (threadIdx.x == 0) {
                shared.offset = first_payload(blocks) + 8 * static_cast<int64_t>(before);
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
    // The last thread block to come here leaves nothing published, for the next launch of a graph.
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        shared.last = count_up(workspace + 1, work.nonce) + 1 == int64_t{gridDim.x};
    }
    __syncthreads();
    if (shared.last) {
        __threadfence();
        forget(states, units, threadIdx.x, kThreads);
        if (threadIdx.x < kLookBackCounters) {
            workspace[threadIdx.x] = 0;
        }
        if (work.fills) {
            fill_slots(args, work, threadIdx.x, kThreads);
        }
    }
}

}  // namespace
}  // namespace slimwire
