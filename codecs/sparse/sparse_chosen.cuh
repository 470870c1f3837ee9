// Kernels of topk and threshold. Any message is encoded by one launch: thread blocks take tickets,
// round by round (codecs/gpu/look_back.cuh says why they may wait for lower ones).
//
//   threshold     tiles: read, look back, write                                      1 read
//   topk          guess from a sample; count and list what reaches it; refine in     2 reads
//                 the lists, digit by digit; tiles as above
//
// Also looked for are the exact thresholds of threshold_control.h, by the rounds of topk without
// tiles.
//
// Rooms: sparse_chosen_space.cuh (what thread blocks share), _marks (reading), _cut (rounds of
// topk), _send and _positions (tiles), _decode.
#pragma once

#include "codecs/sparse/sparse_chosen_cut.cuh"
#include "codecs/sparse/sparse_chosen_decode.cuh"
#include "codecs/sparse/sparse_chosen_send.cuh"

namespace slimwire {
namespace {

// The thread block's next ticket to shared.chunk, .round and .item. Tickets count round by round,
// within a round chunk by chunk.
__device__ __forceinline__ void take_ticket(const ChosenArgs& args,
                                            Tickets& tickets,
                                            ChosenShared& shared) {
    __syncthreads();
    if (threadIdx.x == 0) {
        int64_t ticket = tickets.take();
        int round = 0;
        while (round < kChosenRounds && ticket >= args.work.chunks * args.tickets[round]) {
            ticket -= args.work.chunks * args.tickets[round++];
        }
        shared.chunk = -1;
        if (round < kChosenRounds) {
            const int64_t of_chunk = args.tickets[round];
            shared.chunk = args.work.chunks == 1 ? 0 : ticket / of_chunk;
            shared.item = ticket - shared.chunk * of_chunk;
        }
        shared.round = round;
    }
    __syncthreads();
}

// The cut of a threshold, which nobody has to look for.
template <class Element>
__device__ __forceinline__ void take_threshold(const ChosenArgs& args,
                                               const ChosenChunk<Element>& chunk,
                                               int64_t number,
                                               ChosenShared& shared) {
    if (threadIdx.x == 0) {
        shared.low = chunk.plan.threshold;
        if (args.encode.threshold_ptr != nullptr) {
            const float t = args.encode.threshold_ptr[number * args.encode.threshold_stride];
            shared.low = t > 0 ? __float_as_uint(t) : 0;
        }
        shared.wanted = 0xFFFFFFFFu;  // no ties are turned away
        shared.least16 = raw_limit(chunk.source, args.as_is, shared.low);
    }
    __syncthreads();
}

// By all threads of the block.
template <class Source>
__device__ __forceinline__ void enter_chunk(const ChosenArgs& args,
                                            SourcedChunk<Source>& chunk,
                                            int64_t number,
                                            float factor) {
    __syncthreads();
    if (threadIdx.x == 0) {
        chunk.set(args, number, factor);
    }
    __syncthreads();
}

// The chunks whose ends this thread block has a part in: the blocks are dealt out to them.
template <class Body>
__device__ __forceinline__ void deal_chunks(int64_t chunks, Body body) {
    const int64_t blocks = gridDim.x;
    if (chunks > blocks) {
        for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += blocks) {
            body(chunk, 0, 1);
        }
        return;
    }
    const int64_t chunk = blockIdx.x % chunks;
    body(chunk, blockIdx.x / chunks, (blocks - 1 - chunk) / chunks + 1);
}

// What only the last thread block may do: the words that all tiles have a say in, and a workspace
// in which a replayed graph finds nothing.
template <ChosenTask kTask, class Source>
__device__ __forceinline__ void close_chunks(const ChosenArgs& args,
                                             SourcedChunk<Source>& chunk,
                                             float factor) {
    constexpr bool kTop = kTask == ChosenTask::kTopK;
    for (int64_t number = 0; number < args.work.chunks; ++number) {
        enter_chunk(args, chunk, number, factor);
        ChosenState& state = chunk.state();
        if constexpr (kTask != ChosenTask::kAdapt) {
            forget(chunk.states(), ChosenSpace::tiles(chunk.plan), threadIdx.x, kThreads);
        }
        if (kTask == ChosenTask::kAdapt && threadIdx.x == 0) {
            ThresholdChunk& chunk = threshold_chunks(args.thresholds)[number];
            const int64_t target = args.work.plan(number).capacity;
            const bool exact = finds_exact(*args.thresholds, args.encode.params.refresh);
            const ThresholdSample sample = threshold_sample(args.work.plan(number).count, target);
            chunk.target = static_cast<uint32_t>(target);
            if (exact || !threshold_stays(sample, chunk.reach)) {
                chunk.threshold = found_threshold(chunk.threshold, load_fresh(&state.low));
                args.thresholds->moved += exact ? 0 : 1;
            }
            state.round = 0;
        } else if (threadIdx.x == 0) {
            const bool lost = !kTop && load_fresh(&state.lost) == args.nonce + 1;
            chunk.header()[3] =
                static_cast<uint32_t>(chunk.plan.form) | (lost ? kFlagNonFinite : 0);
            state.lost = 0;
            state.round = 0;
        }
        if (threadIdx.x < kSend) {
            state.done[threadIdx.x] = 0;
        }
    }
    if (threadIdx.x < kLookBackCounters) {
        static_cast<unsigned long long*>(args.encode.workspace)[threadIdx.x] = 0;
    }
}

// Whether some chunk needs another threshold (threshold_control.h).
__device__ __forceinline__ bool any_moves(const ChosenArgs& args) {
    if (finds_exact(*args.thresholds, args.encode.params.refresh)) {
        return true;
    }
    for (int64_t number = 0; number < args.work.chunks; ++number) {
        const SparsePlan& plan = args.work.plan(number);
        if (!threshold_stays(threshold_sample(plan.count, plan.capacity),
                             threshold_chunks(args.thresholds)[number].reach)) {
            return true;
        }
    }
    return false;
}

template <class Element, ChosenTask kTask>
__global__ void __launch_bounds__(kThreads,
                                  kTask == ChosenTask::kAdapt ? kResidentBlocks - 1 : kChosenBlocks)
    chosen_kernel(ChosenArgs args) {
    constexpr bool kTop = kTask != ChosenTask::kThreshold;  // the cut is to be found
    if (kTask == ChosenTask::kAdapt && !any_moves(args)) {
        return;
    }
    using Source = std::conditional_t<kTask == ChosenTask::kAdapt, SampledSource<Element>,
                                      WholeSource<Element>>;
    __shared__ ChosenShared shared;
    __shared__ SourcedChunk<Source> chunk;
    auto* const counters = static_cast<unsigned long long*>(args.encode.workspace);
    Tickets tickets(counters, args.nonce);
    const float factor = encode_factor<Element>(args.encode);
    const CutSearch<Source> search(args, chunk, shared);
    const auto sender = [&](const auto& of) { return TileSender<Element, kTop>(args, of, shared); };
    int64_t entered = -1;  // chunk
    bool known = false;    // its cut
    const auto enter = [&](int64_t number) {
        if (number != entered) {
            enter_chunk(args, chunk, number, factor);
            entered = number;
            known = false;
        }
    };
    const auto know_cut = [&] {
        if (!known) {
            if constexpr (kTop) {
                search.wait(kSend);
            } else {
                take_threshold(args, chunk, entered, shared);
            }
            known = true;
        }
    };
    if (kTop) {
        search.begin();
    }
    unsigned pending = 0;  // tickets of one chunk and round that were counted for
    int pending_round = 0;
    for (;;) {
        take_ticket(args, tickets, shared);
        const int64_t number = shared.chunk;
        const int round = shared.round;
        const int64_t item = shared.item;
        if (kTop && pending > 0 &&
            (number != entered || round != pending_round || pending >= args.most_pending)) {
            search.hand_over(pending_round, pending);
            pending = 0;
        }
        if (number < 0) {
            break;
        }
        enter(number);
        if constexpr (kTask != ChosenTask::kAdapt) {
            if (round == kSend) {
                know_cut();
                if (item < ChosenSpace::tiles(chunk.plan)) {
                    sender(chunk).send(item, tickets);
                }
                continue;
            }
        }
        if constexpr (kTop) {
            if (round == kPrepare) {
                search.prepare();
                continue;
            }
            if (pending == 0) {
                search.wait(round);
                if (shared.over > round) {  // the cut is final
                    continue;
                }
            }
            if (round == kFilter) {
                if (item < ChosenSpace::parts(chunk.plan)) {
                    search.filter(item);
                }
            } else {
                search.refine(item);
            }
            ++pending;
            pending_round = round;
        }
    }
    if constexpr (kTask != ChosenTask::kAdapt) {
        deal_chunks(args.work.chunks, [&](int64_t number, int64_t worker, int64_t workers) {
            enter(number);
            know_cut();
            sender(chunk).finish(worker, workers);
        });
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        shared.last = count_up(counters + 1, args.nonce) + 1 == int64_t{gridDim.x};
    }
    __syncthreads();
    if (shared.last) {
        __threadfence();
        close_chunks<kTask>(args, chunk, factor);
    }
}

// What a launch of the task is told; `nonce`: of next_nonce(), or that of a launch that has ended.
inline ChosenArgs chosen_args(ChosenTask task,
                              const EncodeArgs& args,
                              const SparseWork& work,
                              uint64_t nonce) {
    ChosenArgs chosen = {};
    chosen.encode = args;
    chosen.work = work;
    const SparsePlan& plan = chosen.work.full;
    chosen.space = ChosenSpace::of(plan);
    chosen.last_space = ChosenSpace::of(chosen.work.last);
    chosen.nonce = nonce;
    chosen.as_is = dtype_bytes(args.dtype) == 2 && args.residual == nullptr && args.scale == 1.0f &&
                   args.scale_ptr == nullptr;
    if (task != ChosenTask::kThreshold) {
        const int64_t parts = ChosenSpace::parts(plan);
        const int64_t sharers = parts < kMostSharers ? parts : kMostSharers;
        chosen.tickets[kPrepare] = 1;
        chosen.tickets[kFilter] = parts;
        chosen.tickets[kRefine] = sharers;
        chosen.tickets[kRefine + 1] = sharers;
        chosen.tickets[kRefine + 2] = chosen.as_is ? 0 : sharers;
        const int64_t elems = (parts + sharers - 1) / sharers * kPartElems;
        chosen.most_pending =
            static_cast<unsigned>(elems < kMostCounted ? kMostCounted / elems : 1);
    }
    chosen.tickets[kSend] = task == ChosenTask::kAdapt ? 0 : ChosenSpace::tiles(plan);
    return chosen;
}

template <ChosenTask kTask>
cudaError_t launch_task(ChosenArgs& chosen, cudaStream_t stream) {
    int64_t tickets = 0;
    for (int round = 0; round < kChosenRounds; ++round) {
        chosen.first_tile = tickets;
        tickets += chosen.work.chunks * chosen.tickets[round];
    }
    int processors = 0;
    const cudaError_t error = processor_count(&processors);
    if (error != cudaSuccess) {
        return error;
    }
    const int32_t max_blocks = chosen.encode.max_blocks;
    const int64_t most = max_blocks > 0 ? max_blocks : int64_t{processors} * kChosenBlocks;
    const int64_t useful =
        chosen.work.chunks * chosen.tickets[kTask == ChosenTask::kAdapt ? kFilter : kSend];
    const int64_t blocks = useful < most ? useful : most;
    // A block takes one ticket more than there are, and one ahead.
    if (tickets + 2 * blocks > static_cast<int64_t>(kNonceCount)) {
        return cudaErrorInvalidValue;
    }
    return visit(chosen.encode.dtype, [&](auto element) {
        return start_kernel(chosen_kernel<decltype(element), kTask>, static_cast<unsigned>(blocks),
                            kThreads, 0, stream, chosen);
    });
}

// One launch.
template <SparseKind kKind>
cudaError_t launch_chosen(const EncodeArgs& args, uint64_t nonce, cudaStream_t stream) {
    constexpr ChosenTask kTask =
        kKind == SparseKind::kTopK ? ChosenTask::kTopK : ChosenTask::kThreshold;
    ChosenArgs chosen =
        chosen_args(kTask, args, SparseWork::of(kKind, args, args.chunk_elems), nonce);
    return launch_task<kTask>(chosen, stream);
}

}  // namespace

