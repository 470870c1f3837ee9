#include "tests/gpu/codecs/low_rank.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "codecs/low_rank/low_rank.h"
#include "tests/gpu/codecs/compare.h"
#include "tests/gpu/codecs/timing.h"

namespace slimwire::gpu {
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
