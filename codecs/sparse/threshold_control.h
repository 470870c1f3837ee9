// Thresholds that follow the data, for codec threshold with `refresh` (Dynamic Communication
// Thresholding, Gupta et al., KDD 2021). Not a codec: says from which magnitude on each chunk of
// the next encoding sends, so that about four fifths of its capacity are used.
//
//   adapt    before an encoding: exact thresholds (those that so many elements reach) at first and
//            every `refresh` encodings; else those of before, as long as a sample of the elements
//            says that 0.87 to 1.15 times as many would survive, or one by that sample (as Deep
//            Gradient Compression, Lin et al., ICLR 2018)
//   finish   after it: counts
//
// Nothing of it crosses a wire and nothing is read on the host, so each rank adapts its own and
// graphs replay it. Host bodies and kernels give the same bits (FORMAT.md, "Thresholds that follow
// the data").
//
// Also read by objects of any instruction set and by kernels: nothing here may become a shared
// symbol.
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

SLIMWIRE_BODIES(adapt_threshold, ThresholdArgs)
SLIMWIRE_BODIES(finish_threshold, ThresholdArgs)
SLIMWIRE_LAUNCHER int64_t threshold_workspace_on_cuda(const CodecParams& params,
                                                      DType dtype,
                                                      int64_t count,
                                                      int64_t chunk_elems);

// Bytes of the state of a run of `chunks` chunks: zero before its first encoding.
[[nodiscard]] constexpr int64_t threshold_state_bytes(int64_t chunks) noexcept {
    return static_cast<int64_t>(sizeof(ThresholdRun)) +
           chunks * static_cast<int64_t>(sizeof(ThresholdChunk));
}
// Device memory that kAdapt needs at EncodeArgs::workspace; 0 in a build without CUDA.
[[nodiscard]] int64_t threshold_workspace_bytes(const CodecParams& params,
                                                DType dtype,
                                                int64_t count,
                                                int64_t chunk_elems);

enum class ThresholdStep : uint8_t { kAdapt, kFinish };

// What an encoding takes of the state.
inline void use_threshold(ThresholdRun* state, EncodeArgs* encode) noexcept {
    encode->threshold_ptr = &threshold_chunks(state)->threshold;
    encode->threshold_stride = sizeof(ThresholdChunk) / sizeof(float);
}

// Enqueues a step on `stream`; as enqueue() of a codec operation.
Status enqueue(const DeviceApi& api,
               ThresholdStep step,
               const ThresholdArgs& args,
               cudaStream_t stream);

}  // namespace slimwire
