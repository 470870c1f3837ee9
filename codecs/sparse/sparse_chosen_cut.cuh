// How topk finds its cut: the magnitude of the smallest element sent, digit by digit from the top.
// A sample guesses a magnitude that enough elements reach; one reading of the input counts the
// first digit of those that do and lists them; the other digits are counted in the lists. Counts do
// not depend on the order of threads, so neither does the cut. Where the guess was too high, a list
// has no room or the chunk is small, the elements themselves are read again.
#pragma once

#include "codecs/sparse/sparse_chosen_marks.cuh"
#include "codecs/sparse/sparse_chosen_space.cuh"

namespace slimwire {
namespace {

template <class Source>
class CutSearch {
  public:
    __device__ CutSearch(const ChosenArgs& args,
                         const SourcedChunk<Source>& chunk,
                         ChosenShared& shared)
        : args_(args), chunk_(chunk), plan_(chunk.plan), shared_(shared) {}

    // Of a thread block: it has counted nothing.
    __device__ void begin() const {
        for (int i = static_cast<int>(threadIdx.x); i < kDigits; i += kThreads) {
            shared_.digits[i] = 0;
        }
    }

    // Of a chunk: nothing is counted; the guess.
    __device__ void prepare() const {
        ChosenState& state = chunk_.state();
        for (int i = static_cast<int>(threadIdx.x); i < kDigits; i += kThreads) {
            __stcg(&state.digits[i], 0ull);
        }
        if (threadIdx.x == 0) {
            state.low = 0;
            state.high = kMagnitudeMask + 1;
            state.wanted = static_cast<uint32_t>(plan_.capacity);
            state.shift = 20;
            state.at_least = 0;
            shared_.guess = 0;
        }
        if (chunk_.space.room > 0) {
            sample();
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            state.guess = shared_.guess;
        }
        end_round(kPrepare + 1);
    }

    // Counts the first digit of a part's elements that are not below the guess, and lists them.
    __device__ void filter(int64_t part) const {
        const bool lists = shared_.guess > 0;
        if (threadIdx.x == 0) {
            shared_.listed = 0;
        }
        __syncthreads();
        uint32_t* const list = list_of(part);
        uint32_t small = 0;  // counted here: where most are, threads would wait for one another
        read_marked(chunk_.source, shared_.guess, shared_.least16,
                    part * kPartElems + int64_t{threadIdx.x} * kPerThread, kThreads * kPerThread,
                    kReads, [&](int, uint32_t mask, auto get) {
                        const unsigned holders = __ballot_sync(kAllLanes, mask != 0);
                        if (holders == 0) {
                            return;
                        }
                        int64_t at = lists ? append(static_cast<uint32_t>(__popc(mask))) : 0;
                        const Eight p = get();
#pragma unroll
                        for (int k = 0; k < kPerThread; ++k) {
                            if ((mask >> k & 1) != 0) {
                                const uint32_t digit = order_of(p.v[k]) >> 20;
                                if (digit == 0) {
                                    ++small;
                                } else {
                                    atomicAdd(&shared_.digits[digit], 1u);
                                }
                                if (lists && at < chunk_.space.room) {
                                    list[at++] = order_of(p.v[k]);
                                }
                            }
                        }
                    });
        if (small > 0) {
            atomicAdd(&shared_.digits[0], small);
        }
        __syncthreads();
        if (threadIdx.x == 0 && chunk_.space.room > 0) {
            counts()[part] = lists ? shared_.listed : 0xFFFFFFFFu;
        }
    }

