// Reduces the same gradient again and again, as an optimizer with a constant one would see it, and
// prints "error A B partial P changing C": the largest error of the running sum of results against
// the exact one after half and all steps, in units of the number of ranks; how many results were
// neither nothing nor the whole sum; and how many elements were sent in some steps and not in
// others. Arguments: steps, f32 or bf16, allreduce, reducescatter or reduce, elements (12000),
// "marked": tells slimwire where steps begin; "two": of two tensors in turns, so that a residual
// that followed the signature alone would mix them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "codecs/float16.h"
#include "plugin/capi/slimwire.h"
#include "tests/e2e/programs/operations.h"
#include "tests/support/nccl_program.h"

namespace {

// Of one sign, so that no part of a sum looks like the whole; between 0.5 and 1.
float gradient(int rank, size_t tensor, size_t i) {
    const double wave = 0.61 * static_cast<double>(i) + 2.3 * rank;
    return static_cast<float>(0.75 + 0.25 * std::sin(wave + 4.1 * static_cast<double>(tensor)));
}

struct Job {
    int rank = slimwire::test::launcher_rank(), ranks = slimwire::test::launcher_ranks();
    std::string operation;
    bool half = false;
    size_t block = 12000;  // elements of a result
    ncclComm_t comm = nullptr;

    [[nodiscard]] size_t bytes() const { return half ? 2 : 4; }
    [[nodiscard]] ncclDataType_t type() const { return half ? ncclBfloat16 : ncclFloat32; }
    [[nodiscard]] bool scatters() const { return operation == "reducescatter"; }
    [[nodiscard]] size_t blocks() const { return scatters() ? static_cast<size_t>(ranks) : 1; }
    void put(float value, char* to) const {
        const uint16_t narrow = slimwire::float_to_bfloat16(value);
        half ? std::memcpy(to, &narrow, 2) : std::memcpy(to, &value, 4);
    }
    [[nodiscard]] double get(const char* from) const {
        float value = 0;
        uint16_t narrow = 0;
        half ? std::memcpy(&narrow, from, 2) : std::memcpy(&value, from, 4);
        return static_cast<double>(half ? slimwire::bfloat16_to_float(narrow) : value);
    }
    // What `of` gives, from element `from` of the message on.
    [[nodiscard]] std::vector<char> given(int of, size_t tensor, size_t from, size_t count) const {
        std::vector<char> values(count * bytes());
        for (size_t i = 0; i < count; ++i) {
            put(gradient(of, tensor, from + i), &values[i * bytes()]);
        }
        return values;
    }
};

class Tensor {
  public:
    Tensor(const Job& job, size_t index)
        : job_(job),
          mine_(job.given(job.rank, index, 0, job.blocks() * job.block)),
          exact_(job.block),
          sums_(job.block),
          sent_(job.block) {
        CHECK_CUDA(cudaMalloc(&send_, mine_.size()));
        CHECK_CUDA(cudaMalloc(&receive_, job.block * job.bytes()));
        const size_t first = job.scatters() ? static_cast<size_t>(job.rank) * job.block : 0;
        for (int rank = 0; rank < job.ranks; ++rank) {
            const std::vector<char> theirs = job.given(rank, index, first, job.block);
            for (size_t i = 0; i < job.block; ++i) {
                exact_[i] += job.get(&theirs[i * job.bytes()]);
            }
        }
    }
    // Returns the largest error of the sum of all steps.
    double step(int number, size_t* partial) {
        std::vector<char> result(job_.block * job_.bytes());
        CHECK_CUDA(cudaMemcpy(send_, mine_.data(), mine_.size(), cudaMemcpyHostToDevice));
        CHECK_NCCL(slimwire::test::make_call(job_.operation, send_, receive_, job_.block,
                                             job_.type(), 0, job_.comm));
        CHECK_CUDA(cudaMemcpy(result.data(), receive_, result.size(), cudaMemcpyDeviceToHost));
        double error = 0;
        for (size_t i = 0; i < job_.block; ++i) {
            const double value = job_.get(&result[i * job_.bytes()]);
            sums_[i] += value;
            error = std::max(error, std::fabs(sums_[i] - number * exact_[i]));
            sent_[i] += value != 0 ? 1 : 0;
            *partial += value != 0 && std::fabs(value - exact_[i]) > 0.02 * exact_[i] ? 1 : 0;
        }
        return error;
    }
    [[nodiscard]] ptrdiff_t changing(int steps) const {
        return std::count_if(sent_.begin(), sent_.end(),
                             [&](int times) { return times > 0 && times < steps; });
    }

  private:
    const Job& job_;
    void *send_ = nullptr, *receive_ = nullptr;
    std::vector<char> mine_;
    std::vector<double> exact_, sums_;
    std::vector<int> sent_;
};

}  // namespace

int main(int argc, char** argv) {
    EXPECT_THAT(argc >= 4 && argc <= 6, "steps, type and operation are asked for");
    const int steps = std::atoi(argv[1]);
    const std::string way = argc > 5 ? argv[5] : "";
    Job job;
    job.half = std::string(argv[2]) == "bf16";
    job.operation = argv[3];
    job.block = argc > 4 ? static_cast<size_t>(std::atoi(argv[4])) : job.block;
    job.comm = slimwire::test::join_job(job.rank, job.ranks);
    std::vector<Tensor> tensors;
    for (size_t tensor = 0; tensor < (way == "two" ? 2 : 1); ++tensor) {
        tensors.emplace_back(job, tensor);
    }
    size_t partial = 0;
    std::printf("error");
    for (int number = 1; number <= steps; ++number) {
        if (way == "marked") {
            (void)slimwire_mark_step(static_cast<uint64_t>(number));
        }
        double error = 0;
        for (Tensor& tensor : tensors) {
            error = std::max(error, tensor.step(number, &partial));
        }
        if (number == steps / 2 || number == steps) {
            std::printf(" %.4f", error / job.ranks);
        }
    }
    std::printf(" partial %zu changing %td\n", partial, tensors[0].changing(steps));
    CHECK_NCCL(ncclCommDestroy(job.comm));
    return 0;
}
