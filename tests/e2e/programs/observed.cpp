// Makes calls of every kind that a mode which only observes could disturb, and prints what came of
// them: a line for each situation with a digest of all result bits, or with the codes of refused
// calls. Every run of it must print the same. Last line: "calls N", those on communicators of its
// own. Any number of ranks from 2.
#include <cinttypes>
#include <vector>

#include "tests/support/nccl_program.h"

namespace {

using slimwire::test::launcher_rank;
using slimwire::test::launcher_ranks;

constexpr size_t kCount = 5003;
constexpr size_t kBytes = size_t{1} << 20;

int calls = 0;

#define CALL(call)        \
    do {                  \
        ++calls;          \
        CHECK_NCCL(call); \
    } while (0)

struct Buffers {
    int rank, ranks;
    char *send = nullptr, *receive = nullptr;
    cudaStream_t stream = nullptr, side = nullptr;
    uint32_t state;

    Buffers(int own, int all) : rank(own), ranks(all), state(static_cast<uint32_t>(own) + 77) {
        CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&send), kBytes));
        CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&receive), kBytes));
        CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        CHECK_CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    }
    // Small values of every type: the top bits of each element stay small.
    void fill() {
        std::vector<uint32_t> values(kBytes / 4);
        for (uint32_t& value : values) {
            state = state * 1664525u + 1013904223u;
            value = (state & 0x807F807Fu) | 0x3C003C00u;
        }
        CHECK_CUDA(cudaMemcpy(send, values.data(), kBytes, cudaMemcpyHostToDevice));
        CHECK_CUDA(cudaMemset(receive, 0, kBytes));
        CHECK_CUDA(cudaDeviceSynchronize());  // the streams do not wait for the default one
    }
    void digest(const std::string& name) const {
        CHECK_CUDA(cudaStreamSynchronize(stream));
        CHECK_CUDA(cudaStreamSynchronize(side));
        constexpr size_t kWords = kBytes / sizeof(uint64_t);
        std::vector<uint64_t> words(2 * kWords);
        CHECK_CUDA(cudaMemcpy(words.data(), receive, kBytes, cudaMemcpyDeviceToHost));
        CHECK_CUDA(cudaMemcpy(words.data() + kWords, send, kBytes, cudaMemcpyDeviceToHost));
        uint64_t hash = 14695981039346656037u;
        for (const uint64_t word : words) {
            hash = (hash ^ word) * 1099511628211u;
        }
        std::printf("%s %016" PRIx64 "\n", name.c_str(), hash);
    }
};

void every_operation(ncclComm_t comm, Buffers* on) {
    for (const ncclDataType_t type : {ncclFloat32, ncclFloat16, ncclBfloat16, ncclInt32}) {
        for (const size_t count : {kCount, size_t{1}, size_t{0}}) {
            on->fill();
            char *s = on->send, *r = on->receive;
            const int root = on->ranks - 1;
            CALL(ncclAllReduce(s, r, count, type, ncclSum, comm, on->stream));
            CALL(ncclAllReduce(s, s, count, type, ncclMax, comm, on->stream));
            CALL(ncclReduceScatter(s, r, count, type, ncclSum, comm, on->stream));
            CALL(ncclReduce(s, r, count, type, ncclSum, root, comm, on->stream));
            CALL(ncclAllGather(s, r, count, type, comm, on->stream));
            CALL(ncclBroadcast(s, r, count, type, root, comm, on->stream));
            CALL(ncclAlltoAll(s, r, count, type, comm, on->stream));
            CALL(ncclGather(s, r, count, type, root, comm, on->stream));
            CALL(ncclScatter(s, r, count, type, root, comm, on->stream));
            on->digest("operations of " + std::to_string(count));
        }
    }
}

void groups(ncclComm_t comm, ncclComm_t other, Buffers* on) {
    on->fill();
    const int next = (on->rank + 1) % on->ranks;
    const int former = (on->rank + on->ranks - 1) % on->ranks;
    CHECK_NCCL(ncclGroupStart());
    CALL(ncclAllReduce(on->send, on->receive, kCount, ncclFloat32, ncclSum, comm, on->stream));
    CALL(ncclAllReduce(on->send + 40000, on->send + 40000, kCount, ncclFloat32, ncclAvg, other,
                       on->side));
    CHECK_NCCL(ncclGroupStart());
    CALL(ncclSend(on->send, kCount, ncclFloat16, next, comm, on->stream));
    CALL(ncclRecv(on->receive + 500000, kCount, ncclFloat16, former, comm, on->stream));
    CHECK_NCCL(ncclGroupEnd());
    CHECK_NCCL(ncclGroupEnd());
    on->digest("group");
}

void operators(ncclComm_t comm, Buffers* on) {
    on->fill();
    float half = 0.5f;
    ncclRedOp_t op = ncclSum;
    CHECK_NCCL(ncclRedOpCreatePreMulSum(&op, &half, ncclFloat32, ncclScalarHostImmediate, comm));
    CALL(ncclAllReduce(on->send, on->receive, kCount, ncclFloat32, op, comm, on->stream));
    CHECK_NCCL(ncclRedOpDestroy(op, comm));
    on->digest("operator");
}

