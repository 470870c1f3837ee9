// The CUDA half of `slimwire bench codec`: kernels timed by events, against a device copy of as
// many bytes as the operation moves, with as many thread blocks as run at once and with few.
#include <fmt/core.h>

#include "tools/cli/bench/bench_codec.h"

#if defined(SLIMWIRE_HAVE_CUDA)

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "tools/cli/codec/elements.h"
#include "tools/cli/common/median.h"

namespace slimwire::cli {
namespace {

constexpr int kBlockCaps[] = {0, 4, 8, 16, 32};
constexpr int kBatch = 10;
constexpr int kWarmUp = 2;

Status cuda(cudaError_t error, const char* what) {
    if (error == cudaSuccess) {
        return {};
    }
    return {Code::kCudaError, fmt::format("{}: {}", what, cudaGetErrorString(error))};
}

class DeviceMemory {
  public:
    DeviceMemory() = default;
    ~DeviceMemory() { (void)cudaFree(data_); }
    DeviceMemory(const DeviceMemory&) = delete;
    DeviceMemory& operator=(const DeviceMemory&) = delete;
    // Zeros.
    Status allocate(int64_t bytes) {
        const size_t size = static_cast<size_t>(std::max<int64_t>(bytes, 16));
        SLIMWIRE_TRY(cuda(cudaMalloc(&data_, size), "cudaMalloc"));
        return cuda(cudaMemset(data_, 0, size), "cudaMemset");
    }
    template <class T = uint8_t>
    [[nodiscard]] T* as() const {
        return static_cast<T*>(data_);
    }

