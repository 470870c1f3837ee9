#include "tests/gpu/codecs/measure.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>

#include "codecs/low_rank/low_rank.h"
#include "tests/gpu/codecs/compare.h"

namespace slimwire::gpu {
namespace {

using Enqueue = std::function<cudaError_t(cudaStream_t)>;

// Median seconds of one enqueue, of batches timed by events: at most ten, or about 2 ms, in each.
double seconds_of(const Enqueue& enqueue) {
    cudaStream_t stream = nullptr;
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    check(cudaEventCreateWithFlags(&begin, cudaEventDefault), "event");
    check(cudaEventCreateWithFlags(&end, cudaEventDefault), "event");
    const auto batch_of = [&](int size) {
        check(cudaEventRecord(begin, stream), "record");
        for (int i = 0; i < size; ++i) {
            check(enqueue(stream), "enqueue");
        }
        check(cudaEventRecord(end, stream), "record");
        check(cudaStreamSynchronize(stream), "synchronize");
        float milliseconds = 0;
        check(cudaEventElapsedTime(&milliseconds, begin, end), "elapsed");
        return milliseconds / 1e3 / size;
    };
    constexpr double kBatchSeconds = 2e-3;
    constexpr int kRounds = 9;
    (void)batch_of(1);  // the first may load a kernel
    const double one = std::max(batch_of(1), 1e-6);
    const int size = std::clamp(static_cast<int>(kBatchSeconds / one), 1, 10);
    std::vector<double> times;
    for (int round = 0; round < kRounds; ++round) {
        times.push_back(batch_of(size));
    }
    check(cudaEventDestroy(begin), "destroy");
    check(cudaEventDestroy(end), "destroy");
    check(cudaStreamDestroy(stream), "destroy");
    std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
    return times[kRounds / 2];
}

// What a line says beside the times.
struct Line {
    std::string codec;
    const char* op;
    DType dtype;
    int64_t bytes;    // of the user's data
    int64_t moved;    // read and written by the operation
    int64_t encoded;  // bytes of the encoding
    int32_t max_blocks;
};

// Times `enqueue` and a copy within `scratch` that moves as many bytes, and prints both.
void report(const Line& line, const DeviceBuffer& scratch, const Enqueue& enqueue) {
    const auto half = static_cast<size_t>(std::min<int64_t>(line.moved / 2, scratch.size() / 2));
    const double copy = seconds_of([&](cudaStream_t stream) {
        return cudaMemcpyAsync(scratch.data(), scratch.data() + scratch.size() / 2, half,
                               cudaMemcpyDeviceToDevice, stream);
    });
    const double time = seconds_of(enqueue);
    const double baseline = 2.0 * static_cast<double>(half) / copy / 1e9;
    const double rate = static_cast<double>(line.moved) / time / 1e9;
    std::printf(
        "{\"codec\":\"%s\",\"op\":\"%s\",\"dtype\":\"%s\",\"device\":\"cuda\","
        "\"data\":\"gaussian\",\"bytes\":%lld,\"gbps\":%.1f,\"moved_gbps\":%.1f,"
        "\"baseline\":\"device_copy\",\"baseline_gbps\":%.1f,\"fraction\":%.3f,"
        "\"max_blocks\":%d,\"ratio\":%.3f}\n",
        line.codec.c_str(), line.op, dtype_name(line.dtype), static_cast<long long>(line.bytes),
        static_cast<double>(line.bytes) / time / 1e9, rate, baseline, rate / baseline,
        line.max_blocks, static_cast<double>(line.bytes) / static_cast<double>(line.encoded));
    std::fflush(stdout);
}

}  // namespace

void measure(const CodecSpec& spec, DType dtype, int64_t bytes, int32_t max_blocks) {
    const int64_t count = bytes / static_cast<int64_t>(dtype_bytes(dtype));
    const int64_t size = spec.encoded_bytes(dtype, count);
    const int64_t slot = (size + 15) / 16 * 16;
    constexpr int32_t kInputs = 8;
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
    check(run_encode(nullptr), "encode");
    for (int32_t i = 1; i < kInputs; ++i) {
        check(cudaMemcpy(encoded.data() + i * slot, encoded.data(), static_cast<size_t>(slot),
                         cudaMemcpyDeviceToDevice),
              "copy");
    }
    check(cudaStreamSynchronize(nullptr), "copy");  // a copy within the device may return before
    const auto line = [&](const char* op, int64_t moved, const Enqueue& enqueue) {
        report({spec.to_string(), op, dtype, bytes, moved, size, max_blocks}, scratch, enqueue);
    };
    line("encode", bytes + size, run_encode);
    encode.residual = reinterpret_cast<float*>(residual.data());
    line("encode_residual", bytes + size + 8 * count, run_encode);
    encode.residual = nullptr;
    check(run_encode(nullptr), "encode");
    check(cudaStreamSynchronize(nullptr), "encode");
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
    line("decode", bytes + size, run_decode);
    decode.accumulate = true;
    line("decode_accumulate", 2 * bytes + size, run_decode);
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
    line("decode_reduce_encode", (kInputs + 1) * size,
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
    line("decode_reduce", kInputs * size + bytes,
         [&](cudaStream_t s) { return spec.codec->cuda.decode_reduce(sum, s); });
}

namespace {

// Device memory of all matrices, and the arguments of one launch after the other.
class Matrices {
  public:
    Matrices(int number, int32_t rows, int32_t cols, int32_t rank)
        : elems_(int64_t{number} * rows * cols) {
        std::vector<MatrixShape> shapes;
        for (int i = 0; i < number; ++i) {
            shapes.push_back({int64_t{i} * rows * cols, rows, cols});
        }
        layout_ = low_rank_layout(shapes, rank);
        args_.scale = 1.0f;
        args_.mean = 1.0f;
        args_.result = 1.0f;
        args_.dtype = DType::kBfloat16;
        args_.rank = rank;
        args_.state_rank = rank;
        input_ = make(elems_ * 2, gaussian_bytes(DType::kBfloat16, elems_, 1));
        residual_ = make(elems_ * 4, {});
        left_ =
            make(layout_.left_elems * 4, gaussian_bytes(DType::kFloat32, layout_.left_elems, 2));
        right_ =
            make(layout_.right_elems * 4, gaussian_bytes(DType::kFloat32, layout_.right_elems, 3));
        state_ = make(layout_.right_elems * 4, {});
        work_ = make(std::max<int64_t>(layout_.work_elems, 1) * 4, {});
        args_.input = input_->data();
        args_.output = input_->data();
        args_.residual = reinterpret_cast<float*>(residual_->data());
        args_.left = reinterpret_cast<float*>(left_->data());
        args_.right = reinterpret_cast<float*>(right_->data());
        args_.state = reinterpret_cast<float*>(state_->data());
        args_.work = reinterpret_cast<float*>(work_->data());
    }

    [[nodiscard]] int64_t elems() const { return elems_; }
    [[nodiscard]] int64_t factor_bytes() const {
        return 4 * (layout_.left_elems + layout_.right_elems);
    }

    // All matrices, in as many launches as they take.
    Enqueue all(cudaError_t (*operation)(const LowRankArgs&, cudaStream_t)) {
        return [this, operation](cudaStream_t stream) {
            const size_t number = layout_.matrices.size();
            for (size_t done = 0; done < number; done += kMostMatrices) {
                LowRankArgs args = args_;
                args.matrices =
                    static_cast<int32_t>(std::min<size_t>(kMostMatrices, number - done));
                std::copy_n(layout_.matrices.begin() + static_cast<std::ptrdiff_t>(done),
                            args.matrices, args.list);
                const cudaError_t error = operation(args, stream);
                if (error != cudaSuccess) {
                    return error;
                }
            }
            return cudaSuccess;
        };
    }

  private:
    using Memory = std::unique_ptr<DeviceBuffer>;
    static Memory make(int64_t bytes, const std::vector<uint8_t>& content) {
        auto memory = std::make_unique<DeviceBuffer>(static_cast<size_t>(bytes));
        memory->fill(content.empty() ? std::vector<uint8_t>(static_cast<size_t>(bytes)) : content);
        return memory;
    }

    int64_t elems_;
    LowRankLayout layout_;
    LowRankArgs args_{};
    Memory input_, residual_, left_, right_, state_, work_;
};

}  // namespace

void measure_low_rank() {
    constexpr int kNumber = 200;
    for (const int32_t rank : {4, 8, 32}) {
        for (const int32_t rows : {512, 1024, 4096}) {
            Matrices matrices(kNumber, rows, rank, rank);
            const double seconds = seconds_of(matrices.all(orthogonalise_on_cuda));
            std::printf(
                "{\"codec\":\"powersgd\",\"op\":\"orthogonalise\",\"device\":\"cuda\","
                "\"matrices\":%d,\"rows\":%d,\"rank\":%d,\"us\":%.1f}\n",
                kNumber, rows, rank, 1e6 * seconds);
        }
    }
    for (const int32_t rank : {1, 4, 32}) {
        Matrices matrices(16, 2048, 2048, rank);
        const DeviceBuffer scratch(static_cast<size_t>(matrices.elems()) * 16);
        const std::string name = "powersgd:rank=" + std::to_string(rank);
        const int64_t bytes = 2 * matrices.elems();
        const int64_t read = 6 * matrices.elems();
        const auto line = [&](const char* op, int64_t moved,
                              cudaError_t (*operation)(const LowRankArgs&, cudaStream_t)) {
            report({name, op, DType::kBfloat16, bytes, moved, matrices.factor_bytes(), 0}, scratch,
                   matrices.all(operation));
        };
        line("multiply_right", read, multiply_right_on_cuda);
        line("multiply_left", read, multiply_left_on_cuda);
        line("restore", 2 * read, restore_low_rank_on_cuda);
    }
    std::fflush(stdout);
}

}  // namespace slimwire::gpu