void capture(ncclComm_t comm, ncclComm_t other, Buffers* on) {
    on->fill();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    CHECK_CUDA(cudaStreamBeginCapture(on->stream, cudaStreamCaptureModeGlobal));
    CALL(ncclAllReduce(on->send, on->send, kCount, ncclFloat32, ncclAvg, comm, on->stream));
    CHECK_NCCL(ncclGroupStart());
    CALL(ncclAllReduce(on->send, on->receive, kCount, ncclFloat32, ncclSum, comm, on->stream));
    CALL(ncclAllGather(on->send, on->receive + 100000, kCount, ncclFloat32, other, on->stream));
    CHECK_NCCL(ncclGroupEnd());
    CHECK_CUDA(cudaStreamEndCapture(on->stream, &graph));
    size_t nodes = 0;
    CHECK_CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
    CHECK_CUDA(cudaGraphInstantiate(&ready, graph, 0));
    for (int replay = 0; replay < 3; ++replay) {
        CHECK_CUDA(cudaGraphLaunch(ready, on->stream));
    }
    on->digest("graph of " + std::to_string(nodes) + " nodes");
    CHECK_CUDA(cudaGraphExecDestroy(ready));
    CHECK_CUDA(cudaGraphDestroy(graph));
}

void non_blocking(Buffers* on) {
    const ncclUniqueId id = slimwire::test::exchange_id(on->rank, "non-blocking");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    const auto settle = [&](ncclResult_t result) {
        while (result == ncclInProgress) {
            CHECK_NCCL(ncclCommGetAsyncError(comm, &result));
        }
        CHECK_NCCL(result);
    };
    settle(ncclCommInitRankConfig(&comm, on->ranks, id, on->rank, &config));
    on->fill();
    for (int call = 0; call < 3; ++call) {
        ++calls;
        settle(
            ncclAllReduce(on->send, on->receive, kCount, ncclFloat32, ncclSum, comm, on->stream));
    }
    on->digest("non-blocking");
    settle(ncclCommFinalize(comm));
    CHECK_NCCL(ncclCommDestroy(comm));
}

void errors(ncclComm_t comm, Buffers* on) {
    on->fill();
    std::vector<float> host(kCount);
    const auto say = [&](const char* what, ncclResult_t result) {
        std::printf("%s: %d, last of CUDA %d\n", what, static_cast<int>(result),
                    static_cast<int>(cudaGetLastError()));
    };
    char *s = on->send, *r = on->receive;
    say("no communicator", ncclAllReduce(s, r, 4, ncclFloat32, ncclSum, nullptr, on->stream));
    calls += 4;
    say("host buffer",
        ncclAllReduce(host.data(), r, kCount, ncclFloat32, ncclSum, comm, on->stream));
    say("null buffer", ncclAllReduce(nullptr, r, kCount, ncclFloat32, ncclSum, comm, on->stream));
    say("bad root", ncclBroadcast(s, r, kCount, ncclFloat32, on->ranks, comm, on->stream));
    say("bad operator",
        ncclAllReduce(s, r, kCount, ncclFloat32, static_cast<ncclRedOp_t>(77), comm, on->stream));
    say("bad type",
        ncclAllReduce(s, r, kCount, static_cast<ncclDataType_t>(99), ncclSum, comm, on->stream));
    ++calls;
    CHECK_NCCL(ncclGroupStart());
    say("in a group", ncclBroadcast(s, r, kCount, ncclFloat32, -1, comm, on->stream));
    say("its end", ncclGroupEnd());
    CALL(ncclAllReduce(s, r, kCount, ncclFloat32, ncclSum, comm, on->stream));
    on->digest("after errors");
    // An error of the program's own that it has not asked for yet, while calls are timed.
    for (int call = 0; call < 6; ++call) {
        void* never = nullptr;
        (void)cudaMalloc(&never, size_t{1} << 60);
        ++calls;
        say("beside an error of the program",
            ncclAllReduce(s, r, kCount + 1, ncclFloat32, ncclSum, comm, on->stream));
    }
    on->digest("beside errors");
}

// A step of three tensors, long enough to be recognised.
void training(ncclComm_t comm, Buffers* on) {
    on->fill();
    for (int step = 0; step < 330; ++step) {
        for (const size_t count : {size_t{100}, size_t{300}, size_t{200}}) {
            CALL(ncclAllReduce(on->send + count * 4, on->receive + count * 4, count, ncclFloat32,
                               ncclSum, comm, on->stream));
        }
        CHECK_CUDA(cudaStreamSynchronize(on->stream));
    }
    on->digest("training");
}

}  // namespace

int main() {
    const int rank = launcher_rank();
    const int ranks = launcher_ranks();
    CHECK_CUDA(cudaSetDevice(0));
    const ncclUniqueId id = slimwire::test::exchange_id(rank);
    ncclComm_t comm = nullptr, other = nullptr;
    CHECK_NCCL(ncclCommInitRank(&comm, ranks, id, rank));
    CHECK_NCCL(ncclCommSplit(comm, 0, rank, &other, nullptr));
    Buffers buffers(rank, ranks);
    every_operation(comm, &buffers);
    groups(comm, other, &buffers);
    operators(comm, &buffers);
    capture(comm, other, &buffers);
    non_blocking(&buffers);
    errors(comm, &buffers);
    training(other, &buffers);
    CHECK_NCCL(ncclCommDestroy(other));
    CHECK_NCCL(ncclCommDestroy(comm));
    std::printf("calls %d\n", calls);
    return 0;
}