template <SparseKind kKind>
struct SparseKernels {
    static cudaError_t encode(const EncodeArgs& args, cudaStream_t stream) {
        return args.workspace == nullptr ? cudaErrorInvalidValue
                                         : launch_chosen<kKind>(args, next_nonce(), stream);
    }

    static cudaError_t decode(const DecodeArgs& args, cudaStream_t stream) {
        const SparseWork work = SparseWork::of(kKind, args, args.chunk_elems);
        const int64_t units = work.chunks * ((work.chunk_elems + kSparseWide - 1) / kSparseWide);
        return visit(args.dtype, [&](auto element) {
            return launch_threads(chosen_decode_kernel<decltype(element)>, units * kThreads,
                                  args.max_blocks, stream, ChosenDecodeArgs{args, work});
        });
    }
};

template <SparseKind kKind>
int64_t SparseCuda<kKind>::workspace_bytes(const CodecParams& params,
                                           DType dtype,
                                           int64_t count,
                                           int64_t chunk_elems) {
    if (count <= 0) {
        return 0;
    }
    const int64_t elems = chunk_elems < count ? chunk_elems : count;
    const int64_t chunks = (count + elems - 1) / elems;
    return 8 * kLookBackCounters +
           chunks * ChosenSpace::of(sparse_plan(kKind, params, dtype, elems)).bytes;
}

}  // namespace slimwire
