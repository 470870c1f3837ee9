// Random bytes of stochastic rounding in kernels. Which value draws which byte: FORMAT.md, "Random
// numbers". A group of sixteen values takes one run of the generator, but a thread works on eight
// neighbours; so the two threads of a group each run it for one of two spans, and swap halves.
#pragma once

#include "codecs/args.h"
#include "codecs/gpu/elements.cuh"
#include "codecs/gpu/work.cuh"
#include "codecs/threefry.h"

namespace slimwire {
namespace {

__host__ __device__ inline bool draws(const CodecParams& params) {
    return params.rounding == static_cast<uint8_t>(Rounding::kStochastic);
}

// Thread blocks that must fit a multiprocessor: the generator needs registers of its own.
constexpr int resident_blocks(bool stochastic) {
    return stochastic && kResidentBlocks > 3 ? 3 : kResidentBlocks;
}

struct DeviceRandom {
    RandomWords key;
    uint32_t step;

    // Reads the step word, so only while the kernel runs.
    __device__ static __forceinline__ DeviceRandom of(const RandomKey& random,
                                                      RandomPurpose purpose) {
        const uint32_t steps = random.step_ptr != nullptr ? *random.step_ptr : 0;
        return {{{random.seed, random.tensor, random.rank, static_cast<uint32_t>(purpose)}},
                random.step + steps};
    }
};

// The bytes of eight neighbours, the first one's lowest.
struct EightBytes {
    uint32_t v[2];

    // Twice the byte of value k, plus 1.
    __device__ __forceinline__ uint32_t drawn(int k) const {
        return (v[k / 4] >> (8 * (k % 4)) & 0xFF) * 2 + 1;
    }
};
// `first` for values begin + 8 * lane, ..., `second` for begin + 256 + 8 * lane, ... of chunk
// `chunk`; begin is a multiple of 16. A whole warp calls it.
__device__ __forceinline__ void draw_twice_eight(const DeviceRandom& random,
                                                 int64_t begin,
                                                 uint32_t chunk,
                                                 EightBytes& first,
                                                 EightBytes& second) {
    const unsigned lane = threadIdx.x % kWarpThreads;
    const bool odd = lane % 2 != 0;
    const uint64_t group =
        static_cast<uint64_t>(begin + (odd ? kWarpElems : 0)) / kRandomGroup + lane / 2;
    uint32_t x[4] = {static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32), chunk,
                     random.step};
    threefry(x, random.key);
    const uint32_t theirs[2] = {__shfl_xor_sync(0xFFFFFFFFu, odd ? x[0] : x[2], 1),
                                __shfl_xor_sync(0xFFFFFFFFu, odd ? x[1] : x[3], 1)};
    first = {{odd ? theirs[0] : x[0], odd ? theirs[1] : x[1]}};
    second = {{odd ? x[2] : theirs[0], odd ? x[3] : theirs[1]}};
}

}  // namespace
}  // namespace slimwire
