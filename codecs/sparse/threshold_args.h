// Arguments and state of the operations of threshold_control.h: plain data, as args.h; and the
// arithmetic that host bodies and kernels share.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/args.h"
#include "codecs/numeric.h"
#include "codecs/threefry.h"

namespace slimwire {

// Of a run: what one EncodeArgs encodes.
struct ThresholdRun {
    uint32_t encodings;  // so far
    uint32_t since;      // the last with exact thresholds
    uint32_t exact;      // so far with exact ones
    uint32_t moved;      // thresholds so far that a sample moved
    // Of all encodings and chunks so far.
    unsigned long long survivors;
    unsigned long long wanted;
};
// Of each of its chunks, behind it.
struct ThresholdChunk {
    float threshold;
    uint32_t reach;      // of the sample, not below the threshold; 0 between encodings
    uint32_t survivors;  // of the last encoding
    uint32_t target;     // survivors that are wanted
};

struct ThresholdArgs {
    EncodeArgs encode;    // of codec threshold; kFinish: that was done
    ThresholdRun* state;  // threshold_state_bytes() of device memory, 16-byte aligned
};

SLIMWIRE_EVERYWHERE ThresholdChunk* threshold_chunks(ThresholdRun* run) {
    return reinterpret_cast<ThresholdChunk*>(run + 1);
}

// Survivors that are wanted of an encoding with room for `capacity` values: up to a quarter more
// still find room.
SLIMWIRE_EVERYWHERE int64_t survivor_target(int64_t capacity) {
    return capacity < 5 ? capacity : capacity / 5 * 4 + capacity % 5 * 4 / 5;
}

// Whether the next encoding has exact thresholds.
SLIMWIRE_EVERYWHERE bool finds_exact(const ThresholdRun& run, uint32_t refresh) {
    return run.encodings == 0 || run.since + 1 >= refresh;
}

// The elements by which a threshold is judged and moved: groups of 16 at equal distances, so many
// that about 256 of them should survive; or all, where these would be half of them.
constexpr int64_t kSampleGroup = 16;
struct ThresholdSample {
    int64_t elems;
    int64_t stride;  // from one group to the next, elements
    int64_t wanted;  // survivors among them
};
SLIMWIRE_EVERYWHERE ThresholdSample threshold_sample(int64_t count, int64_t target) {
    const int64_t groups = (256 * (count / target) + kSampleGroup - 1) / kSampleGroup;
    if (2 * groups * kSampleGroup > count) {
        return {count, kSampleGroup, target};
    }
    const int64_t elems = groups * kSampleGroup;
    const auto wanted = static_cast<int64_t>(
        static_cast<double>(elems) * static_cast<double>(target) / static_cast<double>(count) +
        0.5);
    return {elems, count / groups / kSampleGroup * kSampleGroup, wanted < 1 ? 1 : wanted};
}

// Whether a threshold that so many of the sample's elements reach stays.
SLIMWIRE_EVERYWHERE bool threshold_stays(const ThresholdSample& sample, int64_t reach) {
    return 100 * reach >= 87 * sample.wanted && 100 * reach <= 115 * sample.wanted;
}

SLIMWIRE_EVERYWHERE uint32_t magnitude_from(float threshold) {
    uint32_t bits = 0;
    __builtin_memcpy(&bits, &threshold, sizeof bits);
    return threshold > 0 ? bits : 0;
}

// A threshold that was found, unless it is not finite. Where fewer elements than are wanted are not
// zero, all of these reach it and no zero does, which would take their room.
SLIMWIRE_EVERYWHERE float found_threshold(float before, uint32_t found) {
    const uint32_t bits = found == 0 ? 1 : found;
    float threshold = 0;
    __builtin_memcpy(&threshold, &bits, sizeof threshold);
    return found < kInfinityBits ? threshold : before;
}

// Enqueue on `stream` of the current device; the launch error comes back.
SLIMWIRE_LAUNCHER cudaError_t adapt_threshold_on_cuda(const ThresholdArgs& args,
                                                      cudaStream_t stream);
SLIMWIRE_LAUNCHER cudaError_t finish_threshold_on_cuda(const ThresholdArgs& args,
                                                       cudaStream_t stream);
SLIMWIRE_LAUNCHER int64_t threshold_workspace_on_cuda(const CodecParams& params,
                                                      DType dtype,
                                                      int64_t count,
                                                      int64_t chunk_elems);

}  // namespace slimwire
