// The calls of a DeepSpeed engine without ZeRO: each parameter is broadcast by itself, then in each
// step the gradients are flattened in the order of registration and reduced in parts. Prints of
// each part whether it is the exact sum ("native"), exact in the vectors alone ("parts"), or
// nowhere exact ("coded").
//   engine plain|registered|registered_on_one|late|whole STEPS
// registered: the program told the shapes by slimwire_register_parameter, or did on rank 1 alone;
// late: in the fourth step; whole: all gradients are one part.
#include <cmath>
#include <string>
#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/support/nccl_program.h"

namespace {

struct Parameter {
    size_t count;
    std::vector<int64_t> sizes;
};
const std::vector<Parameter> kModel = {{6000, {60, 100}}, {64, {64}}, {3000, {30, 100}},
                                       {5000, {50, 100}}, {32, {32}}, {2000, {20, 100}}};

float gradient(int rank, size_t i) {
    // Multiples of 2^-10: sums of them are exact.
    return static_cast<float>(std::floor(1024 * std::sin(0.37 * static_cast<double>(i) + rank))) /
           1024;
}

// Whether elements from `begin` on are the exact sum.
bool exact(const std::vector<float>& got, size_t begin, size_t count, int ranks) {
    for (size_t i = begin; i < begin + count; ++i) {
        float sum = 0;
        for (int rank = 0; rank < ranks; ++rank) {
            sum += gradient(rank, i);
        }
        if (got[i] != sum) {
            return false;
        }
    }
    return true;
}

void register_parameters() {
    for (uint32_t i = 0; i < kModel.size(); ++i) {
        char name[8];
        std::snprintf(name, sizeof name, "p%u", i);
        EXPECT_THAT(
            slimwire_register_parameter(0, i, name, kModel[i].sizes.data(),
                                        static_cast<int>(kModel[i].sizes.size())) == SLIMWIRE_OK,
            "%s", slimwire_last_error());
    }
}

}  // namespace

int main(int, char** argv) {
    const std::string way = argv[1];
    const int steps = std::atoi(argv[2]);
    const int rank = slimwire::test::launcher_rank(), ranks = slimwire::test::launcher_ranks();
    CHECK_CUDA(cudaSetDevice(0));
    if (way == "registered" || (way == "registered_on_one" && rank == 1)) {
        register_parameters();
    }
    const ncclUniqueId id = slimwire::test::exchange_id(rank);
    ncclComm_t comm = nullptr;
    CHECK_NCCL(ncclCommInitRank(&comm, ranks, id, rank));
    float* buffer = nullptr;
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&buffer), 20000 * sizeof(float)));
    CHECK_CUDA(cudaMemset(buffer, 0, 20000 * sizeof(float)));
    for (const Parameter& parameter : kModel) {
        CHECK_NCCL(ncclBroadcast(buffer, buffer, parameter.count, ncclFloat32, 0, comm, nullptr));
    }
    const std::vector<std::vector<size_t>> parts =
        way == "whole" ? std::vector<std::vector<size_t>>{{0, 1, 2, 3, 4, 5}}
                       : std::vector<std::vector<size_t>>{{0, 1}, {2, 3}, {4, 5}};
    for (int step = 1; step <= steps; ++step) {
        std::printf("step %d:", step);
        if (way == "late" && step == 4) {
            register_parameters();
        }
        for (const auto& part : parts) {
            size_t count = 0;
            for (const size_t parameter : part) {
                count += kModel[parameter].count;
            }
            std::vector<float> values(count);
            for (size_t i = 0; i < count; ++i) {
                values[i] = gradient(rank, i);
            }
            CHECK_CUDA(
                cudaMemcpy(buffer, values.data(), count * sizeof(float), cudaMemcpyHostToDevice));
            CHECK_NCCL(ncclAllReduce(buffer, buffer, count, ncclFloat32, ncclSum, comm, nullptr));
            CHECK_CUDA(
                cudaMemcpy(values.data(), buffer, count * sizeof(float), cudaMemcpyDeviceToHost));
            size_t offset = 0;
            int exact_vectors = 0, exact_others = 0;
            for (const size_t parameter : part) {
                const bool is = exact(values, offset, kModel[parameter].count, ranks);
                (kModel[parameter].sizes.size() == 1 ? exact_vectors : exact_others) += is ? 1 : 0;
                offset += kModel[parameter].count;
            }
            std::printf(" %s", exact_others > 0 ? "native" : exact_vectors > 0 ? "parts" : "coded");
        }
        std::printf("\n");
    }
    CHECK_NCCL(ncclCommDestroy(comm));
    return 0;
}
