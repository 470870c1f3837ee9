// What making communicators costs: in each round an id, ncclCommInitRank of all ranks and a
// ncclCommSplit into halves, over emulated ranks in this process. Prints the medians of the rounds
// of both in microseconds; creation_bench RANKS ROUNDS. tests/bench/creation runs it natively and
// under a policy by turns.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr int kMostRanks = 64;

void check(ncclResult_t result, const char* what) {
    if (result != ncclSuccess) {
        std::fprintf(stderr, "creation_bench: %s failed: %s\n", what, ncclGetLastError(nullptr));
        std::exit(1);
    }
}

struct Round {
    double init_us = 0, split_us = 0;
};

Round round_of(int ranks) {
    ncclComm_t comms[kMostRanks] = {}, halves[kMostRanks] = {};
    const auto begin = std::chrono::steady_clock::now();
    ncclUniqueId id;
    check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    check(ncclGroupStart(), "ncclGroupStart");
    for (int rank = 0; rank < ranks; ++rank) {
        (void)cudaSetDevice(rank);
        check(ncclCommInitRank(&comms[rank], ranks, id, rank), "ncclCommInitRank");
    }
    check(ncclGroupEnd(), "ncclGroupEnd");
    const auto middle = std::chrono::steady_clock::now();
    check(ncclGroupStart(), "ncclGroupStart");
    for (int rank = 0; rank < ranks; ++rank) {
        check(ncclCommSplit(comms[rank], rank % 2, rank, &halves[rank], nullptr), "ncclCommSplit");
    }
    check(ncclGroupEnd(), "ncclGroupEnd");
    using Us = std::chrono::duration<double, std::micro>;
    const Round took{Us(middle - begin).count(),
                     Us(std::chrono::steady_clock::now() - middle).count()};
    for (int rank = 0; rank < ranks; ++rank) {
        check(ncclCommDestroy(halves[rank]), "ncclCommDestroy");
        check(ncclCommDestroy(comms[rank]), "ncclCommDestroy");
    }
    return took;
}

}  // namespace

int main(int argc, char** argv) {
    const int ranks = argc > 1 ? std::atoi(argv[1]) : 8;
    const int rounds = argc > 2 ? std::atoi(argv[2]) : 21;
    if (ranks < 2 || ranks > kMostRanks || rounds < 1) {
        std::fprintf(stderr, "creation_bench [RANKS [ROUNDS]]: 2 to %d ranks\n", kMostRanks);
        return 2;
    }
    ::setenv("SLIMWIRE_EMU_DEVICES", std::to_string(ranks).c_str(), 1);
    std::vector<double> inits, splits;
    for (int round = 0; round <= rounds; ++round) {  // one to warm up
        const Round took = round_of(ranks);
        if (round > 0) {
            inits.push_back(took.init_us);
            splits.push_back(took.split_us);
        }
    }
    std::sort(inits.begin(), inits.end());
    std::sort(splits.begin(), splits.end());
    std::printf("%.1f %.1f\n", inits[inits.size() / 2], splits[splits.size() / 2]);
    return 0;
}
