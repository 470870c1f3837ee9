// A training program that forks a helper in the middle, as data loaders do: the child must have no
// thread of slimwire's, may use what NCCL offers without a communicator, and exits in the ordinary
// way.
#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "tests/support/nccl_program.h"

namespace {

int threads_of_this_process() {
    int threads = 0;
    DIR* folder = opendir("/proc/self/task");
    while (const dirent* entry = folder != nullptr ? readdir(folder) : nullptr) {
        threads += entry->d_name[0] != '.';
    }
    return threads;
}

int child() {
    alarm(20);
    EXPECT_THAT(threads_of_this_process() == 1, "%d threads in the child",
                threads_of_this_process());
    int version = 0;
    CHECK_NCCL(ncclGetVersion(&version));
    CHECK_NCCL(ncclGroupStart());
    CHECK_NCCL(ncclGroupEnd());
    EXPECT_THAT(threads_of_this_process() == 1, "%d threads after calls",
                threads_of_this_process());
    std::fflush(nullptr);
    return 0;
}

}  // namespace

int main() {
    constexpr size_t kCount = 40000;
    const int rank = slimwire::test::launcher_rank();
    const int ranks = slimwire::test::launcher_ranks();
    CHECK_CUDA(cudaSetDevice(0));
    const ncclUniqueId id = slimwire::test::exchange_id(rank);
    ncclComm_t comm = nullptr;
    CHECK_NCCL(ncclCommInitRank(&comm, ranks, id, rank));
    float* buffer = nullptr;
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&buffer), kCount * sizeof(float)));
    CHECK_CUDA(cudaMemset(buffer, 0, kCount * sizeof(float)));
    for (int round = 0; round < 3; ++round) {
        CHECK_NCCL(ncclAllReduce(buffer, buffer, kCount, ncclFloat32, ncclSum, comm, nullptr));
        CHECK_CUDA(cudaStreamSynchronize(nullptr));
        const pid_t pid = fork();
        if (pid == 0) {
            return child();  // through exit handlers
        }
        int status = 0;
        EXPECT_THAT(waitpid(pid, &status, 0) == pid && status == 0,
                    "the child ended with status %d", status);
    }
    CHECK_NCCL(ncclCommDestroy(comm));
    return 0;
}
