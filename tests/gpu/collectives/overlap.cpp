// A backward pass as data-parallel training makes it: matrix products on one stream, and after each
// an all-reduce of its gradient on a second one of higher priority. How much longer the products
// take is measured alone, beside native all-reduces and beside compressed ones, in turn in every
// round of one process: the native ones through NCCL's profiling twin, which nobody intercepts.
// Usage: overlap ROUNDS SIDE PRODUCTS COUNT. Rank 0 prints one JSON line of medians. Results are
// checked.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/gpu/collectives/matrix_product.h"
#include "tests/support/nccl_program.h"
#include "tools/cli/common/median.h"

namespace {

using slimwire::cli::median;

enum Beside { kAlone, kNative, kCompressed, kWays };

struct Pass {
    int rank = 0, ranks = 0, side = 0, products = 0;
    size_t count = 0;
    ncclComm_t comm = nullptr;
    cudaStream_t compute = nullptr, network = nullptr;
    cudaEvent_t begin = nullptr, end = nullptr, ready = nullptr;
    float *a = nullptr, *b = nullptr, *c = nullptr, *gradient = nullptr, *result = nullptr;
    int* token = nullptr;

    static float* make(size_t elems, float value) {
        const std::vector<float> values(elems, value);
        void* memory = nullptr;
        CHECK_CUDA(cudaMalloc(&memory, elems * sizeof(float)));
        CHECK_CUDA(
            cudaMemcpy(memory, values.data(), elems * sizeof(float), cudaMemcpyHostToDevice));
        return static_cast<float*>(memory);
    }

    // The ranks begin together: nobody's products run while others still wait.
    void meet() const {
        CHECK_NCCL(ncclAllReduce(token, token, 1, ncclInt32, ncclMax, comm, network));
        CHECK_CUDA(cudaDeviceSynchronize());
    }

    // Milliseconds from the first product's begin to the last one's end.
    [[nodiscard]] double time(Beside beside) const {
        meet();
        CHECK_CUDA(cudaEventRecord(begin, compute));
        for (int i = 0; i < products; ++i) {
            CHECK_CUDA(slimwire::test::launch_product(a, b, c, side, compute));
            if (beside != kAlone) {
                CHECK_CUDA(cudaEventRecord(ready, compute));
                CHECK_CUDA(cudaStreamWaitEvent(network, ready, 0));
                CHECK_NCCL((beside == kNative ? pncclAllReduce : ncclAllReduce)(
                    gradient, result, count, ncclFloat32, ncclSum, comm, network));
            }
        }
        CHECK_CUDA(cudaEventRecord(end, compute));
        CHECK_CUDA(cudaDeviceSynchronize());
        float spent_ms = 0;
        CHECK_CUDA(cudaEventElapsedTime(&spent_ms, begin, end));
        return static_cast<double>(spent_ms);
    }

    void check(Beside beside) const {
        std::vector<float> values(count);
        CHECK_CUDA(
            cudaMemcpy(values.data(), result, count * sizeof(float), cudaMemcpyDeviceToHost));
        const double expected = ranks * (ranks + 1) / 2.0;
        const double allowed = beside == kNative ? 0 : 0.02 * expected;
        for (size_t i = 0; i < count; ++i) {
            EXPECT_THAT(std::fabs(static_cast<double>(values[i]) - expected) <= allowed,
                        "element %zu is %g instead of %g", i, static_cast<double>(values[i]),
                        expected);
        }
        std::vector<float> product(static_cast<size_t>(side) * static_cast<size_t>(side));
        CHECK_CUDA(
            cudaMemcpy(product.data(), c, product.size() * sizeof(float), cudaMemcpyDeviceToHost));
        for (const float value : product) {
            EXPECT_THAT(value == static_cast<float>(side), "a product is %g instead of %d",
                        static_cast<double>(value), side);
        }
    }
};

}  // namespace

int main(int argc, char** argv) {
    EXPECT_THAT(argc == 5, "rounds, side, products and count are asked for");
    const int rounds = std::atoi(argv[1]);
    Pass pass;
    pass.side = std::atoi(argv[2]);
    pass.products = std::atoi(argv[3]);
    pass.count = static_cast<size_t>(std::atoll(argv[4]));
    EXPECT_THAT(rounds > 0 && pass.products > 0 && pass.count > 0 && pass.side > 0 &&
                    pass.side % slimwire::test::kProductTile == 0,
                "the side is a multiple of %d, the others are above 0",
                slimwire::test::kProductTile);
    pass.rank = slimwire::test::launcher_rank();
    pass.ranks = slimwire::test::launcher_ranks();
    pass.comm = slimwire::test::join_job(pass.rank, pass.ranks);
    int least = 0, greatest = 0;
    CHECK_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CHECK_CUDA(cudaStreamCreateWithPriority(&pass.compute, cudaStreamNonBlocking, least));
    CHECK_CUDA(cudaStreamCreateWithPriority(&pass.network, cudaStreamNonBlocking, greatest));
    CHECK_CUDA(cudaEventCreate(&pass.begin));
    CHECK_CUDA(cudaEventCreate(&pass.end));
    CHECK_CUDA(cudaEventCreateWithFlags(&pass.ready, cudaEventDisableTiming));
    const size_t matrix = static_cast<size_t>(pass.side) * static_cast<size_t>(pass.side);
    pass.a = Pass::make(matrix, 1);
    pass.b = Pass::make(matrix, 1);
    pass.c = Pass::make(matrix, 0);
    pass.gradient = Pass::make(pass.count, static_cast<float>(pass.rank + 1));
    pass.result = Pass::make(pass.count, 0);
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&pass.token), sizeof(int)));
    CHECK_CUDA(cudaMemset(pass.token, 0, sizeof(int)));

    std::vector<double> times[kWays];
    for (int round = -1; round < rounds; ++round) {  // the first warms up
        for (int way = 0; way < kWays; ++way) {
            const auto beside = static_cast<Beside>((way + round + kWays) % kWays);
            const double spent_ms = pass.time(beside);
            if (round >= 0) {
                times[beside].push_back(spent_ms);
            } else if (beside != kAlone) {
                pass.check(beside);
            }
        }
    }
    const double alone = median(times[kAlone]), native = median(times[kNative]),
                 compressed = median(times[kCompressed]);
    if (pass.rank == 0) {
        std::printf(
            "{\"side\":%d,\"products\":%d,\"rounds\":%d,\"message_bytes\":%zu,\"alone_ms\":%.4f,"
            "\"native_ms\":%.4f,\"compressed_ms\":%.4f,\"native_slow_down\":%.4f,"
            "\"compressed_slow_down\":%.4f,\"against_native\":%.4f}\n",
            pass.side, pass.products, rounds, pass.count * sizeof(float), alone, native, compressed,
            native / alone, compressed / alone, compressed / native);
    }
    CHECK_NCCL(ncclCommDestroy(pass.comm));
    return 0;
}
