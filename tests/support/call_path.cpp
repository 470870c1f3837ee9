// One planned all-reduce with error feedback, and which functions it enters and leaves: a program
// for call_path.py, which compiles slimwire with -finstrument-functions. Two ranks are two threads
// on two devices. Rank 0's last call is followed; a line an event: E (enter) or X (leave), the file
// that holds the function, its address in there.
//
// usage: call_path    with the instrumented libslimwire.so preloaded, on the emulator
#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "tests/support/nccl_program.h"

namespace {

struct Event {
    void* function;
    bool enters;
};
constexpr size_t kRoom = 1 << 16;
std::array<Event, kRoom> g_events;
size_t g_count = 0;
thread_local bool t_follows = false;

void note(void* function, bool enters) noexcept {
    if (t_follows && g_count < kRoom) {
        g_events[g_count++] = {function, enters};
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
    note(function, true);
}
[[gnu::no_instrument_function]] void __cyg_profile_func_exit(void* function, void* /*caller*/) {
    note(function, false);
}
}

int main() {
    ncclUniqueId id;
    CHECK_NCCL(ncclGetUniqueId(&id));
    std::thread other([&] { run_rank(1, id); });
    run_rank(0, id);
    other.join();
    EXPECT_THAT(g_count > 0 && g_count < kRoom, "%zu events", g_count);
    for (size_t i = 0; i < g_count; ++i) {
        Dl_info info{};
        EXPECT_THAT(dladdr(g_events[i].function, &info) != 0, "a function of no file");
        std::printf("%c %s %zx\n", g_events[i].enters ? 'E' : 'X', info.dli_fname,
                    static_cast<size_t>(static_cast<char*>(g_events[i].function) -
                                        static_cast<char*>(info.dli_fbase)));
    }
    return 0;
}
