// Arguments and state of the operations of aim.h: plain data, as args.h; and the arithmetic that
// host bodies and kernels share.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/args.h"
#include "codecs/numeric.h"

namespace slimwire {

// Of a run: what one EncodeArgs encodes.
struct AimRun {
    uint32_t encodings;  // so far
    uint32_t since;      // the last with exact thresholds
    uint32_t exact;      // so far with exact ones
    uint32_t moved;      // thresholds so far that a sample moved
    // Of all encodings and chunks so far.
    unsigned long long survivors;
    unsigned long long wanted;
};
// Of each of its chunks, behind it.
struct AimChunk {
    float threshold;
    uint32_t reach;      // of the sample, not below the threshold; 0 between encodings
    uint32_t survivors;  // of the last encoding
    uint32_t target;     // survivors that are wanted
};

struct AimArgs {
    EncodeArgs encode;  // of codec threshold; kSettle: that was done
    AimRun* state;      // aim_state_bytes() of device memory, 16-byte aligned
};

#ifdef __CUDACC__
#define SLIMWIRE_AIM __host__ __device__ inline
#else
#define SLIMWIRE_AIM inline
#endif

SLIMWIRE_AIM AimChunk* aim_chunks(AimRun* run) {
    return reinterpret_cast<AimChunk*>(run + 1);
}

// Survivors that are wanted of an encoding with room for `capacity` values: up to a quarter more
// still find room.
SLIMWIRE_AIM int64_t aim_target(int64_t capacity) {
    return capacity < 5 ? capacity : capacity / 5 * 4 + capacity % 5 * 4 / 5;
}

// Whether the next encoding has exact thresholds.
SLIMWIRE_AIM bool aim_exact(const AimRun& run, uint32_t refresh) {
    return run.encodings == 0 || run.since + 1 >= refresh;
}

// The elements by which a threshold is judged and moved: groups of 16 at equal distances, so many
// that about 256 of them should survive; or all, where these would be half of them.
constexpr int64_t kAimGroup = 16;
struct AimSample {
    int64_t elems;
    int64_t stride;  // from one group to the next, elements
    int64_t wanted;  // survivors among them
};
SLIMWIRE_AIM AimSample aim_sample(int64_t count, int64_t target) {
    const int64_t groups = (256 * (count / target) + kAimGroup - 1) / kAimGroup;
    if (2 * groups * kAimGroup > count) {
        return {count, kAimGroup, target};
    }
    const int64_t elems = groups * kAimGroup;
    const auto wanted = static_cast<int64_t>(
        static_cast<double>(elems) * static_cast<double>(target) / static_cast<double>(count) +
        0.5);
    return {elems, count / groups / kAimGroup * kAimGroup, wanted < 1 ? 1 : wanted};
}

// Whether a threshold that so many of the sample's elements reach stays.
SLIMWIRE_AIM bool aim_stays(const AimSample& sample, int64_t reach) {
    return 100 * reach >= 87 * sample.wanted && 100 * reach <= 115 * sample.wanted;
}

SLIMWIRE_AIM uint32_t aim_bits(float threshold) {
    uint32_t bits = 0;
    __builtin_memcpy(&bits, &threshold, sizeof bits);
    return threshold > 0 ? bits : 0;
}

// A threshold that was found, unless it is not finite.
SLIMWIRE_AIM float aim_found(float before, uint32_t found) {
    float threshold = 0;
    __builtin_memcpy(&threshold, &found, sizeof threshold);
    return found < kInfinityBits ? threshold : before;
}

// Enqueue on `stream` of the current device; the launch error comes back. In builds with CUDA.
cudaError_t aim_on_cuda(const AimArgs& args, cudaStream_t stream);
cudaError_t settle_aim_on_cuda(const AimArgs& args, cudaStream_t stream);
int64_t aim_workspace_on_cuda(const CodecParams& params,
                              DType dtype,
                              int64_t count,
                              int64_t chunk_elems);

}  // namespace slimwire
