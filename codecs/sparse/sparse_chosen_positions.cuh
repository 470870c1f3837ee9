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
        case IndexForm::kGaps:
        case IndexForm::kNone:
            break;
    }
    return plan.indices + (kept + 1) / 2 + kGapSpare * ChosenSpace::tiles(plan);
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

// One above the last element sent by an earlier thread of the block, within the tile; 0: none.
__device__ __forceinline__ int end_before(ChosenShared& shared, uint32_t sent) {
    const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
    const int end =
        sent == 0 ? 0 : static_cast<int>(threadIdx.x) * 32 + 32 - __clz(static_cast<int>(sent));
    int most = end;
#pragma unroll
    for (int by = 1; by < kWarpThreads; by *= 2) {
        const int other = __shfl_up_sync(kAllLanes, most, static_cast<unsigned>(by));
        most = lane_number() >= by && other > most ? other : most;
    }
    if (lane_number() == kWarpThreads - 1) {
        shared.sums[warp] = most;
    }
    int before = __shfl_up_sync(kAllLanes, most, 1);
    before = lane_number() == 0 ? 0 : before;
    __syncthreads();
    for (int i = 0; i < warp; ++i) {
        before = shared.sums[i] > before ? shared.sums[i] : before;
    }
    __syncthreads();
    return before;
}

__device__ __forceinline__ void put_half(uint32_t* words, int half, uint32_t value) {
    atomicOr(words + half / 8, value << (4 * (half % 8)));
}

// The half bytes of a span are put together in shared memory, where elements waited before.
template <class Element>
__device__ __forceinline__ void put_gaps(const ChosenChunk<Element>& chunk,
                                         ChosenShared& shared,
                                         int64_t tile,
                                         uint32_t sent,
                                         int64_t start,
                                         int64_t end) {
    const int base = static_cast<int>(threadIdx.x) * 32;
    int expected = end_before(shared, sent);  // the element that a gap of 0 names
    for (int i = static_cast<int>(threadIdx.x); i < kSparseSpan / 8 + 128; i += kThreads) {
        shared.gaps[i] = 0;
    }
    int halves = 0;
    int walk = expected;
    for (uint32_t rest = sent; rest != 0; rest &= rest - 1) {
        const int at = base + __ffs(static_cast<int>(rest)) - 1;
        halves += (at - walk) / static_cast<int>(kGapSkip) + 1;
        walk = at + 1;
    }
    int total = 0;
    int half = scan_block(shared.sums, halves, &total);
    for (uint32_t rest = sent; rest != 0; rest &= rest - 1) {
        const int at = base + __ffs(static_cast<int>(rest)) - 1;
        int gap = at - expected;
        for (; gap >= static_cast<int>(kGapSkip); gap -= static_cast<int>(kGapSkip)) {
            put_half(shared.gaps, half++, kGapSkip);
        }
        put_half(shared.gaps, half++, static_cast<uint32_t>(gap));
        expected = at + 1;
    }
    __syncthreads();
    uint8_t* const to = chunk.output + chunk.plan.indices + (start + 1) / 2 + kGapSpare * tile;
    const auto bytes = static_cast<int>((end + 1) / 2 - (start + 1) / 2 + kGapSpare);
    const auto* from = reinterpret_cast<const uint8_t*>(shared.gaps);
    for (int i = static_cast<int>(threadIdx.x); i < bytes; i += kThreads) {
        to[i] = from[i];
    }
    __syncthreads();
}

// What stands once for a tile: the table's entry, bits, gaps. Values [start, end) are its; by all
// threads of the block.
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
    if (plan.form == IndexForm::kGaps) {
        put_gaps(chunk, shared, tile, sent, start, end);
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
