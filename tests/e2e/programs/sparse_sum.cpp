// Reduces the same gradient again and again under a codec that sends some elements only, and prints
// "error A B partial P changing C": the largest error of the running sum of results against the
// exact one after half and all steps, in units of the number of ranks; how many results were
// neither nothing nor the whole sum; and how many elements were sent in some steps and not in
// others. Arguments: steps, f32 or bf16, allreduce, reducescatter or reduce, elements (12000),
// "marked": tells slimwire where steps begin.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/support/nccl_program.h"

namespace {

// Of one sign, so that no part of a sum looks like the whole; between 0.5 and 1.
double gradient(int rank, size_t i) {
    return 0.75 + 0.25 * std::sin(0.61 * static_cast<double>(i) + 2.3 * rank);
}

struct Elements {
    bool half;
    [[nodiscard]] size_t bytes() const { return half ? 2 : 4; }
    void put(std::vector<char>* to, double value) const {
        const float single = static_cast<float>(value);
        uint32_t bits = 0;
        std::memcpy(&bits, &single, 4);
        // Rounded to nearest, ties away: as good as any, if it is the same everywhere.
        bits = half ? (bits + 0x8000u) & 0xFFFF0000u : bits;
        const char* from = reinterpret_cast<const char*>(&bits) + (half ? 2 : 0);
        to->insert(to->end(), from, from + bytes());
    }
    [[nodiscard]] double get(const char* from) const {
        uint32_t bits = 0;
        std::memcpy(reinterpret_cast<char*>(&bits) + (half ? 2 : 0), from, bytes());
        float single = 0;
        std::memcpy(&single, &bits, 4);
        return static_cast<double>(single);
    }
};

}  // namespace

int main(int argc, char** argv) {
    EXPECT_THAT(argc >= 4 && argc <= 6, "steps, type and operation are asked for");
    const int steps = std::atoi(argv[1]);
    const Elements elements{std::string(argv[2]) == "bf16"};
    const std::string operation = argv[3];
    const size_t block = argc >= 5 ? static_cast<size_t>(std::atoi(argv[4])) : 12000;
    const ncclDataType_t type = elements.half ? ncclBfloat16 : ncclFloat32;
    const int rank = slimwire::test::launcher_rank();
    const int ranks = slimwire::test::launcher_ranks();
    ncclComm_t comm = slimwire::test::join_job(rank, ranks);
    const bool scattered = operation == "reducescatter";
    const size_t blocks = scattered ? static_cast<size_t>(ranks) : 1;
    const size_t first = scattered ? static_cast<size_t>(rank) * block : 0;
    std::vector<char> mine;
    std::vector<double> exact(block), sums(block);
    for (size_t i = 0; i < blocks * block; ++i) {
        elements.put(&mine, gradient(rank, i));
    }
    for (int r = 0; r < ranks; ++r) {
        std::vector<char> theirs;
        for (size_t i = 0; i < block; ++i) {
            elements.put(&theirs, gradient(r, first + i));
        }
        for (size_t i = 0; i < block; ++i) {
            exact[i] += elements.get(theirs.data() + i * elements.bytes());
        }
    }
    void *send = nullptr, *receive = nullptr;
    CHECK_CUDA(cudaMalloc(&send, mine.size()));
    CHECK_CUDA(cudaMalloc(&receive, block * elements.bytes()));
    std::vector<char> result(block * elements.bytes());
    std::vector<int> sent(block);
    size_t partial = 0;
    std::printf("error");
    for (int step = 1; step <= steps; ++step) {
        if (argc == 6) {
            (void)slimwire_mark_step(static_cast<uint64_t>(step));
        }
        CHECK_CUDA(cudaMemcpy(send, mine.data(), mine.size(), cudaMemcpyHostToDevice));
        if (scattered) {
            CHECK_NCCL(ncclReduceScatter(send, receive, block, type, ncclSum, comm, nullptr));
        } else if (operation == "reduce") {
            CHECK_NCCL(ncclReduce(send, receive, block, type, ncclSum, 0, comm, nullptr));
        } else {
            CHECK_NCCL(ncclAllReduce(send, receive, block, type, ncclSum, comm, nullptr));
        }
        CHECK_CUDA(cudaMemcpy(result.data(), receive, result.size(), cudaMemcpyDeviceToHost));
        double error = 0;
        for (size_t i = 0; i < block; ++i) {
            const double value = elements.get(result.data() + i * elements.bytes());
            sums[i] += value;
            error = std::max(error, std::fabs(sums[i] - step * exact[i]));
            sent[i] += value != 0 ? 1 : 0;
            partial += value != 0 && std::fabs(value - exact[i]) > 0.02 * exact[i] ? 1 : 0;
        }
        if (step == steps / 2 || step == steps) {
            std::printf(" %.4f", error / ranks);
        }
    }
    std::printf(" partial %zu changing %td\n", partial,
                std::count_if(sent.begin(), sent.end(),
                              [&](int times) { return times > 0 && times < steps; }));
    CHECK_NCCL(ncclCommDestroy(comm));
    return 0;
}
