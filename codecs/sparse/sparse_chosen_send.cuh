// What topk and threshold do with a tile once the cut is known: one thread block and 8192 elements,
// read once. Survivors become bits and wait in shared memory; look-back tells how many there are
// before; then their positions and values are written. What is left of a chunk's encoding behind
// the last value is zeroed when all tiles are taken.
#pragma once

#include "codecs/sparse/sparse_chosen_positions.cuh"

namespace slimwire {
namespace {

// Adds the numbers above the cut (upper half) and equal to it (lower half, at most `most` of which
// matter).
struct AddSurvivors {
    uint32_t most;
    __device__ uint64_t operator()(uint64_t a, uint64_t b) const {
        const uint64_t ties = (a & 0xFFFFFFFF) + (b & 0xFFFFFFFF);
        return ((a >> 32) + (b >> 32)) << 32 | (ties < most ? ties : most);
    }
};

template <class Element, bool kTop>
class TileSender {
  public:
    __device__ TileSender(const ChosenArgs& args,
                          const ChosenChunk<Element>& chunk,
                          ChosenShared& shared)
        : args_(args), chunk_(chunk), plan_(chunk.plan), shared_(shared) {}

    // `tickets`: the next of which is a tile that may be read ahead.
    __device__ void send(int64_t tile, const Tickets& tickets) const {
        mark(tile);
        if (threadIdx.x == 0) {
            look_ahead(tickets.next());
        }
        __syncthreads();
        ahead();
        const uint32_t mask = shared_.marks[threadIdx.x];
        const uint32_t tie = kTop ? ties_of(mask) : 0;
        int all = 0;
        const int own = scan_block(shared_.sums, __popc(mask ^ tie) | __popc(tie) << 16, &all);
        if (threadIdx.x < kWarpThreads) {
            const uint64_t before = look(tile, all);
            if (threadIdx.x == 0) {
                shared_.before = before;
            }
        }
        __syncthreads();
        const uint64_t above = above_of(shared_.before);
        const uint32_t ties = ties_of_sum(shared_.before);
        const uint32_t most = shared_.wanted;
        const int64_t start = chunk_.sent_before(above, ties, most);
        const uint64_t above_end = above + static_cast<uint32_t>(all & 0xFFFF);
        const uint64_t ties_end = uint64_t{ties} + static_cast<uint32_t>(all >> 16);
        const int64_t end = chunk_.sent_before(
            above_end, ties_end < most ? static_cast<uint32_t>(ties_end) : most, most);
        const uint32_t sent =
            put_values(tile, mask, tie, above + static_cast<uint32_t>(own & 0xFFFF),
                       uint64_t{ties} + static_cast<uint32_t>(own >> 16), most);
        put_positions(chunk_, shared_, tile, sent, start, end);
        const bool ends = tile + 1 == ChosenSpace::tiles(plan_);
        if (plan_.format != ValueFormat::kNative) {
            int64_t staged = end;
            if (ends) {
                staged = pad_block(end);
            }
            __syncthreads();
            quantise(start, staged);
        }
        if (ends && threadIdx.x == 0) {
            uint32_t* const header = chunk_.header();
            const uint64_t reach = kTop ? load_fresh(&chunk_.state().at_least) : above_end;
            header[0] = static_cast<uint32_t>(end);
            header[1] = reach < 0xFFFFFFFFu ? static_cast<uint32_t>(reach) : 0xFFFFFFFFu;
            header[2] = shared_.low;
        }
    }

    // Zeros behind the last value and between the sections, by `workers` thread blocks.
    __device__ void finish(int64_t worker, int64_t workers) const {
        if (threadIdx.x == 0) {
            shared_.before =
                sum_up_to(chunk_.states() + ChosenSpace::tiles(plan_) - 1, args_.nonce);
        }
        __syncthreads();
        const int64_t kept = chunk_.sent_before(above_of(shared_.before),
                                                ties_of_sum(shared_.before), shared_.wanted);
        const int64_t thread = worker * kThreads + threadIdx.x;
        const int64_t threads = workers * kThreads;
        zero_bytes(chunk_.output, end_of_table(plan_), plan_.indices, thread, threads);
        zero_bytes(chunk_.output, end_of_indices(plan_, kept), plan_.values, thread, threads);
        if (plan_.form == IndexForm::kEliasFano) {
            zero_bytes(chunk_.output, end_of_bits(plan_, kept), plan_.lows, thread, threads);
        }
        if (plan_.format == ValueFormat::kNative) {
            zero_bytes(chunk_.output, plan_.values + kept * Element::kBytes, plan_.bytes, thread,
                       threads);
        } else {
            const int64_t blocks = (kept + kSparseBlock - 1) / kSparseBlock;
            const int64_t block_bytes = plan_.format == ValueFormat::kInt8 ? 64 : 32;
            zero_bytes(chunk_.output, plan_.values + blocks * block_bytes, plan_.scales, thread,
                       threads);
            zero_bytes(chunk_.output, plan_.scales + 2 * blocks, plan_.bytes, thread, threads);
        }
        __syncthreads();
    }

