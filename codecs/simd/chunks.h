// From argument structs to chunks: resolves the device pointers of an operation once and calls the
// host kernel for every chunk that holds an element. Used by the host operations of each family.
#pragma once

#include "codecs/codec.h"
#include "codecs/simd/float_environment.h"
#include "codecs/simd/table.h"

namespace slimwire {

// The key and step of what an operation's chunks draw; the chunk is set for each.
[[nodiscard]] ChunkRandom chunk_random(const RandomKey& random, RandomPurpose purpose) noexcept;

// scale * *scale_ptr, one rounding; scale alone when there is no pointer.
[[nodiscard]] float scale_factor(float scale, const void* scale_ptr, DType dtype) noexcept;
[[nodiscard]] inline float encode_factor(const EncodeArgs& args) noexcept {
    return scale_factor(args.scale, args.scale_ptr, args.dtype);
}

// Calls run(EncodeChunk) for each chunk.
template <class Run>
void for_each_chunk(const EncodeArgs& args, Run run) {
    const FloatEnvironment environment;
    const auto* input = device_view_as<const uint8_t>(args.input);
    auto* output = device_view_as<uint8_t>(args.output);
    auto* residual = device_view_as<float>(args.residual);
    auto* status = device_view_as<uint32_t>(args.status);
    const float factor = args.count > 0 ? encode_factor(args) : 1.0f;
    ChunkRandom random = chunk_random(args.random, RandomPurpose::kEncode);
    const int64_t element_bytes = static_cast<int64_t>(dtype_bytes(args.dtype));
    for (int64_t done = 0; done < args.count; done += args.chunk_elems) {
        const int64_t left = args.count - done;
        run(EncodeChunk{.input = input + done * element_bytes,
                        .output = output,
                        .residual = residual != nullptr ? residual + done : nullptr,
                        .count = left < args.chunk_elems ? left : args.chunk_elems,
                        .factor = factor,
                        .dtype = args.dtype,
                        .random = random,
                        .slot_bytes = args.slot_bytes,
                        .status = status});
        output += args.slot_bytes;
        ++random.chunk;
    }
}

// Calls run(DecodeChunk) for each chunk.
template <class Run>
void for_each_chunk(const DecodeArgs& args, Run run) {
    const FloatEnvironment environment;
    const auto* input = device_view_as<const uint8_t>(args.input);
    auto* output = device_view_as<uint8_t>(args.output);
    auto* status = device_view_as<uint32_t>(args.status);
    const int64_t element_bytes = static_cast<int64_t>(dtype_bytes(args.dtype));
    for (int64_t done = 0; done < args.count; done += args.chunk_elems) {
        const int64_t left = args.count - done;
        run(DecodeChunk{.input = input,
                        .output = output + done * element_bytes,
                        .count = left < args.chunk_elems ? left : args.chunk_elems,
                        .dtype = args.dtype,
                        .accumulate = args.accumulate,
                        .scale = args.scale,
                        .sum_limit = args.sum_limit,
                        .slot_bytes = args.slot_bytes,
                        .status = status});
        input += args.slot_bytes;
    }
}

// Calls run(ReduceChunk) unless there is nothing to do.
template <class Args, class Run>
requires requires(const Args& args) {
    args.inputs;
}
void for_each_chunk(const Args& args, Run run) {
    if (args.count <= 0 || args.inputs <= 0) {
        return;
    }
    const FloatEnvironment environment;
    ReduceChunk chunk{.input = device_view_as<const uint8_t>(args.input),
                      .output = device_view_as<uint8_t>(args.output),
                      .residual = nullptr,
                      .input_stride = args.input_stride,
                      .count = args.count,
                      .inputs = args.inputs,
                      .input_scale = args.input_scale,
                      .sum_limit = args.sum_limit,
                      .factor = args.scale,
                      .random = {},
                      .status = device_view_as<uint32_t>(args.status),
                      .dtype = args.dtype};
    if constexpr (requires { args.residual; }) {  // the sum is encoded again
        chunk.residual = device_view_as<float>(args.residual);
        chunk.random = chunk_random(args.random, RandomPurpose::kReduce);
    }
    run(chunk);
}

}  // namespace slimwire
