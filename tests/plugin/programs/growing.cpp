// One rank of a job in which the communicator of the first two ranks grows by the others. The
// argument names the situation; each rank checks what it sees. Exit codes as in nccl_program.h.
#include <nccl_later.h>

#include <chrono>
#include <string>
#include <thread>

#include "tests/plugin/programs/lives_rank.h"

namespace {

using namespace slimwire::test;

constexpr int kOldRanks = 2;

bool is_old() {
    return g_rank < kOldRanks;
}

ncclConfig_t config_of(bool blocking) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking ? 1 : 0;
    return config;
}

void expect_settled(ncclComm_t comm, const char* what) {
    const ncclResult_t state = settled(comm);
    EXPECT_THAT(state == ncclSuccess, "%s: %d: %s", what, static_cast<int>(state),
                ncclGetLastError(nullptr));
}

// The old ranks' communicator, ready; null on the others.
ncclComm_t join_old(const ncclUniqueId& id, bool blocking) {
    ncclComm_t comm = nullptr;
    if (is_old()) {
        ncclConfig_t config = config_of(blocking);
        const ncclResult_t result = ncclCommInitRankConfig(&comm, kOldRanks, id, g_rank, &config);
        EXPECT_THAT(result == (blocking ? ncclSuccess : ncclInProgress), "%d",
                    static_cast<int>(result));
        expect_settled(comm, "the old ranks");
    }
    return comm;
}

// Starts to grow `old` to all ranks; `name` is that of this growth in the job. New ranks come
// `late_ms` after the old ones' id.
ncclComm_t grow(ncclComm_t old, const std::string& name, bool blocking, int late_ms = 0) {
    ncclUniqueId id{};
    if (g_rank == 0) {
        CHECK_NCCL(ncclCommGetUniqueId(old, &id));
        publish(name, std::string(id.internal, sizeof id.internal));
    } else if (!is_old()) {
        std::memcpy(id.internal, await(name).data(), sizeof id.internal);
        std::this_thread::sleep_for(std::chrono::milliseconds(late_ms));
    }
    const bool has_id = g_rank == 0 || !is_old();
    ncclConfig_t config = config_of(blocking);
    ncclComm_t grown = nullptr;
    const ncclResult_t result =
        ncclCommGrow(old, g_ranks, has_id ? &id : nullptr, is_old() ? -1 : g_rank, &grown, &config);
    EXPECT_THAT(result == (blocking ? ncclSuccess : ncclInProgress), "%s: %d: %s", name.c_str(),
                static_cast<int>(result), ncclGetLastError(nullptr));
    return grown;
}

// Blocking and not, one after the other; each communicator then does its work.
int grow_both_ways(const ncclUniqueId& id, bool old_compressed, bool grown_compressed) {
    for (const bool blocking : {true, false}) {
        const std::string name = blocking ? "blocking" : "non-blocking";
        const ncclUniqueId again = blocking ? id : exchange_id(g_rank, "again");
        ncclComm_t old = join_old(again, blocking);
        ncclComm_t grown = grow(old, name, blocking);
        if (is_old()) {
            expect_settled(old, "the one that grows");
        }
        expect_settled(grown, "the one that grew");
        reduce(grown, grown_compressed);
        if (is_old()) {
            reduce(old, old_compressed);
            CHECK_NCCL(ncclCommDestroy(old));
        }
        CHECK_NCCL(ncclCommDestroy(grown));
        barrier(name + " ended", g_rank, g_ranks);
    }
    return 0;
}

// The first rank goes on with the old communicator, which blocks and is never busy, while it grows
// in the background; the other one waits in the call for the new ranks, which come late. Calls on
// the old communicator are in the program's order on both, whatever else is under way: native ones
// too, which share it with whatever slimwire needs to tell the others.
int calls_on_the_old_one_while_it_grows(const ncclUniqueId& id) {
    constexpr int kRounds = 3;
    ncclComm_t old = join_old(id, true);
    int32_t* counts = nullptr;
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&counts), kCount * sizeof(int32_t)));
    for (int round = 0; round < kRounds; ++round) {
        const bool background = g_rank == round % kOldRanks;
        ncclComm_t grown = grow(old, "round " + std::to_string(round), !background, 200);
        if (is_old()) {
            std::vector<int32_t> host(kCount, g_rank + 1);
            CHECK_CUDA(cudaMemcpyAsync(counts, host.data(), kCount * sizeof(int32_t),
                                       cudaMemcpyHostToDevice, g_stream));
            CHECK_NCCL(ncclAllReduce(counts, counts, kCount, ncclInt32, ncclSum, old, g_stream));
            reduce(old, true);
            CHECK_CUDA(cudaMemcpyAsync(host.data(), counts, kCount * sizeof(int32_t),
                                       cudaMemcpyDeviceToHost, g_stream));
            CHECK_CUDA(cudaStreamSynchronize(g_stream));
            for (const int32_t count : host) {
                EXPECT_THAT(count == 3, "a native sum is %d", count);
            }
        }
        expect_settled(grown, "the one that grew");
        reduce(grown, true);
        CHECK_NCCL(ncclCommDestroy(grown));
    }
    CHECK_CUDA(cudaFree(counts));
    if (is_old()) {
        CHECK_NCCL(ncclCommDestroy(old));
    }
    return 0;
}

constexpr Situation kSituations[] = {
    {"all_compress", [](const ncclUniqueId& id) { return grow_both_ways(id, true, true); }},
    // The last rank, a new one, runs without slimwire: what grew is native, what was there is not.
    {"a_new_rank_is_a_stranger",
     [](const ncclUniqueId& id) { return grow_both_ways(id, true, false); }},
    // An old rank does: nothing can be compressed.
    {"an_old_rank_is_a_stranger",
     [](const ncclUniqueId& id) { return grow_both_ways(id, false, false); }},
    {"calls_on_the_old_one_while_it_grows", calls_on_the_old_one_while_it_grows},
};

}  // namespace

int main(int argc, char** argv) {
    return run_situation(kSituations, argc, argv);
}