  private:
    __device__ static uint64_t above_of(uint64_t sum) { return kTop ? sum >> 32 : sum; }
    __device__ static uint32_t ties_of_sum(uint64_t sum) {
        return kTop ? static_cast<uint32_t>(sum) : 0;
    }

    __device__ uint64_t look(int64_t tile, int all) const {
        const uint64_t above = static_cast<uint32_t>(all & 0xFFFF);
        if constexpr (kTop) {
            const AddSurvivors add{shared_.wanted};
            const uint64_t own = add(above << 32 | static_cast<uint32_t>(all >> 16), 0);
            return look_back(chunk_.states(), tile, own, args_.nonce, add);
        } else {
            return look_back(chunk_.states(), tile, above, args_.nonce, Plus{});
        }
    }

    // What ticket `next` reads; of single chunks, as others are small.
    __device__ void look_ahead(int64_t next) const {
        constexpr int64_t kTileBytes = kSparseSpan * Element::kBytes;
        const int64_t begin = (next - args_.first_tile) * kTileBytes;
        const int64_t left = plan_.count * Element::kBytes - begin;
        shared_.ahead = chunk_.source.input + begin;
        shared_.ahead_bytes = args_.work.chunks > 1 || left < 0 ? 0
                              : left < kTileBytes               ? left
                                                                : kTileBytes;
    }

    // Asks for it while this ticket is worked on.
    __device__ void ahead() const {
        const int64_t at = int64_t{threadIdx.x} * 128;
        if (at < shared_.ahead_bytes) {
            prefetch(shared_.ahead + at);
        }
    }

    // Bits, survivors, and the residual of all others.
    __device__ void mark(int64_t tile) const {
        constexpr int kReads = kSparseSpan / (kThreads * kPerThread);
        const int64_t first = tile * kSparseSpan + int64_t{threadIdx.x} * kPerThread;
        auto* const mark = reinterpret_cast<uint8_t*>(shared_.marks) + threadIdx.x;
        auto* const kept = reinterpret_cast<float4*>(shared_.p) + threadIdx.x * 2;
        float* const residual = chunk_.residual;
        read_marked(chunk_.source, shared_.low, shared_.least16, first, kThreads * kPerThread,
                    kReads, [&](int round, uint32_t mask, auto get) {
                        mark[round * kThreads] = static_cast<uint8_t>(mask);
                        if (mask != 0) {
                            const Eight p = get();
                            float4* const to = kept + round * kThreads * 2;
                            to[0] = make_float4(p.v[0], p.v[1], p.v[2], p.v[3]);
                            to[1] = make_float4(p.v[4], p.v[5], p.v[6], p.v[7]);
                        }
                        if (residual != nullptr) {
                            leave(residual, first + round * (kThreads * kPerThread), get(), mask);
                        }
                    });
    }

    // Only a cut among NaN leaves something that is not finite.
    __device__ void leave(float* residual, int64_t i, const Eight& p, uint32_t mask) const {
        if (i >= plan_.count) {
            return;
        }
        if (mask == 0 && shared_.low <= kInfinityBits) {
            store_eight<Float32>(reinterpret_cast<uint8_t*>(residual), i, plan_.count, p);
            return;
        }
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            if (i + k < plan_.count && (mask >> k & 1) == 0 && is_finite(p.v[k])) {
                residual[i + k] = p.v[k];
            }
        }
    }

    __device__ float survivor(int k) const {
        return shared_.p[static_cast<int>(threadIdx.x) * 32 + k];
    }
    __device__ uint32_t ties_of(uint32_t mask) const {
        uint32_t tie = 0;
        for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
            const int k = __ffs(static_cast<int>(rest)) - 1;
            tie |= static_cast<uint32_t>(order_of(survivor(k)) == shared_.low) << k;
        }
        return tie;
    }