    // Counts a digit of what lies in [low, high): of a part with a list by one warp, of the others
    // by all of the block.
    __device__ void refine(int64_t share) const {
        const int64_t parts = ChosenSpace::parts(plan_);
        const bool lists = chunk_.space.room > 0 && shared_.low >= shared_.guess;
        const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
        const auto count = [&](uint32_t order) {
            if (order >= shared_.low && order < shared_.high) {
                atomicAdd(&shared_.digits[(order - shared_.low) >> shared_.shift], 1u);
            }
        };
        int turn = 0;
        for (int64_t part = share; part < parts; part += args_.tickets[kRefine], ++turn) {
            const int64_t listed = lists ? load_fresh(counts() + part) : chunk_.space.room + 1;
            if (listed <= chunk_.space.room) {
                if (turn % (kThreads / kWarpThreads) == warp) {
                    for (int64_t i = lane_number(); i < listed; i += kWarpThreads) {
                        count(load_fresh(list_of(part) + i));
                    }
                }
                continue;
            }
            read_marked(chunk_.source, shared_.low, shared_.least16,
                        part * kPartElems + int64_t{threadIdx.x} * kPerThread,
                        kThreads * kPerThread, kReads, [&](int, uint32_t mask, auto get) {
                            if (mask != 0) {
                                const Eight p = get();
#pragma unroll
                                for (int k = 0; k < kPerThread; ++k) {
                                    if ((mask >> k & 1) != 0) {
                                        count(order_of(p.v[k]));
                                    }
                                }
                            }
                        });
        }
    }

    // Adds what this thread block counted to the chunk's; whoever does `tickets` of them as the
    // last of the round settles the digit.
    __device__ void hand_over(int round, unsigned tickets) const {
        ChosenState& state = chunk_.state();
        __syncthreads();
        for (int i = static_cast<int>(threadIdx.x); i < kDigits; i += kThreads) {
            if (shared_.digits[i] != 0) {
                atomicAdd(&state.digits[i], static_cast<unsigned long long>(shared_.digits[i]));
                shared_.digits[i] = 0;
            }
        }
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            shared_.last = count_up(&state.done[round], args_.nonce, tickets) + tickets ==
                           args_.tickets[round];
        }
        __syncthreads();
        if (shared_.last) {
            __threadfence();
            settle(round);
        }
        __syncthreads();
    }

    // Waits until `round` rounds are over, and fetches the cut as it is then.
    __device__ void wait(int round) const {
        ChosenState& state = chunk_.state();
        __syncthreads();
        if (threadIdx.x == 0) {
            unsigned long long over = load_fresh(&state.round);
            while ((over & ~kNonceCount) != args_.nonce ||
                   (over & kNonceCount) < static_cast<uint64_t>(round)) {
                __nanosleep(100);
                over = load_fresh(&state.round);
            }
            __threadfence();
            shared_.over = static_cast<int>(over & kNonceCount);
            shared_.low = load_fresh(&state.low);
            shared_.high = load_fresh(&state.high);
            shared_.wanted = load_fresh(&state.wanted);
            shared_.guess = load_fresh(&state.guess);
            shared_.shift = load_fresh(&state.shift);
            shared_.least16 = raw_limit(chunk_.source, args_.as_is,
                                        round == kFilter ? shared_.guess : shared_.low);
        }
        __syncthreads();
    }

  private:
    static constexpr int kDigitsEach = kDigits / kThreads;
    static constexpr int kReads = kPartElems / (kThreads * kPerThread);  // of a thread, of a part

    __device__ uint32_t* counts() const {
        return reinterpret_cast<uint32_t*>(chunk_.workspace + chunk_.space.counts);
    }
    __device__ uint32_t* list_of(int64_t part) const {
        return reinterpret_cast<uint32_t*>(chunk_.workspace + chunk_.space.lists) +
               part * chunk_.space.room;
    }

    // Where a lane's `count` candidates go in the part's list.
    __device__ int64_t append(uint32_t count) const {
        const uint32_t before = sum_before(count);
        uint32_t at = 0;
        if (lane_number() == kWarpThreads - 1) {
            at = atomicAdd(&shared_.listed, before + count);
        }
        return int64_t{__shfl_sync(kAllLanes, at, kWarpThreads - 1)} + before;
    }

