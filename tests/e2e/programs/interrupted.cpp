// Calls one operation again and again, then checks the last result. Arguments: operation, then what
// becomes of the last rank: "kill", "stop" (for 2 s; its parent lets it go on) or "slow", and after
// how many microseconds. The others end with 42 after an error and ncclCommAbort, with 0 and "done"
// after the right result, with 43 when neither came in 30 s.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <thread>
#include <vector>

#include "tests/e2e/programs/operations.h"
#include "tests/support/nccl_program.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kCount = 60000;  // in several slices

}  // namespace

int main(int, char** argv) {
    const std::string op = argv[1], fate = argv[2];
    const auto after = std::chrono::microseconds(std::atoi(argv[3]));
    const int rank = slimwire::test::launcher_rank();
    const int ranks = slimwire::test::launcher_ranks();
    ncclComm_t comm = slimwire::test::join_job(rank, ranks);
    cudaStream_t stream = nullptr;
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    float *send = nullptr, *receive = nullptr;
    const size_t elems = kCount * static_cast<size_t>(ranks);
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&send), elems * sizeof(float)));
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&receive), elems * sizeof(float)));
    const std::vector<float> ones(elems, 1.0f);
    CHECK_CUDA(cudaMemcpy(send, ones.data(), elems * sizeof(float), cudaMemcpyHostToDevice));
    CHECK_CUDA(cudaMemset(receive, 0, elems * sizeof(float)));
    slimwire::test::barrier("created", rank, ranks);
    std::thread fall;
    if (rank == ranks - 1 && fate != "slow") {
        fall = std::thread([&] {
            std::this_thread::sleep_for(after);
            if (fate == "stop" && fork() == 0) {
                // The child lets the stopped parent go on.
                usleep(2000000);
                kill(getppid(), SIGCONT);
                _exit(0);
            }
            raise(fate == "stop" ? SIGSTOP : SIGKILL);
        });
    }
    const int root = op == "broadcast" || op == "scatter" ? ranks - 1 : 0;
    ncclResult_t state = ncclSuccess;
    const auto begin = Clock::now();
    const auto enough = fate == "kill" ? std::chrono::seconds(30) : std::chrono::seconds(1);
    int calls = 0;
    // Every rank makes the same number of calls, or, with one killed, as many as it can.
    while (state == ncclSuccess && (fate == "kill" ? Clock::now() - begin < enough : calls < 60)) {
        if (fate == "slow" && rank == ranks - 1) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        state =
            slimwire::test::make_call(op, send, receive, kCount, ncclFloat32, root, comm, stream);
        ++calls;
        cudaError_t progress = cudaErrorNotReady;
        while (state == ncclSuccess && (progress = cudaStreamQuery(stream)) == cudaErrorNotReady &&
               Clock::now() - begin < std::chrono::seconds(30)) {
            CHECK_NCCL(ncclCommGetAsyncError(comm, &state));
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
        if (state == ncclSuccess && progress != cudaSuccess) {
            break;
        }
    }
    if (fate == "kill") {
        CHECK_NCCL(ncclCommAbort(comm));
        std::printf("%s after %d calls\n", ncclGetErrorString(state), calls);
        return state == ncclSuccess ? 43 : 42;
    }
    CHECK_NCCL(state);
    if (fall.joinable()) {
        fall.join();
    }
    float value = 0;
    CHECK_CUDA(cudaMemcpy(&value, receive, sizeof(value), cudaMemcpyDeviceToHost));
    const bool sums = op == "allreduce" || op == "reducescatter" || op == "reduce";
    const bool here = (op != "reduce" && op != "gather") || rank == 0;
    const float expected = !here ? 0.0f : sums ? static_cast<float>(ranks) : 1.0f;
    EXPECT_THAT(calls == 60 && std::fabs(value - expected) < 0.1f, "%g instead of %g, %d calls",
                static_cast<double>(value), static_cast<double>(expected), calls);
    std::puts("done");
    CHECK_NCCL(ncclCommDestroy(comm));
    return 0;
}
