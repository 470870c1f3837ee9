// Makes calls whose results tell what became of single contributions, each step with fresh data:
// of rank 0 in an all-reduce in place where all others give zeros, of each rank's own in an
// all-gather, of the root's in a broadcast. Prints how far it is from what was given, relative L2:
// "error STEP VALUE". Arguments: allreduce, allgather or broadcast; fp32, fp16 or bf16; steps;
// elements.
#include <cmath>
#include <cstring>
#include <vector>

#include "codecs/float16.h"
#include "tests/e2e/programs/operations.h"
#include "tests/support/nccl_program.h"

namespace {

using namespace slimwire;

struct Elements {
    ncclDataType_t type;
    size_t bytes;

    [[nodiscard]] float get(const std::vector<unsigned char>& from, size_t i) const {
        if (type == ncclFloat32) {
            float value = 0;
            std::memcpy(&value, from.data() + i * 4, 4);
            return value;
        }
        uint16_t bits = 0;
        std::memcpy(&bits, from.data() + i * 2, 2);
        return type == ncclFloat16 ? float16_to_float(bits) : bfloat16_to_float(bits);
    }
    void put(std::vector<unsigned char>* to, size_t i, float value) const {
        if (type == ncclFloat32) {
            std::memcpy(to->data() + i * 4, &value, 4);
            return;
        }
        const uint16_t narrow =
            type == ncclFloat16 ? float_to_float16(value) : float_to_bfloat16(value);
        std::memcpy(to->data() + i * 2, &narrow, 2);
    }
};

// Of magnitudes from 1/16 to 8, the larger ones rare.
float draw(uint32_t* state) {
    *state = *state * 1664525u + 1013904223u;
    const float fraction = static_cast<float>(*state >> 8 & 0xFFFFu) / 65536.0f;
    const float scale = (*state >> 27) == 0 ? 8.0f : (*state >> 26 & 1) != 0 ? 1.0f : 0.25f;
    return ((*state & 0x80u) != 0 ? -1.0f : 1.0f) * scale * (0.25f + 0.75f * fraction);
}

}  // namespace

int main(int argc, char** argv) {
    EXPECT_THAT(argc == 5, "%d arguments", argc);
    const std::string op = argv[1], type = argv[2];
    const int steps = std::atoi(argv[3]);
    const auto count = static_cast<size_t>(std::atoi(argv[4]));
    const Elements elements = type == "fp32"   ? Elements{ncclFloat32, 4}
                              : type == "fp16" ? Elements{ncclFloat16, 2}
                                               : Elements{ncclBfloat16, 2};
    const int rank = slimwire::test::launcher_rank();
    const int ranks = slimwire::test::launcher_ranks();
    ncclComm_t comm = slimwire::test::join_job(rank, ranks);
    const size_t bytes = count * elements.bytes;
    char *send = nullptr, *receive = nullptr;
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&send), bytes));
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&receive), bytes * static_cast<size_t>(ranks)));
    uint32_t state = 99u + static_cast<uint32_t>(rank);
    std::vector<unsigned char> given(bytes), got(bytes);
    for (int step = 0; step < steps; ++step) {
        std::fill(given.begin(), given.end(), static_cast<unsigned char>(0));
        for (size_t i = 0; (rank == 0 || op != "allreduce") && i < count; ++i) {
            elements.put(&given, i, draw(&state));
        }
        CHECK_CUDA(cudaMemcpy(send, given.data(), bytes, cudaMemcpyHostToDevice));
        // In place where there is a sum.
        char* const to = op == "allreduce" ? send : receive;
        CHECK_NCCL(slimwire::test::make_call(op, send, to, count, elements.type, 0, comm));
        const char* const result = to + (op == "allgather" ? static_cast<size_t>(rank) * bytes : 0);
        CHECK_CUDA(cudaStreamSynchronize(nullptr));
        CHECK_CUDA(cudaMemcpy(got.data(), result, bytes, cudaMemcpyDeviceToHost));
        double squares = 0, errors = 0;
        for (size_t i = 0; i < count; ++i) {
            const double value = static_cast<double>(elements.get(given, i));
            const double error = value - static_cast<double>(elements.get(got, i));
            squares += value * value;
            errors += error * error;
        }
        if (rank == 0 || op == "allgather") {
            std::printf("error %d %.12g\n", step, std::sqrt(errors / squares));
        }
    }
    CHECK_NCCL(ncclCommDestroy(comm));
    return 0;
}
