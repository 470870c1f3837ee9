// The operations of THC (Li et al., "THC: Accelerating Distributed Deep Learning Using Tensor
// Homomorphic Compression", NSDI 2024), with evenly spaced levels. Not a codec: all ranks agree on
// scales, and integers, which the real all-reduce sums, are levels of those.
//
//   measure   scales = largest magnitude of each rotated group      then: all-reduce MAX, uint32
//   quantise  words = levels of the rotated p, packed; residual = p less what they stand for
//                                                                   then: all-reduce SUM, uint64
//   restore   output = result * what the sums stand for
//
// Scales are bits of fp32 magnitudes, so that integers compare as they do; a group that is not
// finite on any rank has those of NaN, becomes NaN on all and keeps its residual. Levels round
// stochastically, so that with clip = 1 the expected output is the sum; what rounding and clipping
// cut off stays in the residual.
//
// Host bodies and kernels give the same bits (FORMAT.md, "Summable Hadamard levels").
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/base/device.h"
#include "codecs/base/status.h"
#include "codecs/thc_args.h"

namespace slimwire {

struct CodecSpec;

// Whether a specification asks for these operations (thc_codec.cpp). Such a codec encodes no run of
// elements: encoded_bytes() is 0 and all of its operations are null.
[[nodiscard]] bool shares_scale(const CodecSpec& spec) noexcept;

// Elements of the two all-reduces: uint32 scales, and uint64 words.
[[nodiscard]] int64_t thc_groups(int64_t count) noexcept;
[[nodiscard]] int64_t thc_words(int64_t count, int block, int levels, int ranks) noexcept;

void measure_thc_on_host(const ThcArgs& args);   // input, residual -> scales
void quantise_thc_on_host(const ThcArgs& args);  // input, residual, scales -> words, residual
void restore_thc_on_host(const ThcArgs& args);   // scales, words -> output

enum class ThcStep : uint8_t { kMeasure, kQuantise, kRestore };

// Enqueues a step on `stream`; as enqueue() of a codec operation.
Status enqueue(const DeviceApi& api, ThcStep step, const ThcArgs& args, cudaStream_t stream);

}  // namespace slimwire