    // The digit, from the largest down, at which `wanted` of `count(digit)` are reached; calls
    // take(digit, number above it, its number) in one thread, if any. All that are counted come
    // back.
    template <class Count, class Take>
    __device__ uint64_t reach(uint64_t wanted, Count count, Take take) const {
        const int first = kDigits - 1 - static_cast<int>(threadIdx.x) * kDigitsEach;
        uint64_t counts[kDigitsEach];
        uint64_t own = 0;
#pragma unroll
        for (int j = 0; j < kDigitsEach; ++j) {
            counts[j] = count(first - j);
            own += counts[j];
        }
        uint64_t total = 0;
        uint64_t above = scan_block(shared_.wide_sums, own, &total);
        if (above < wanted && above + own >= wanted) {
#pragma unroll
            for (int j = 0; j < kDigitsEach; ++j) {
                if (above < wanted && above + counts[j] >= wanted) {
                    take(first - j, above, counts[j]);
                    above = wanted;
                } else {
                    above += counts[j];
                }
            }
        }
        return total;
    }

    // Eights at equal distances. The guess is the first digit that a quarter more of their elements
    // reach than belong to those wanted, and 16.
    __device__ void sample() const {
        const int64_t step = plan_.count / kSampleEights / kPerThread * kPerThread;
        __syncthreads();
#pragma unroll
        for (int j = 0; j < kSampleEights / kThreads; ++j) {
            Eight p;
            chunk_.source.eight((j * kThreads + static_cast<int>(threadIdx.x)) * step, p);
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                atomicAdd(&shared_.digits[order_of(p.v[k]) >> 20], 1u);
            }
        }
        __syncthreads();
        const int64_t share = kSampleEights * kPerThread * plan_.capacity / plan_.count;
        reach(
            static_cast<uint64_t>(share + share / 4 + 16),
            [&](int digit) { return uint64_t{shared_.digits[digit]}; },
            [&](int digit, uint64_t, uint64_t) {
                shared_.guess = static_cast<uint32_t>(digit) << 20;
            });
        __syncthreads();
        for (int i = static_cast<int>(threadIdx.x); i < kDigits; i += kThreads) {
            shared_.digits[i] = 0;
        }
    }

    // All of a round are counted: the digit. Without enough of them the guess was too high, and the
    // same digit is counted again without it.
    __device__ void settle(int round) const {
        ChosenState& state = chunk_.state();
        const uint32_t wanted = load_fresh(&state.wanted);
        const int shift = load_fresh(&state.shift);
        const uint32_t low = load_fresh(&state.low);
        bool final = false;
        if (threadIdx.x == 0) {
            // Over after the last round in any case, so that nobody waits for ever where somebody
            // writes the input meanwhile and counts do not match.
            int over = round + 1;
            while (over < kSend && args_.tickets[over] == 0) {
                ++over;
            }
            shared_.over = over;
        }
        __syncthreads();
        reach(
            wanted, [&](int digit) { return uint64_t{load_fresh(&state.digits[digit])}; },
            [&](int digit, uint64_t above, uint64_t count) {
                final = shift == 0 || (shift == 9 && args_.as_is);
                state.low = low + (static_cast<uint32_t>(digit) << shift);
                state.high = state.low + (1u << shift);
                state.at_least = static_cast<uint64_t>(plan_.capacity) - wanted + above + count;
                state.wanted = wanted - static_cast<uint32_t>(above);
                state.shift = shift == 20 ? 9 : 0;
                if (final) {
                    shared_.over = kSend;
                }
            });
        for (int i = static_cast<int>(threadIdx.x); i < kDigits; i += kThreads) {
            __stcg(&state.digits[i], 0ull);
        }
        __threadfence();
        __syncthreads();
        end_round(shared_.over);
    }

    __device__ void end_round(int over) const {
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            __stcg(&chunk_.state().round,
                   static_cast<unsigned long long>(args_.nonce + static_cast<uint64_t>(over)));
        }
    }

    const ChosenArgs& args_;
    const SourcedChunk<Source>& chunk_;
    const SparsePlan& plan_;
    ChosenShared& shared_;
};

}  // namespace
}  // namespace slimwire
