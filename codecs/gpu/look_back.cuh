// How the thread blocks of one launch follow one another without waiting for a launch's end:
// tickets for tiles, decoupled look-back over the tiles before, a sum over the threads of a block.
// Shared by the encoders of topk and threshold.
//
// A thread block takes tickets, so whoever holds one can rely on all lower tickets being held by
// blocks that run. It may wait for those, never for higher ones: then the lowest ticket that is not
// done never waits, whatever the number of blocks that run at once.
#pragma once

#include "codecs/gpu/work.cuh"
#include "codecs/look_back.h"

namespace slimwire {
namespace {

// What other thread blocks of this launch write, read anew each time. __ldcv and __ldcg are no
// volatile assembly: nvcc moves them out of a loop that waits, and before a fence.
template <class T>
__device__ __forceinline__ T load_fresh(const T* at) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    T value;
#ifdef SLIMWIRE_CUDA_ON_HOST
    value = __ldcv(at);
#else
    if constexpr (sizeof(T) == 8) {
        unsigned long long bits = 0;
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(bits) : "l"(at) : "memory");
        memcpy(&value, &bits, sizeof(T));
    } else {
        unsigned bits = 0;
        asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(bits) : "l"(at) : "memory");
        memcpy(&value, &bits, sizeof(T));
    }
#endif
    return value;
}

// Adds `by` to a counter that counts from 0 under `nonce`, whatever it held before; returns what it
// was.
__device__ __forceinline__ int64_t count_up(unsigned long long* counter,
                                            uint64_t nonce,
                                            unsigned by = 1) {
    unsigned long long seen = load_fresh(counter);
    while ((seen & ~kNonceCount) != nonce) {
        const unsigned long long before = atomicCAS(counter, seen, nonce);
        seen = before == seen ? nonce : before;
    }
    return static_cast<int64_t>(atomicAdd(counter, static_cast<unsigned long long>(by)) &
                                kNonceCount);
}

// A thread block's tickets, one ahead: the next is on its way while work is done for one.
class Tickets {
  public:
    __device__ Tickets(unsigned long long* counter, uint64_t nonce) : counter_(counter) {
        if (threadIdx.x == 0) {
            next_ = count_up(counter, nonce);
        }
    }
    // Of thread 0: what it holds, and takes another.
    __device__ int64_t take() {
        const int64_t taken = next_;
        next_ = static_cast<int64_t>(atomicAdd(counter_, 1ull) & kNonceCount);
        return taken;
    }
    // Of thread 0: what take() will return.
    __device__ int64_t next() const { return next_; }

  private:
    unsigned long long* counter_;
    int64_t next_ = 0;
};

// --- Look-back

enum class LookBack : uint32_t { kNothing = 0, kOwn = 1, kWhole = 2 };

__device__ __forceinline__ void publish(LookBackState* state,
                                        uint64_t nonce,
                                        LookBack kind,
                                        uint64_t value) {
    constexpr uint64_t kPart = (uint64_t{1} << kLookBackPartBits) - 1;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        __stcg(&state->words[i], static_cast<unsigned long long>(
                                     nonce | static_cast<uint64_t>(kind) << kLookBackPartBits |
                                     (value >> (kLookBackPartBits * i) & kPart)));
    }
}

// What a tile has published; kNothing also where its words are being replaced.
__device__ __forceinline__ LookBack published(const LookBackState* state,
                                              uint64_t nonce,
                                              uint64_t* value) {
    constexpr uint64_t kPart = (uint64_t{1} << kLookBackPartBits) - 1;
    uint64_t word[3];
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        word[i] = load_fresh(&state->words[i]);
    }
    const uint64_t first = word[0] & ~kPart;
    if ((word[0] & ~kNonceCount) != nonce || (word[1] & ~kPart) != first ||
        (word[2] & ~kPart) != first) {
        return LookBack::kNothing;
    }
    *value = (word[0] & kPart) | (word[1] & kPart) << kLookBackPartBits |
             (word[2] & kPart) << (2 * kLookBackPartBits);
    return static_cast<LookBack>((first & kNonceCount) >> kLookBackPartBits);
}

struct Plus {
    __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
};

// Publishes `value` of tile `tile` and returns the sum of those before it, as `add` sums (it is
// associative and commutative, and 0 changes nothing). Called by one whole warp with the tile's
// ticket; the tiles before have lower tickets.
template <class Add>
__device__ __forceinline__ uint64_t
look_back(LookBackState* states, int64_t tile, uint64_t value, uint64_t nonce, Add add) {
    constexpr unsigned kAll = 0xFFFFFFFFu;
    constexpr int kEach = 2;  // states that a lane reads at a time
    const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    if (lane == 0 && tile > 0) {
        publish(states + tile, nonce, LookBack::kOwn, value);
    }
    uint64_t sum = 0;
    bool ends = tile == 0;
    for (int64_t nearest = tile - 1; !ends; nearest -= kEach * kWarpThreads) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
            const int64_t behind = nearest - j * kWarpThreads - lane;
            uint64_t read = 0;
            LookBack kind = LookBack::kWhole;  // nothing lies before the first
            if (!ends && behind >= 0) {
                do {
                    kind = published(states + behind, nonce, &read);
                } while (kind == LookBack::kNothing);
            }
            const unsigned wholes = __ballot_sync(kAll, kind == LookBack::kWhole);
            if (ends || (wholes != 0 && lane >= __ffs(static_cast<int>(wholes)))) {
                read = 0;
            }
#pragma unroll
            for (int by = kWarpThreads / 2; by > 0; by /= 2) {
                read = add(read, __shfl_xor_sync(kAll, read, by));
            }
            sum = add(sum, read);
            ends = ends || wholes != 0;
        }
    }
    if (lane == 0) {
        publish(states + tile, nonce, LookBack::kWhole, add(sum, value));
    }
    return sum;
}

// Waits for what look_back() publishes of a tile: the sum up to and with it.
__device__ __forceinline__ uint64_t sum_up_to(const LookBackState* state, uint64_t nonce) {
    uint64_t value = 0;
    while (published(state, nonce, &value) != LookBack::kWhole) {
        __nanosleep(64);
    }
    return value;
}

// Nothing is published any more; by `threads` threads of which this is number `t`. A replayed graph
// has the same nonce again.
__device__ __forceinline__ void forget(LookBackState* states,
                                       int64_t count,
                                       int64_t t,
                                       int64_t threads) {
    auto* const words = reinterpret_cast<unsigned long long*>(states);
    for (int64_t i = t; i < 3 * count; i += threads) {
        words[i] = 0;
    }
}

// --- Sums over the threads of a block

// Exclusive sum of `value` over the threads of the block, and the sum of all. `sums`: shared, one
// for each warp.
template <class T>
__device__ __forceinline__ T scan_block(T* sums, T value, T* total) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
    T inclusive = value;
#pragma unroll
    for (int by = 1; by < kWarpThreads; by *= 2) {
        const T other = __shfl_up_sync(0xFFFFFFFFu, inclusive, static_cast<unsigned>(by));
        inclusive += lane >= by ? other : 0;
    }
    if (lane == kWarpThreads - 1) {
        sums[warp] = inclusive;
    }
    __syncthreads();
    T before = 0;
    T all = 0;
#pragma unroll
    for (int i = 0; i < kThreads / kWarpThreads; ++i) {
        before += i < warp ? sums[i] : 0;
        all += sums[i];
    }
    __syncthreads();
    *total = all;
    return before + inclusive - value;
}

}  // namespace
}  // namespace slimwire
