#include "tests/gpu/codecs/measure.h"

#include <algorithm>
#include <cstdio>

#include "tests/gpu/codecs/compare.h"

namespace slimwire::gpu {
namespace {

// Median seconds of one enqueue, of batches timed by events.
template <class Enqueue>
double seconds_of(Enqueue enqueue) {
    cudaStream_t stream = nullptr;
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    check(cudaEventCreateWithFlags(&begin, cudaEventDefault), "event");
    check(cudaEventCreateWithFlags(&end, cudaEventDefault), "event");
    std::vector<double> times;
    constexpr int kBatch = 10;
    for (int round = 0; round < 12; ++round) {
        check(cudaEventRecord(begin, stream), "record");
        for (int i = 0; i < kBatch; ++i) {
            check(enqueue(stream), "enqueue");
        }
        check(cudaEventRecord(end, stream), "record");
        check(cudaStreamSynchronize(stream), "synchronize");
        float milliseconds = 0;
        check(cudaEventElapsedTime(&milliseconds, begin, end), "elapsed");
        if (round >= 2) {
            times.push_back(milliseconds / 1e3 / kBatch);
        }
    }
    check(cudaEventDestroy(begin), "destroy");
    check(cudaEventDestroy(end), "destroy");
    check(cudaStreamDestroy(stream), "destroy");
    std::nth_element(times.begin(), times.begin() + static_cast<long>(times.size() / 2),
                     times.end());
    return times[times.size() / 2];
}

// One line: `moved` bytes are read and written by the operation, as by the copy it is compared
// with.
template <class Enqueue>
void report(const CodecSpec& spec,
            DType dtype,
            const char* op,
            int64_t bytes,
            int64_t moved,
            int64_t encoded,
            int32_t max_blocks,
            const DeviceBuffer& scratch,
            Enqueue enqueue) {
    const auto half = static_cast<size_t>(std::min<int64_t>(moved / 2, scratch.size() / 2));
    const double copy = seconds_of([&](cudaStream_t stream) {
        return cudaMemcpyAsync(scratch.data(), scratch.data() + scratch.size() / 2, half,
                               cudaMemcpyDeviceToDevice, stream);
    });
    const double time = seconds_of(enqueue);
    const double baseline = 2.0 * static_cast<double>(half) / copy / 1e9;
    const double rate = static_cast<double>(moved) / time / 1e9;
    std::printf(
        "{\"codec\":\"%s\",\"op\":\"%s\",\"dtype\":\"%s\",\"device\":\"cuda\","
        "\"data\":\"gaussian\",\"bytes\":%lld,\"gbps\":%.1f,\"moved_gbps\":%.1f,"
        "\"baseline\":\"device_copy\",\"baseline_gbps\":%.1f,\"fraction\":%.3f,"
        "\"max_blocks\":%d,\"ratio\":%.3f}\n",
        spec.to_string().c_str(), op, dtype_name(dtype), static_cast<long long>(bytes),
        static_cast<double>(bytes) / time / 1e9, rate, baseline, rate / baseline, max_blocks,
        static_cast<double>(bytes) / static_cast<double>(encoded));
    std::fflush(stdout);
}

}  // namespace

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
                      .residual = nullptr,
                      .scale_ptr = nullptr,
                      .scale = 1.0f,
                      .count = count,
                      .chunk_elems = count,
                      .slot_bytes = slot,
                      .params = spec.params,
                      .dtype = dtype,
                      .random = {},
                      .workspace = workspace.data(),
                      .status = nullptr,
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
    const auto line = [&](const char* op, int64_t moved, auto enqueue) {
        report(spec, dtype, op, bytes, moved, length, max_blocks, scratch, enqueue);
    };
    line("encode", bytes + length, run_encode);
    if (plain && !spec.traits(dtype).lossless) {
        encode.residual = reinterpret_cast<float*>(residual.data());
        line("encode_residual", bytes + length + 8 * count, run_encode);
        encode.residual = nullptr;
        check(run_encode(nullptr), "encode");
    }
    DecodeArgs decode{.input = encoded.data(),
                      .output = user.data(),
                      .count = count,
                      .chunk_elems = count,
                      .slot_bytes = slot,
                      .params = spec.params,
                      .dtype = dtype,
                      .accumulate = false,
                      .workspace = workspace.data(),
                      .status = nullptr,
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
                                        .residual = nullptr,
                                        .input_stride = slot,
                                        .count = count,
                                        .inputs = kInputs,
                                        .scale = 1.0f / kInputs,
                                        .params = spec.params,
                                        .dtype = dtype,
                                        .random = {},
                                        .workspace = workspace.data(),
                                        .status = nullptr,
                                        .max_blocks = max_blocks};
    line("decode_reduce_encode", (kInputs + 1) * length,
         [&](cudaStream_t s) { return spec.codec->cuda.decode_reduce_encode(reduce, s); });
}

}  // namespace slimwire::gpu
