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
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/base/device.h"
#include "codecs/base/status.h"
#include "codecs/sparse/threshold_args.h"

namespace slimwire {

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

void adapt_threshold_on_host(const ThresholdArgs& args);
void finish_threshold_on_host(const ThresholdArgs& args);

// What an encoding takes of the state.
inline void use_threshold(ThresholdRun* state, EncodeArgs* encode) noexcept {
    encode->threshold_ptr =
        &reinterpret_cast<ThresholdChunk*>(reinterpret_cast<char*>(state) + sizeof(ThresholdRun))
             ->threshold;
    encode->threshold_stride = sizeof(ThresholdChunk) / sizeof(float);
}

// Enqueues a step on `stream`; as enqueue() of a codec operation.
Status enqueue(const DeviceApi& api,
               ThresholdStep step,
               const ThresholdArgs& args,
               cudaStream_t stream);

}  // namespace slimwire
