// What making communicators costs: in each round an id, ncclCommInitRank of all ranks and a
// ncclCommSplit into halves, over emulated ranks in this process. Prints the medians of the rounds
// of both in microseconds; creation_bench RANKS ROUNDS. creation_bench --splits COUNT [RANKS]
// splits as many ranks (2), each a process, into pairs COUNT times, keeps all of them, and prints
// the times of the first split, of the second, the median of the later ones and their sum.
// creation_bench --set makes 30 communicators on 8 ranks from ids, as Megatron does for tensor,
// pipeline and data parallelism of 2 each, and prints the time of all. tests/bench/creation runs
// each natively and under a policy by turns.
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point begin) {
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

void split_often(int rank, int ranks, const ncclUniqueId& id, size_t count) {
    std::vector<ncclComm_t> comms(count + 1);
    check(ncclCommInitRank(&comms[0], ranks, id, rank), "ncclCommInitRank");
    std::vector<double> took;
    for (size_t i = 1; i <= count; ++i) {
        const auto begin = Clock::now();
        check(ncclCommSplit(comms[0], rank / 2, rank, &comms[i], nullptr), "ncclCommSplit");
        took.push_back(us_since(begin));
    }
    if (rank == 0) {
        double all = 0;
        for (const double us : took) {
            all += us;
        }
        std::printf("%.1f %.1f", took[0], took[1]);
        std::sort(took.begin() + 1, took.end());
        std::printf(" %.1f %.1f\n", took[1 + (count - 1) / 2], all);
    }
    for (size_t i = comms.size(); i-- > 0;) {
        check(ncclCommDestroy(comms[i]), "ncclCommDestroy");
    }
}

int measure_splits(int count, int ranks) {
    ::setenv("SLIMWIRE_EMU_DEVICES", "1", 1);
    int ends[2];
    if (count < 2 || ranks < 2 || ranks > kMostRanks || pipe(ends) != 0) {
        std::fprintf(stderr, "creation_bench --splits COUNT [RANKS]: at least 2 of each\n");
        return 2;
    }
    std::vector<pid_t> others;
    ncclUniqueId id;
    for (int rank = 1; rank < ranks; ++rank) {
        others.push_back(fork());
        if (others.back() == 0) {
            const bool told = read(ends[0], &id, sizeof(id)) == static_cast<ssize_t>(sizeof(id));
            check(told ? ncclSuccess : ncclSystemError, "reading the id");
            split_often(rank, ranks, id, static_cast<size_t>(count));
            return 0;
        }
    }
    check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    for (size_t i = 0; i < others.size(); ++i) {
        const bool told = write(ends[1], &id, sizeof(id)) == static_cast<ssize_t>(sizeof(id));
        check(told ? ncclSuccess : ncclSystemError, "telling the id");
    }
    split_often(0, ranks, id, static_cast<size_t>(count));
    bool well = true;
    for (const pid_t other : others) {
        int status = 0;
        well = waitpid(other, &status, 0) == other && status == 0 && well;
    }
    return well ? 0 : 1;
}

// Ranks differ within a group in the bits that are set in `within`.
void make_groups(unsigned within, std::vector<ncclComm_t>* comms) {
    for (unsigned first = 0; first < 8; ++first) {
        if ((first & within) != 0) {
            continue;
        }
        ncclUniqueId id;
        check(ncclGetUniqueId(&id), "ncclGetUniqueId");
        check(ncclGroupStart(), "ncclGroupStart");
        std::vector<int> ranks;
        for (unsigned rank = 0; rank < 8; ++rank) {
            if ((rank & ~within) == first) {
                ranks.push_back(static_cast<int>(rank));
            }
        }
        comms->resize(comms->size() + ranks.size());
        for (size_t i = 0; i < ranks.size(); ++i) {
            (void)cudaSetDevice(ranks[i]);
            check(ncclCommInitRank(&(*comms)[comms->size() - ranks.size() + i],
                                   static_cast<int>(ranks.size()), id, static_cast<int>(i)),
                  "ncclCommInitRank");
        }
        check(ncclGroupEnd(), "ncclGroupEnd");
    }
}

int measure_set() {
    ::setenv("SLIMWIRE_EMU_DEVICES", "8", 1);
    constexpr unsigned kTensor = 1, kData = 2, kPipeline = 4;
    std::vector<ncclComm_t> comms;
    const auto begin = Clock::now();
    // The world twice, each way of parallelism, two of them together, embeddings, experts.
    for (const unsigned within : {kTensor | kData | kPipeline, kTensor | kData | kPipeline, kTensor,
                                  kData, kPipeline, kTensor | kData, kTensor | kPipeline,
                                  kData | kPipeline, kPipeline, kTensor, kTensor | kData}) {
        make_groups(within, &comms);
    }
    std::printf("%.1f\n", us_since(begin));
    for (size_t i = comms.size(); i-- > 0;) {
        check(ncclCommDestroy(comms[i]), "ncclCommDestroy");
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    if ((argc == 3 || argc == 4) && std::strcmp(argv[1], "--splits") == 0) {
        return measure_splits(std::atoi(argv[2]), argc == 4 ? std::atoi(argv[3]) : 2);
    }
    if (argc == 2 && std::strcmp(argv[1], "--set") == 0) {
        return measure_set();
    }
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
