// One rank of a job in which something goes wrong. The argument names the situation; every rank
// checks that what it sees is an NCCL error in bounded time, never a hang. Exit codes as in
// nccl_program.h; a rank that plays the victim ends by SIGKILL or with 0.
#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <vector>

#include "tests/support/nccl_program.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kCount = 100'000;
constexpr double kBoundSeconds = 30;  // on the slowest machine

int g_rank = 0;
int g_ranks = 1;
cudaStream_t g_stream = nullptr;
float* g_data = nullptr;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

void prepare() {
    CHECK_CUDA(cudaStreamCreateWithFlags(&g_stream, cudaStreamNonBlocking));
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&g_data), kCount * sizeof(float)));
    CHECK_CUDA(cudaMemset(g_data, 0, kCount * sizeof(float)));
    CHECK_CUDA(cudaDeviceSynchronize());
}

ncclComm_t join(const ncclUniqueId& id) {
    ncclComm_t comm = nullptr;
    CHECK_NCCL(ncclCommInitRank(&comm, g_ranks, id, g_rank));
    return comm;
}

ncclResult_t all_reduce(ncclComm_t comm) {
    return ncclAllReduce(g_data, g_data, kCount, ncclFloat32, ncclSum, comm, g_stream);
}

// Waits until the communicator reports an error.
ncclResult_t await_error(ncclComm_t comm) {
    const auto start = Clock::now();
    ncclResult_t state = ncclSuccess;
    while (state == ncclSuccess && seconds_since(start) < kBoundSeconds) {
        CHECK_NCCL(ncclCommGetAsyncError(comm, &state));
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return state;
}

// The stream comes to its end, the error is remote, later calls fail, abort works.
void expect_remote_error(ncclComm_t comm) {
    const ncclResult_t state = await_error(comm);
    EXPECT_THAT(state == ncclRemoteError, "state %d", static_cast<int>(state));
    (void)cudaStreamSynchronize(g_stream);
    EXPECT_THAT(all_reduce(comm) == ncclRemoteError, "a later call");
    const std::string text = ncclGetLastError(comm);
    EXPECT_THAT(text.find("rank ") != std::string::npos, "%s", text.c_str());
    CHECK_NCCL(ncclCommAbort(comm));
}

// A call that has come to its end on every rank.
void complete_together(ncclComm_t comm) {
    CHECK_NCCL(all_reduce(comm));
    CHECK_CUDA(cudaStreamSynchronize(g_stream));
    slimwire::test::barrier("complete", g_rank, g_ranks);
}

// A call while another rank dies or leaves, which may be known already.
void enqueue_beside_death(ncclComm_t comm) {
    const ncclResult_t result = all_reduce(comm);
    EXPECT_THAT(result == ncclSuccess || result == ncclRemoteError, "a call returned %d",
                static_cast<int>(result));
}

int killed_in_a_collective(ncclComm_t comm) {
    complete_together(comm);
    if (g_rank == 1) {
        kill(getpid(), SIGKILL);
    }
    enqueue_beside_death(comm);
    expect_remote_error(comm);
    return 0;
}

int killed_in_the_middle_of_a_transfer(ncclComm_t comm) {
    // On a slow link the victim dies with slices on the wire.
    complete_together(comm);
    for (int i = 0; i < 50; ++i) {
        enqueue_beside_death(comm);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    if (g_rank == 1) {
        kill(getpid(), SIGKILL);
    }
    expect_remote_error(comm);
    return 0;
}

int killed_while_the_others_are_idle(ncclComm_t comm) {
    complete_together(comm);
    if (g_rank == 1) {
        kill(getpid(), SIGKILL);
    }
    expect_remote_error(comm);
    return 0;
}

int exits_without_destroying(ncclComm_t comm) {
    slimwire::test::barrier("joined", g_rank, g_ranks);
    if (g_rank == 1) {
        std::exit(0);
    }
    enqueue_beside_death(comm);
    expect_remote_error(comm);
    return 0;
}

int a_split_sees_the_death_of_a_member(ncclComm_t comm) {
    ncclComm_t part = nullptr;
    CHECK_NCCL(ncclCommSplit(comm, 0, -g_rank, &part, nullptr));
    slimwire::test::barrier("split", g_rank, g_ranks);
    if (g_rank == 1) {
        kill(getpid(), SIGKILL);
    }
    enqueue_beside_death(part);
    expect_remote_error(part);
    CHECK_NCCL(ncclCommAbort(comm));
    return 0;
}

int abort_ends_a_waiting_collective(ncclComm_t comm) {
    // Rank 0 alone calls; nobody dies. Its abort ends the wait, the others hear of it.
    if (g_rank == 0) {
        CHECK_NCCL(all_reduce(comm));
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        EXPECT_THAT(cudaStreamQuery(g_stream) == cudaErrorNotReady, "the collective should wait");
        CHECK_NCCL(ncclCommAbort(comm));
        (void)cudaStreamSynchronize(g_stream);
    } else {
        expect_remote_error(comm);
    }
    // The others see the abort and not an end of the process.
    slimwire::test::barrier("seen", g_rank, g_ranks);
    return 0;
}

int left_early(ncclComm_t comm) {
    if (g_rank == 1) {
        CHECK_NCCL(ncclCommDestroy(comm));
    } else {
        enqueue_beside_death(comm);
        expect_remote_error(comm);
    }
    slimwire::test::barrier("seen", g_rank, g_ranks);
    return 0;
}

// The root has done its part and leaves; the last rank waits for the one in between, which is late.
int left_before_another_comes(ncclComm_t comm) {
    const auto broadcast = [&] {
        CHECK_NCCL(ncclBroadcast(g_data, g_data, kCount, ncclFloat32, 0, comm, g_stream));
        CHECK_CUDA(cudaStreamSynchronize(g_stream));
    };
    broadcast();  // connects
    if (g_rank == 1) {
        (void)slimwire::test::await("left");
        std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    }
    broadcast();
    ncclResult_t state = ncclSuccess;
    CHECK_NCCL(ncclCommGetAsyncError(comm, &state));
    EXPECT_THAT(state == ncclSuccess, "state %d: %s", static_cast<int>(state),
                ncclGetLastError(comm));
    CHECK_NCCL(ncclCommDestroy(comm));
    if (g_rank == 0) {
        slimwire::test::publish("left", "");
    }
    return 0;
}

// Rank 2 does not call. Rank 0 is revoked first; rank 1 waits on until it is, too.
int revoked_one_after_the_other(ncclComm_t comm) {
    complete_together(comm);
    if (g_rank != 2) {
        CHECK_NCCL(all_reduce(comm));
    }
    if (g_rank == 1) {
        (void)slimwire::test::await("revoked");
        const auto start = Clock::now();
        while (seconds_since(start) < 0.5) {
            ncclResult_t state = ncclSuccess;
            CHECK_NCCL(ncclCommGetAsyncError(comm, &state));
            EXPECT_THAT(state == ncclSuccess, "state %d: %s", static_cast<int>(state),
                        ncclGetLastError(comm));
            EXPECT_THAT(cudaStreamQuery(g_stream) == cudaErrorNotReady, "the call has ended");
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
    }
    CHECK_NCCL(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
    CHECK_CUDA(cudaStreamSynchronize(g_stream));
    if (g_rank == 0) {
        slimwire::test::publish("revoked", "");
    }
    ncclComm_t again = nullptr;
    CHECK_NCCL(ncclCommSplit(comm, 0, g_rank, &again, nullptr));
    CHECK_NCCL(all_reduce(again));
    CHECK_CUDA(cudaStreamSynchronize(g_stream));
    CHECK_NCCL(ncclCommDestroy(again));
    CHECK_NCCL(ncclCommDestroy(comm));
    return 0;
}

int different_counts(ncclComm_t comm) {
    const ncclResult_t made = ncclAllReduce(g_data, g_data, kCount - (g_rank == 0 ? 0 : 1000),
                                            ncclFloat32, ncclSum, comm, g_stream);
    // The other rank may have seen it, and left, before this one calls.
    EXPECT_THAT(made == ncclSuccess || made == ncclRemoteError, "the call returned %d",
                static_cast<int>(made));
    const ncclResult_t state = await_error(comm);
    EXPECT_THAT(state == ncclInvalidUsage || state == ncclRemoteError, "state %d",
                static_cast<int>(state));
    (void)cudaStreamSynchronize(g_stream);
    CHECK_NCCL(ncclCommAbort(comm));
    return 0;
}

// --- Before the communicator exists

// Where the root of `id` listens.
sockaddr_in root_of(const ncclUniqueId& id) {
    sockaddr_in address{};
    memcpy(&address, id.internal + 8, sizeof address);
    return address;
}

// Whether this process has said to the root of `id` that it joins.
bool has_joined(const ncclUniqueId& id) {
    for (int fd = 0; fd < 256; ++fd) {
        sockaddr_in peer{};
        socklen_t bytes = sizeof peer;
        tcp_info info{};
        socklen_t info_bytes = sizeof info;
        constexpr uint64_t kBeforeData = 1;
        if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) == 0 &&
            peer.sin_port == root_of(id).sin_port &&
            getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &info_bytes) == 0 &&
            info.tcpi_bytes_acked > kBeforeData) {
            return true;
        }
    }
    return false;
}

int dies_during_initialisation(const ncclUniqueId& id) {
    if (g_rank == 1) {
        std::thread([&id] {
            while (!has_joined(id)) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
            kill(getpid(), SIGKILL);
        }).detach();
    }
    if (g_rank == 2) {
        (void)slimwire::test::await("seen", 60);  // never joins
        return 0;
    }
    ncclComm_t comm = nullptr;
    const ncclResult_t result = ncclCommInitRank(&comm, g_ranks, id, g_rank);
    slimwire::test::publish("seen", "");
    EXPECT_THAT(result == ncclRemoteError, "result %d", static_cast<int>(result));
    EXPECT_THAT(comm == nullptr, "a communicator came back");
    const std::string text = ncclGetLastError(nullptr);
    EXPECT_THAT(text.find("rank 1") != std::string::npos, "%s", text.c_str());
    return 0;
}

int ranks_disagree_about_their_number(const ncclUniqueId& id) {
    ncclComm_t comm = nullptr;
    const ncclResult_t result =
        ncclCommInitRank(&comm, g_rank == 1 ? g_ranks + 1 : g_ranks, id, g_rank);
    EXPECT_THAT(result == ncclInvalidUsage, "result %d: %s", static_cast<int>(result),
                ncclGetLastError(nullptr));
    // Rank 0's process tells the others, and must not end before.
    slimwire::test::barrier("told", g_rank, g_ranks);
    return 0;
}

int root_is_gone(const ncclUniqueId& id) {
    if (g_rank == 0) {
        return 0;  // made the id, and ends
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    ncclComm_t comm = nullptr;
    const ncclResult_t result = ncclCommInitRank(&comm, g_ranks, id, g_rank);
    EXPECT_THAT(result == ncclSystemError || result == ncclRemoteError, "result %d",
                static_cast<int>(result));
    return 0;
}

// Connections to the root that are not ranks': silent, garbage, the right size with a wrong token.
int stray_connections(const ncclUniqueId& id) {
    std::vector<int> strays;
    if (g_rank == 0) {
        const sockaddr_in address = root_of(id);
        const std::vector<std::string> greetings = {"", "GET / HTTP/1.0\r\n\r\n",
                                                    std::string(64, '\0'), std::string(4096, 'x')};
        for (const std::string& greeting : greetings) {
            const int fd = socket(AF_INET, SOCK_STREAM, 0);
            EXPECT_THAT(
                connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0,
                "the root listens on 127.0.0.1 port %d", ntohs(address.sin_port));
            (void)send(fd, greeting.data(), greeting.size(), MSG_NOSIGNAL);
            strays.push_back(fd);
        }
        EXPECT_THAT(address.sin_addr.s_addr == htonl(INADDR_LOOPBACK), "not on loopback");
    }
    ncclComm_t comm = join(id);  // for the strays never leave
    CHECK_NCCL(all_reduce(comm));
    CHECK_CUDA(cudaStreamSynchronize(g_stream));
    CHECK_NCCL(ncclCommDestroy(comm));
    for (const int fd : strays) {
        close(fd);
    }
    return 0;
}

int bad_link(const ncclUniqueId& id) {
    ncclComm_t comm = nullptr;
    const ncclResult_t result = ncclCommInitRank(&comm, g_ranks, id, g_rank);
    EXPECT_THAT(result == ncclInvalidArgument, "result %d", static_cast<int>(result));
    std::printf("%s\n", ncclGetLastError(nullptr));
    return 0;
}

// Rank 1 dies, the others notice, leave it out and go on.
int the_survivors_shrink(ncclComm_t comm) {
    complete_together(comm);
    if (g_rank == 1) {
        kill(getpid(), SIGKILL);
    }
    enqueue_beside_death(comm);
    EXPECT_THAT(await_error(comm) == ncclRemoteError, "no error");
    (void)cudaStreamSynchronize(g_stream);
    int dead[] = {1};
    ncclComm_t rest = nullptr;
    CHECK_NCCL(ncclCommShrink(comm, dead, 1, &rest, nullptr, NCCL_SHRINK_ABORT));
    CHECK_NCCL(ncclCommAbort(comm));
    const std::vector<float> ones(kCount, 1);
    std::vector<float> sums(kCount);
    CHECK_CUDA(cudaMemcpy(g_data, ones.data(), kCount * sizeof(float), cudaMemcpyDefault));
    CHECK_NCCL(all_reduce(rest));
    CHECK_CUDA(cudaStreamSynchronize(g_stream));
    CHECK_CUDA(cudaMemcpy(sums.data(), g_data, kCount * sizeof(float), cudaMemcpyDefault));
    EXPECT_THAT(sums[kCount - 1] == static_cast<float>(g_ranks - 1), "sum %g",
                static_cast<double>(sums[kCount - 1]));
    CHECK_NCCL(ncclCommDestroy(rest));
    return 0;
}

// SLIMWIRE_EMU_FAULT=ncclAllReduce:2,ncclAllReduce:3=6,ncclGroupEnd:2=50ms: on every rank alike.
int injected(ncclComm_t comm) {
    CHECK_NCCL(all_reduce(comm));
    EXPECT_THAT(all_reduce(comm) == ncclInternalError, "the second call");
    const std::string text = ncclGetLastError(comm);
    EXPECT_THAT(text.find("SLIMWIRE_EMU_FAULT") != std::string::npos, "%s", text.c_str());
    CHECK_NCCL(ncclGroupStart());
    EXPECT_THAT(all_reduce(comm) == ncclRemoteError, "the third call");
    EXPECT_THAT(ncclGroupEnd() != ncclSuccess, "the group of the third call");
    const auto start = Clock::now();
    CHECK_NCCL(ncclGroupStart());
    CHECK_NCCL(all_reduce(comm));
    CHECK_NCCL(ncclGroupEnd());
    EXPECT_THAT(seconds_since(start) >= 0.05, "not late: %.3f s", seconds_since(start));
    CHECK_CUDA(cudaStreamSynchronize(g_stream));
    CHECK_NCCL(ncclCommDestroy(comm));
    return 0;
}

struct Situation {
    const char* name;
    int (*with_comm)(ncclComm_t);
    int (*with_id)(const ncclUniqueId&);
};

constexpr Situation kSituations[] = {
    {"killed_in_a_collective", killed_in_a_collective, nullptr},
    {"killed_in_the_middle_of_a_transfer", killed_in_the_middle_of_a_transfer, nullptr},
    {"killed_while_the_others_are_idle", killed_while_the_others_are_idle, nullptr},
    {"exits_without_destroying", exits_without_destroying, nullptr},
    {"a_split_sees_the_death_of_a_member", a_split_sees_the_death_of_a_member, nullptr},
    {"abort_ends_a_waiting_collective", abort_ends_a_waiting_collective, nullptr},
    {"left_early", left_early, nullptr},
    {"left_before_another_comes", left_before_another_comes, nullptr},
    {"revoked_one_after_the_other", revoked_one_after_the_other, nullptr},
    {"different_counts", different_counts, nullptr},
    {"the_survivors_shrink", the_survivors_shrink, nullptr},
    {"injected", injected, nullptr},
    {"dies_during_initialisation", nullptr, dies_during_initialisation},
    {"ranks_disagree_about_their_number", nullptr, ranks_disagree_about_their_number},
    {"root_is_gone", nullptr, root_is_gone},
    {"stray_connections", nullptr, stray_connections},
    {"bad_link", nullptr, bad_link},
};

}  // namespace

int main(int argc, char** argv) {
    const std::string name = argc > 1 ? argv[1] : "";
    g_rank = slimwire::test::launcher_rank();
    g_ranks = slimwire::test::launcher_ranks();
    prepare();
    const ncclUniqueId id = slimwire::test::exchange_id(g_rank);
    slimwire::test::barrier("ids", g_rank, g_ranks);
    for (const Situation& situation : kSituations) {
        if (name == situation.name) {
            return situation.with_id != nullptr ? situation.with_id(id)
                                                : situation.with_comm(join(id));
        }
    }
    return 2;
}
