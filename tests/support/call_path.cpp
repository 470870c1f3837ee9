// One planned all-reduce with error feedback, and which functions it enters and leaves: a program
// for call_path.py, which compiles slimwire with -finstrument-functions. Two ranks are two threads
// on two devices. Rank 0's last call is followed; a line an event: E (enter) or X (leave), the file
// that holds the function, its address in there.
//
// usage: call_path    with the instrumented libslimwire.so preloaded, on the emulator
#include <dlfcn.h>

#include <thread>

#include "tests/support/nccl_program.h"

namespace {

thread_local bool t_follows = false;

void note(char kind, const void* function) noexcept {
    Dl_info info{};
    if (t_follows && dladdr(function, &info) != 0) {
        std::printf("%c %s %zx\n", kind, info.dli_fname,
                    static_cast<size_t>(static_cast<const char*>(function) -
                                        static_cast<const char*>(info.dli_fbase)));
    }
}

void run_rank(int rank, const ncclUniqueId& id) {
    constexpr size_t kCount = 1 << 16;
    constexpr int kCalls = 8;
    CHECK_CUDA(cudaSetDevice(rank));
    ncclComm_t comm = nullptr;
    CHECK_NCCL(ncclCommInitRank(&comm, 2, id, rank));
    float* buffer = nullptr;
    CHECK_CUDA(cudaMalloc(&buffer, kCount * sizeof(float)));
    CHECK_CUDA(cudaMemset(buffer, 0, kCount * sizeof(float)));
    cudaStream_t stream = nullptr;
    CHECK_CUDA(cudaStreamCreate(&stream));
    for (int call = 0; call < kCalls; ++call) {
        CHECK_CUDA(cudaStreamSynchronize(stream));
        t_follows = rank == 0 && call == kCalls - 1;
        const ncclResult_t result =
            ncclAllReduce(buffer, buffer, kCount, ncclFloat, ncclSum, comm, stream);
        t_follows = false;
        CHECK_NCCL(result);
    }
    CHECK_CUDA(cudaStreamSynchronize(stream));
    CHECK_NCCL(ncclCommDestroy(comm));
}

}  // namespace

extern "C" {
[[gnu::no_instrument_function]] void __cyg_profile_func_enter(void* function, void* /*caller*/) {
    note('E', function);
}
[[gnu::no_instrument_function]] void __cyg_profile_func_exit(void* function, void* /*caller*/) {
    note('X', function);
}
}

int main() {
    ncclUniqueId id;
    CHECK_NCCL(ncclGetUniqueId(&id));
    std::thread other([&] { run_rank(1, id); });
    run_rank(0, id);
    other.join();
    return 0;
}
