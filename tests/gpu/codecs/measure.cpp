#include "tests/gpu/codecs/measure.h"

#include <algorithm>

#include "tests/gpu/codecs/compare.h"
#include "tests/gpu/codecs/timing.h"

namespace slimwire::gpu {

void measure(const CodecSpec& spec, DType dtype, int64_t bytes, int32_t max_blocks) {
    const int64_t count = bytes / static_cast<int64_t>(dtype_bytes(dtype));
    const int64_t size = spec.encoded_bytes(dtype, count);
    const int64_t slot = (size + 15) / 16 * 16;
    constexpr int32_t kInputs = 8;
    const bool plain =
        dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBfloat16;
    const DeviceBuffer user(static_cast<size_t>(bytes));
    const DeviceBuffer encoded(static_cast<size_t>(slot * kInputs));
    const DeviceBuffer reduced(static_cast<size_t>(slot));
    const DeviceBuffer residual(static_cast<size_t>(count) * sizeof(float));
    const DeviceBuffer scratch(static_cast<size_t>(bytes) * 4);
    const DeviceBuffer workspace(
        static_cast<size_t>(std::max<int64_t>(spec.workspace_bytes(dtype, count, count), 1)));
    user.fill(gaussian_bytes(dtype, count, 1));
    check(cudaMemset(residual.data(), 0, residual.size()), "cudaMemset");
    EncodeArgs encode{.input = user.data(),
                      .output = encoded.data(),
                      .count = count,
                      .chunk_elems = count,
                      .slot_bytes = slot,
                      .params = spec.params,
                      .dtype = dtype,
                      .random = {},
                      .workspace = workspace.data(),
                      .max_blocks = max_blocks};
    const auto run_encode = [&](cudaStream_t s) { return spec.codec->cuda.encode(encode, s); };
    // The encoding of variable size is as long as check_encoding() finds it.
    check(run_encode(nullptr), "encode");
    std::vector<uint8_t> bytes_of(static_cast<size_t>(size));
    check(cudaMemcpy(bytes_of.data(), encoded.data(), bytes_of.size(), cudaMemcpyDeviceToHost),
          "copy");
    const auto used = check_encoding(spec, dtype, count, bytes_of.data(), size);
    const int64_t length = used.ok() ? used.value() : size;
    for (int32_t i = 1; i < kInputs; ++i) {
        check(cudaMemcpy(encoded.data() + i * slot, encoded.data(), static_cast<size_t>(slot),
                         cudaMemcpyDeviceToDevice),
              "copy");
    }
    check(cudaStreamSynchronize(nullptr), "copy");  // a copy within the device may return before
    const auto line = [&](const char* op, int64_t moved, const Enqueue& enqueue) {
        report({spec.to_string(), op, dtype, bytes, moved, length, max_blocks}, scratch, enqueue);
    };
    line("encode", bytes + length, run_encode);
    if (plain && !spec.traits(dtype).lossless) {
        encode.residual = reinterpret_cast<float*>(residual.data());
        line("encode_residual", bytes + length + 8 * count, run_encode);
        encode.residual = nullptr;
        check(run_encode(nullptr), "encode");
        check(cudaStreamSynchronize(nullptr), "encode");
    }
    DecodeArgs decode{.input = encoded.data(),
                      .output = user.data(),
                      .count = count,
                      .chunk_elems = count,
                      .slot_bytes = slot,
                      .params = spec.params,
                      .dtype = dtype,
                      .workspace = workspace.data(),
                      .max_blocks = max_blocks};
    const auto run_decode = [&](cudaStream_t s) { return spec.codec->cuda.decode(decode, s); };
    line("decode", bytes + length, run_decode);
    decode.accumulate = true;
    line("decode_accumulate", 2 * bytes + length, run_decode);
    if (!spec.reduces()) {
        return;
    }
    const DecodeReduceEncodeArgs reduce{.input = encoded.data(),
                                        .output = reduced.data(),
                                        .input_stride = slot,
                                        .count = count,
                                        .inputs = kInputs,
                                        .scale = 1.0f / kInputs,
                                        .params = spec.params,
                                        .dtype = dtype,
                                        .random = {},
                                        .workspace = workspace.data(),
                                        .max_blocks = max_blocks};
    line("decode_reduce_encode", (kInputs + 1) * length,
         [&](cudaStream_t s) { return spec.codec->cuda.decode_reduce_encode(reduce, s); });
    const DecodeReduceArgs sum{.input = encoded.data(),
                               .output = user.data(),
                               .input_stride = slot,
                               .count = count,
                               .inputs = kInputs,
                               .scale = 1.0f / kInputs,
                               .params = spec.params,
                               .dtype = dtype,
                               .workspace = workspace.data(),
                               .max_blocks = max_blocks};
    line("decode_reduce", kInputs * length + bytes,
         [&](cudaStream_t s) { return spec.codec->cuda.decode_reduce(sum, s); });
}

}  // namespace slimwire::gpu
