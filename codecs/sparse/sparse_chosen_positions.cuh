// How the encoder of topk and threshold writes the positions of a tile, which is a span: a thread
// has 32 consecutive elements and a bit for each that is sent. Bytes: FORMAT.md, "Positions of topk
// and threshold".
#pragma once

#include "codecs/sparse/sparse_chosen_marks.cuh"
#include "codecs/sparse/sparse_chosen_space.cuh"

namespace slimwire {
namespace {

// Where a chunk's table ends, and its positions when `kept` values are sent; zeros follow.
__device__ __forceinline__ int64_t end_of_table(const SparsePlan& plan) {
    const int64_t spans = ChosenSpace::tiles(plan);
    if (plan.form == IndexForm::kLocal8) {
        return kSparseHeader + kLocal8Entry * spans;
    }
    return kSparseHeader + 4 * (plan.form == IndexForm::kLocal16
                                    ? (plan.count + kSparseWide - 1) / kSparseWide
                                    : spans);
}
__device__ __forceinline__ int64_t end_of_indices(const SparsePlan& plan, int64_t kept) {
    switch (plan.form) {
        case IndexForm::kBitmap:
            return plan.indices + (plan.count + 7) / 8;
        case IndexForm::kLocal8:
            return plan.indices + kept;
        case IndexForm::kLocal16:
            return plan.indices + 2 * kept;
        case IndexForm::kEliasFano:
        case IndexForm::kNone:
            break;
    }
    return plan.lows + (kept + 1) / 2 + ChosenSpace::tiles(plan);
}

// The position of one value, in the forms that have a place for each.
template <class Element>
__device__ __forceinline__ void put_position(const ChosenChunk<Element>& chunk,
                                             int64_t i,
                                             int64_t number) {
    uint8_t* const indices = chunk.output + chunk.plan.indices;
    if (chunk.plan.form == IndexForm::kLocal8) {
        indices[number] = static_cast<uint8_t>(i);
    } else if (chunk.plan.form == IndexForm::kLocal16) {
        reinterpret_cast<uint16_t*>(indices)[number] = static_cast<uint16_t>(i);
    }
}

// Where the bits of a chunk of which `kept` values are sent end; zeros follow.
__device__ __forceinline__ int64_t end_of_bits(const SparsePlan& plan, int64_t kept) {
    return plan.indices + 4 * (kept / 32 + (plan.count + kEliasElems - 1) / kEliasElems +
                               ChosenSpace::tiles(plan));
}

// The bits and half bytes of a span are put together in shared memory, where elements waited
// before.
template <class Element>
__device__ __forceinline__ void put_elias(const ChosenChunk<Element>& chunk,
                                          ChosenShared& shared,
                                          int64_t tile,
                                          uint32_t sent,
                                          int64_t start,
                                          int64_t end) {
    const SparsePlan& plan = chunk.plan;
    int total = 0;
    int number = scan_block(shared.sums, __popc(sent), &total);
    constexpr int kWords = static_cast<int>(sizeof(shared.elias) / sizeof(shared.elias[0]));
    for (int i = static_cast<int>(threadIdx.x); i < kWords; i += kThreads) {
        shared.elias[i] = 0;
    }
    __syncthreads();
    uint32_t* const shared_lows = shared.elias + kEliasLows;
    for (uint32_t rest = sent; rest != 0; rest &= rest - 1, ++number) {
        const int at = static_cast<int>(threadIdx.x) * 32 + __ffs(static_cast<int>(rest)) - 1;
        const int bit = at / 16 + number;
        atomicOr(shared.elias + bit / 32, 1u << (bit % 32));
        atomicOr(shared_lows + number / 8, static_cast<uint32_t>(at % 16) << (4 * (number % 8)));
    }
    __syncthreads();
    const int64_t bits = plan.indices + 4 * (start / 32 + kEliasWords * tile);
    const int64_t next = plan.indices + 4 * (end / 32 + kEliasWords * (tile + 1));
    const bool last = tile + 1 == ChosenSpace::tiles(plan);
    const auto words = static_cast<int>(((last ? end_of_bits(plan, end) : next) - bits) / 4);
    auto* const to = reinterpret_cast<uint32_t*>(chunk.output + bits);
    for (int i = static_cast<int>(threadIdx.x); i < words; i += kThreads) {
        to[i] = shared.elias[i];
    }
    uint8_t* const lows = chunk.output + plan.lows + (start + 1) / 2 + tile;
    const auto bytes = static_cast<int>((end + 1) / 2 - (start + 1) / 2 + 1);
    const auto* const from = reinterpret_cast<const uint8_t*>(shared_lows);
    for (int i = static_cast<int>(threadIdx.x); i < bytes; i += kThreads) {
        lows[i] = from[i];
    }
    __syncthreads();
}

// What stands once for a tile: the table's entry, bits, half bytes. Values [start, end) are its; by
// all threads of the block.
template <class Element>
__device__ __forceinline__ void put_positions(const ChosenChunk<Element>& chunk,
                                              ChosenShared& shared,
                                              int64_t tile,
                                              uint32_t sent,
                                              int64_t start,
                                              int64_t end) {
    const SparsePlan& plan = chunk.plan;
    auto* const table = reinterpret_cast<uint32_t*>(chunk.output + kSparseHeader);
    const auto word = static_cast<uint32_t>(start);
    constexpr int64_t kSpansOfWide = kSparseWide / kSparseSpan;
    if (plan.form == IndexForm::kLocal16) {
        if (threadIdx.x == 0 && tile % kSpansOfWide == 0) {
            table[tile / kSpansOfWide] = word;
        }
        return;
    }
    if (plan.form == IndexForm::kLocal8) {
        uint8_t* const entry = chunk.output + kSparseHeader + kLocal8Entry * tile;
        constexpr int kSharers = kSparseSegment / 32;  // threads of a segment
        if (threadIdx.x == 0) {
            shared.full = 0;
        }
        int count = __popc(sent);
#pragma unroll
        for (int by = kSharers / 2; by > 0; by /= 2) {
            count += __shfl_xor_sync(kAllLanes, count, by);
        }
        __syncthreads();
        if (threadIdx.x % kSharers == 0) {
            entry[8 + threadIdx.x / kSharers] = static_cast<uint8_t>(count);
            if (count == kSparseSegment) {
                atomicOr(&shared.full, 1u << (threadIdx.x / kSharers));
            }
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            *reinterpret_cast<uint32_t*>(entry) = word;
            *reinterpret_cast<uint32_t*>(entry + 4) = shared.full;
        }
        return;
    }
    if (threadIdx.x == 0) {
        table[tile] = word;
    }
    if (plan.form == IndexForm::kEliasFano) {
        put_elias(chunk, shared, tile, sent, start, end);
        return;
    }
    const int64_t byte = tile * (kSparseSpan / 8) + int64_t{threadIdx.x} * 4;
    const int64_t bytes = (plan.count + 7) / 8;
    if (byte + 4 <= bytes) {
        *reinterpret_cast<uint32_t*>(chunk.output + plan.indices + byte) = sent;
        return;
    }
    for (int64_t i = byte; i < bytes; ++i) {
        chunk.output[plan.indices + i] = static_cast<uint8_t>(sent >> (8 * (i - byte)));
    }
}

}  // namespace
}  // namespace slimwire