  private:
    void* data_ = nullptr;
};

using Enqueue = std::function<cudaError_t(cudaStream_t)>;

// A stream and two events.
class Clock {
  public:
    Clock() = default;
    ~Clock() {
        (void)cudaEventDestroy(begin_);
        (void)cudaEventDestroy(end_);
        (void)cudaStreamDestroy(stream_);
    }
    Clock(const Clock&) = delete;
    Clock& operator=(const Clock&) = delete;
    Status create() {
        SLIMWIRE_TRY(cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"));
        SLIMWIRE_TRY(cuda(cudaEventCreateWithFlags(&begin_, cudaEventDefault), "event"));
        return cuda(cudaEventCreateWithFlags(&end_, cudaEventDefault), "event");
    }
    // Seconds of one call, of a batch.
    Status time(const Enqueue& enqueue, std::vector<double>* times) {
        SLIMWIRE_TRY(cuda(cudaEventRecord(begin_, stream_), "cudaEventRecord"));
        for (int i = 0; i < kBatch; ++i) {
            SLIMWIRE_TRY(cuda(enqueue(stream_), "enqueue"));
        }
        SLIMWIRE_TRY(cuda(cudaEventRecord(end_, stream_), "cudaEventRecord"));
        SLIMWIRE_TRY(cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"));
        float milliseconds = 0;
        SLIMWIRE_TRY(
            cuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime"));
        times->push_back(milliseconds / 1e3 / kBatch);
        return {};
    }

  private:
    cudaStream_t stream_ = nullptr;
    cudaEvent_t begin_ = nullptr;
    cudaEvent_t end_ = nullptr;
};

// One codec on one data set.
class CudaTrial {
  public:
    CudaTrial(const CodecBenchPlan& plan,
              const CodecBenchOptions& options,
              const CodecSpec& spec,
              const BenchInput& elements)
        : plan_(plan),
          options_(options),
          spec_(spec),
          elements_(elements),
          dtype_(elements.dtype),
          count_(elements.count),
          bytes_(elements.bytes),
          slot_((spec.encoded_bytes(dtype_, count_) + 15) / 16 * 16),
          inputs_(spec.reduces() ? plan.inputs : 0) {}

    Status measure() {
        SLIMWIRE_TRY(prepare());
        SLIMWIRE_TRY(run_once());
        const bool lossless = spec_.traits(dtype_).lossless;
        const int64_t residual_bytes = 8 * count_;  // read and written
        for (const int blocks : kBlockCaps) {
            const auto encode = [this, blocks](float* residual) -> Enqueue {
                return [=, this](cudaStream_t stream) {
                    return spec_.codec->cuda.encode(encode_args(residual, blocks), stream);
                };
            };
            const auto decode = [this, blocks](bool accumulate) -> Enqueue {
                return [=, this](cudaStream_t stream) {
                    return spec_.codec->cuda.decode(decode_args(accumulate, blocks), stream);
                };
            };
            const auto reduce = [this, blocks](cudaStream_t stream) {
                return spec_.codec->cuda.decode_reduce_encode(reduce_args(blocks), stream);
            };
            const auto sum = [this, blocks](cudaStream_t stream) {
                return spec_.codec->cuda.decode_reduce(sum_args(blocks), stream);
            };
            const struct {
                const char* op;
                bool offered;
                int64_t moved;
                Enqueue enqueue;
                int inputs = 0;
            } rows[] = {
                {"encode", true, bytes_ + size_, encode(nullptr)},
                {"encode_residual", !lossless, bytes_ + size_ + residual_bytes,
                 encode(residual_.as<float>())},
                {"decode", true, bytes_ + size_, decode(false)},
                {"decode_accumulate", !lossless, 2 * bytes_ + size_, decode(true)},
                {"decode_reduce_encode", spec_.reduces(), (inputs_ + 1) * size_, reduce, inputs_},
                {"decode_reduce", spec_.sums(), inputs_ * size_ + bytes_, sum, inputs_},
            };
            for (const auto& row : rows) {
                if (!row.offered ||
                    std::find(plan_.ops.begin(), plan_.ops.end(), row.op) == plan_.ops.end()) {
                    continue;
                }
                CodecLine line = line_of(elements_, spec_.to_string(), row.op);
                line.ratio = static_cast<double>(bytes_) / static_cast<double>(size_);
                line.rel_error = error_;
                line.inputs = row.inputs;
                line.max_blocks = blocks;
                SLIMWIRE_TRY(time(row.moved, row.enqueue, &line));
                print_line(options_, line);
            }
        }
        return {};
    }

  private:
    Status prepare() {
        SLIMWIRE_TRY(clock_.create());
        SLIMWIRE_TRY(input_.allocate(bytes_));
        SLIMWIRE_TRY(output_.allocate(bytes_));
        SLIMWIRE_TRY(residual_.allocate(4 * count_));
        SLIMWIRE_TRY(encoded_.allocate(slot_));
        SLIMWIRE_TRY(sources_.allocate(slot_ * inputs_));
        SLIMWIRE_TRY(reduced_.allocate(slot_));
        SLIMWIRE_TRY(workspace_.allocate(spec_.workspace_bytes(dtype_, count_, count_)));
        scratch_bytes_ = 4 * bytes_ + 16 * count_ + (inputs_ + 1) * slot_;
        SLIMWIRE_TRY(scratch_.allocate(scratch_bytes_));
        return cuda(cudaMemcpy(input_.as(), elements_.elements, static_cast<size_t>(bytes_),
                               cudaMemcpyHostToDevice),
                    "cudaMemcpy");
    }

    // Size and error, and the sources of a reduction.
    Status run_once() {
        SLIMWIRE_TRY(cuda(spec_.codec->cuda.encode(encode_args(nullptr, 0), nullptr), "encode"));
        SLIMWIRE_TRY(cuda(spec_.codec->cuda.decode(decode_args(false, 0), nullptr), "decode"));
        for (int32_t k = 0; k < inputs_; ++k) {
            SLIMWIRE_TRY(cuda(cudaMemcpy(sources_.as() + k * slot_, encoded_.as(),
                                         static_cast<size_t>(slot_), cudaMemcpyDeviceToDevice),
                              "cudaMemcpy"));
        }
        std::vector<uint8_t> encoding(static_cast<size_t>(slot_));
        std::vector<uint8_t> decoded(static_cast<size_t>(bytes_));
        SLIMWIRE_TRY(cuda(
            cudaMemcpy(encoding.data(), encoded_.as(), encoding.size(), cudaMemcpyDeviceToHost),
            "cudaMemcpy"));
        SLIMWIRE_TRY(
            cuda(cudaMemcpy(decoded.data(), output_.as(), decoded.size(), cudaMemcpyDeviceToHost),
                 "cudaMemcpy"));
        SLIMWIRE_TRY_ASSIGN(size_, check_encoding(spec_, dtype_, count_, encoding.data(),
                                                  spec_.encoded_bytes(dtype_, count_)));
        error_ = std::memcmp(decoded.data(), elements_.elements, decoded.size()) == 0
                     ? 0
                     : relative_error(dtype_, decoded.data(), elements_.elements, count_);
        return {};
    }

    Status time(int64_t moved, const Enqueue& enqueue, CodecLine* line) {
        const int64_t half = std::min(moved, scratch_bytes_) / 2;
        const Enqueue copy = [&](cudaStream_t stream) {
            return cudaMemcpyAsync(scratch_.as(), scratch_.as() + half, static_cast<size_t>(half),
                                   cudaMemcpyDeviceToDevice, stream);
        };
        std::vector<double> times;
        std::vector<double> copies;
        for (int round = 0; round < plan_.rounds + kWarmUp; ++round) {
            SLIMWIRE_TRY(clock_.time(copy, &copies));
            SLIMWIRE_TRY(clock_.time(enqueue, &times));
        }
        times.erase(times.begin(), times.begin() + kWarmUp);
        copies.erase(copies.begin(), copies.begin() + kWarmUp);
        line->gbps = static_cast<double>(bytes_) / median(times) / 1e9;
        line->baseline = "device_copy";
        line->baseline_gbps = static_cast<double>(2 * half) / median(copies) / 1e9;
        line->fraction = static_cast<double>(moved) / median(times) / 1e9 / line->baseline_gbps;
        return {};
    }

    EncodeArgs encode_args(float* residual, int blocks) const {
        return {.input = input_.as(),
                .output = encoded_.as(),
                .residual = residual,
                .count = count_,
                .chunk_elems = count_,
                .slot_bytes = slot_,
                .params = spec_.params,
                .dtype = dtype_,
                .random = {.seed = 1},
                .workspace = workspace_.as(),
                .max_blocks = blocks};
    }
    DecodeArgs decode_args(bool accumulate, int blocks) const {
        return {.input = encoded_.as(),
                .output = output_.as(),
                .count = count_,
                .chunk_elems = count_,
                .slot_bytes = slot_,
                .params = spec_.params,
                .dtype = dtype_,
                .accumulate = accumulate,
                .workspace = workspace_.as(),
                .max_blocks = blocks};
    }
    DecodeReduceEncodeArgs reduce_args(int blocks) const {
        return {.input = sources_.as(),
                .output = reduced_.as(),
                .input_stride = slot_,
                .count = count_,
                .inputs = inputs_,
                .scale = 1.0f / static_cast<float>(inputs_),
                .params = spec_.params,
                .dtype = dtype_,
                .random = {.seed = 1},
                .workspace = workspace_.as(),
                .max_blocks = blocks};
    }

    DecodeReduceArgs sum_args(int blocks) const {
        return {.input = sources_.as(),
                .output = output_.as(),
                .input_stride = slot_,
                .count = count_,
                .inputs = inputs_,
                .scale = 1.0f / static_cast<float>(inputs_),
                .params = spec_.params,
                .dtype = dtype_,
                .workspace = workspace_.as(),
                .max_blocks = blocks};
    }

    const CodecBenchPlan& plan_;
    const CodecBenchOptions& options_;
    const CodecSpec& spec_;
    const BenchInput& elements_;
    DType dtype_;
    int64_t count_, bytes_, slot_;
    int32_t inputs_;
    int64_t size_ = 0;
    int64_t scratch_bytes_ = 0;
    double error_ = 0;
    Clock clock_;
    DeviceMemory input_, output_, residual_, encoded_, sources_, reduced_, workspace_, scratch_;
};

}  // namespace

Status bench_codec_cuda(const CodecBenchPlan& plan, const CodecBenchOptions& options) {
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || devices == 0) {
        return {Code::kUnsupported,
                fmt::format("nothing measured: no CUDA device ({})",
                            error == cudaSuccess ? "none found" : cudaGetErrorString(error))};
    }
    register_cuda_kernels();
    print_head(options);
    return for_each_input(plan, [&](const BenchInput& input) -> Status {
        for (const CodecSpec& spec : plan.specs) {
            if (spec.accepts(input.dtype) && spec.codec->cuda.encode != nullptr) {
                SLIMWIRE_TRY(CudaTrial(plan, options, spec, input).measure());
            }
        }
        return {};
    });
}

}  // namespace slimwire::cli

#else

namespace slimwire::cli {

Status bench_codec_cuda(const CodecBenchPlan&, const CodecBenchOptions&) {
    return {Code::kUnsupported,
            "nothing measured: this build has no CUDA kernels; configure it where nvcc is on PATH"};
}

}  // namespace slimwire::cli

#endif