    // Values, and positions of their own, of the marked ones of 32 elements; the bits of those that
    // found room. `above` and `ties`: survivors before them.
    __device__ uint32_t put_values(int64_t tile,
                                   uint32_t mask,
                                   uint32_t tie,
                                   uint64_t above,
                                   uint64_t ties,
                                   uint32_t most) const {
        uint32_t sent = 0;
        bool lost = false;
        for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
            const int k = __ffs(static_cast<int>(rest)) - 1;
            const bool is_tie = (tie >> k & 1) != 0;
            const int64_t number =
                static_cast<int64_t>(above) + static_cast<int64_t>(ties < most ? ties : most);
            const bool room = number < plan_.capacity && (!is_tie || ties < most);
            above += is_tie ? 0 : 1;
            ties += is_tie ? 1 : 0;
            const int64_t i = tile * kSparseSpan + static_cast<int>(threadIdx.x) * 32 + k;
            const float value = survivor(k);
            float left = value;
            if (!room) {
                lost = lost || !is_finite(value);
            } else {
                sent |= 1u << k;
                put_position(chunk_, i, number);
                if (plan_.format == ValueFormat::kNative) {
                    left = __fsub_rn(
                        value, put_native<Element>(chunk_.output + plan_.values, number, value));
                } else {
                    positions()[number] = i;
                    staged()[number] = value;
                    continue;
                }
            }
            if (chunk_.residual != nullptr && is_finite(value)) {
                chunk_.residual[i] = left;
            }
        }
        if (!kTop && lost) {
            __stcg(&chunk_.state().lost, static_cast<unsigned long long>(args_.nonce + 1));
        }
        return sent;
    }

    __device__ int64_t* positions() const {
        return reinterpret_cast<int64_t*>(chunk_.workspace + chunk_.space.positions);
    }
    __device__ float* staged() const {
        return reinterpret_cast<float*>(chunk_.workspace + chunk_.space.sent);
    }

    // Completes the last block of 64 values; its end.
    __device__ int64_t pad_block(int64_t kept) const {
        const int64_t end = (kept + kSparseBlock - 1) / kSparseBlock * kSparseBlock;
        const int64_t number = kept + threadIdx.x;
        if (number < end) {
            positions()[number] = -1;
            staged()[number] = 0;
        }
        return end;
    }

    // Integers of the blocks of 64 values that [start, end) completes. One that reaches into other
    // tiles is made by the tile whose values come last.
    __device__ void quantise(int64_t start, int64_t end) const {
        auto* const there =
            reinterpret_cast<unsigned long long*>(chunk_.workspace + chunk_.space.blocks);
        for (int64_t block = start / kSparseBlock + threadIdx.x / kWarpThreads;
             start < end && block * kSparseBlock < end; block += kThreads / kWarpThreads) {
            const int64_t first = block * kSparseBlock;
            const int64_t from = first < start ? start : first;
            const int64_t to = first + kSparseBlock < end ? first + kSparseBlock : end;
            if (to - from < kSparseBlock) {
                int complete = 0;
                if (lane_number() == 0) {
                    const auto brought = static_cast<unsigned>(to - from);
                    __threadfence();
                    complete =
                        count_up(there + block, args_.nonce, brought) + brought == kSparseBlock;
                    if (complete != 0) {
                        __threadfence();
                        __stcg(there + block, 0ull);
                    }
                }
                if (__shfl_sync(kAllLanes, complete, 0) == 0) {
                    continue;
                }
            }
            make_block(block);
        }
    }

    __device__ void make_block(int64_t block) const {
        const int64_t number = block * kSparseBlock + lane_number() * 2;
        float p[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            p[k] = load_fresh(staged() + number + k);
        }
        const bool good = put_block(plan_, chunk_.output, block, p);
        if (chunk_.residual != nullptr) {
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                const int64_t at = load_fresh(positions() + number + k);
                if (at >= 0 && (good || is_finite(p[k]))) {
                    chunk_.residual[at] = p[k];
                }
            }
        }
    }

    const ChosenArgs& args_;
    const ChosenChunk<Element>& chunk_;
    const SparsePlan& plan_;
    ChosenShared& shared_;
};

}  // namespace
}  // namespace slimwire
