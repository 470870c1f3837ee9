// The CUDA half of `slimwire bench codec`: kernels timed by events, against a device copy of as
// many bytes as the operation moves, with as many thread blocks as run at once and with few.
#include <fmt/core.h>

#include "tools/cli/bench/bench_codec.h"

#if defined(SLIMWIRE_HAVE_CUDA)

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "tools/cli/codec/codec_trial.h"
#include "tools/cli/codec/tensor_file.h"
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
          args_{spec, elements.dtype, elements.count, spec.reduces() ? plan.inputs : 0} {}

    Status measure() {
        SLIMWIRE_TRY(prepare());
        SLIMWIRE_TRY(run_once());
        const bool lossless = spec_.traits(args_.dtype).lossless;
        const int64_t residual_bytes = 8 * args_.count;  // read and written
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
                return spec_.codec->cuda.decode_reduce_encode(
                    on_device(args_.reduce(sources_.as(), reduced_.as()), blocks), stream);
            };
            const auto sum = [this, blocks](cudaStream_t stream) {
                return spec_.codec->cuda.decode_reduce(
                    on_device(args_.sum(sources_.as(), output_.as()), blocks), stream);
            };
            const struct {
                const char* op;
                bool offered;
                int64_t moved;
                Enqueue enqueue;
                int inputs = 0;
            } rows[] = {
                {"encode", true, args_.bytes + size_, encode(nullptr)},
                {"encode_residual", !lossless, args_.bytes + size_ + residual_bytes,
                 encode(residual_.as<float>())},
                {"decode", true, args_.bytes + size_, decode(false)},
                {"decode_accumulate", !lossless, 2 * args_.bytes + size_, decode(true)},
                {"decode_reduce_encode", spec_.reduces(), (args_.inputs + 1) * size_, reduce,
                 args_.inputs},
                {"decode_reduce", spec_.sums(), args_.inputs * size_ + args_.bytes, sum,
                 args_.inputs},
            };
            for (const auto& row : rows) {
                if (!row.offered ||
                    std::find(plan_.ops.begin(), plan_.ops.end(), row.op) == plan_.ops.end()) {
                    continue;
                }
                nlohmann::ordered_json line =
                    line_of(options_, elements_, spec_.to_string(), row.op);
                SLIMWIRE_TRY(time(row.moved, row.enqueue, &line));
                set_quality(static_cast<double>(args_.bytes) / static_cast<double>(size_), error_,
                            &line);
                if (row.inputs > 0) {
                    line["inputs"] = row.inputs;
                }
                line["max_blocks"] = blocks;
                print_line(options_, line);
            }
        }
        return {};
    }

  private:
    Status prepare() {
        SLIMWIRE_TRY(clock_.create());
        SLIMWIRE_TRY(input_.allocate(args_.bytes));
        SLIMWIRE_TRY(output_.allocate(args_.bytes));
        SLIMWIRE_TRY(residual_.allocate(4 * args_.count));
        SLIMWIRE_TRY(encoded_.allocate(args_.slot));
        SLIMWIRE_TRY(sources_.allocate(args_.slot * args_.inputs));
        SLIMWIRE_TRY(reduced_.allocate(args_.slot));
        SLIMWIRE_TRY(
            workspace_.allocate(spec_.workspace_bytes(args_.dtype, args_.count, args_.count)));
        scratch_bytes_ = 4 * args_.bytes + 16 * args_.count + (args_.inputs + 1) * args_.slot;
        SLIMWIRE_TRY(scratch_.allocate(scratch_bytes_));
        return cuda(cudaMemcpy(input_.as(), elements_.elements, static_cast<size_t>(args_.bytes),
                               cudaMemcpyHostToDevice),
                    "cudaMemcpy");
    }

    // Size and error, and the sources of a reduction.
    Status run_once() {
        SLIMWIRE_TRY(cuda(spec_.codec->cuda.encode(encode_args(nullptr, 0), nullptr), "encode"));
        SLIMWIRE_TRY(cuda(spec_.codec->cuda.decode(decode_args(false, 0), nullptr), "decode"));
        for (int32_t k = 0; k < args_.inputs; ++k) {
            SLIMWIRE_TRY(cuda(cudaMemcpy(sources_.as() + k * args_.slot, encoded_.as(),
                                         static_cast<size_t>(args_.slot), cudaMemcpyDeviceToDevice),
                              "cudaMemcpy"));
        }
        std::vector<uint8_t> encoding(static_cast<size_t>(args_.slot));
        std::vector<uint8_t> decoded(static_cast<size_t>(args_.bytes));
        SLIMWIRE_TRY(cuda(
            cudaMemcpy(encoding.data(), encoded_.as(), encoding.size(), cudaMemcpyDeviceToHost),
            "cudaMemcpy"));
        SLIMWIRE_TRY(
            cuda(cudaMemcpy(decoded.data(), output_.as(), decoded.size(), cudaMemcpyDeviceToHost),
                 "cudaMemcpy"));
        SLIMWIRE_TRY_ASSIGN(size_, check_encoding(spec_, args_.dtype, args_.count, encoding.data(),
                                                  spec_.encoded_bytes(args_.dtype, args_.count)));
        error_ = std::memcmp(decoded.data(), elements_.elements, decoded.size()) == 0
                     ? 0
                     : relative_error(args_.dtype, decoded.data(), elements_.elements, args_.count);
        return {};
    }

    Status time(int64_t moved, const Enqueue& enqueue, nlohmann::ordered_json* line) {
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
        const double seconds = 1e9 * median(times);
        const double copied = static_cast<double>(2 * half) / median(copies) / 1e9;
        set_speed(static_cast<double>(args_.bytes) / seconds, "device_copy", copied,
                  static_cast<double>(moved) / seconds / copied, line);
        return {};
    }

    template <class Args>
    Args on_device(Args args, int blocks) const {
        args.workspace = workspace_.as();
        args.max_blocks = blocks;
        return args;
    }
    EncodeArgs encode_args(float* residual, int blocks) const {
        return on_device(args_.encode(input_.as(), encoded_.as(), residual), blocks);
    }
    DecodeArgs decode_args(bool accumulate, int blocks) const {
        return on_device(args_.decode(encoded_.as(), output_.as(), accumulate), blocks);
    }

    const CodecBenchPlan& plan_;
    const CodecBenchOptions& options_;
    const CodecSpec& spec_;
    const BenchInput& elements_;
    TrialArgs args_;
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
