// A job that meets a failing call somewhere below it and does what a careful program does: it says
// at which step it got an error, aborts its communicators, frees what is its own and ends. Each
// step prints "STEP ok HASH" (of results that are equal on all ranks) or "STEP failed: WHY"; WHY
// begins with "nccl" or, for a CUDA call of the program itself, with "cuda". Ends with 5 for a
// wrong result, memory that did not come back or an error left for cudaGetLastError; else with 0.
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "tests/support/nccl_program.h"

namespace {

constexpr size_t kCount = 12000;
constexpr float kLargest = 12;  // of a rank's values

struct Failure {
    std::string why;
};

void cuda(cudaError_t error, const char* what) {
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        throw Failure{std::string("cuda: ") + what + ": " + cudaGetErrorString(error)};
    }
}
void nccl(ncclResult_t result, const char* what) {
    if (result != ncclSuccess) {
        throw Failure{std::string("nccl: ") + what + ": " + ncclGetErrorString(result) + ": " +
                      ncclGetLastError(nullptr)};
    }
}
#define CUDA(call) cuda(call, #call)
#define NCCL(call) nccl(call, #call)

float value(int rank, size_t i) {
    return static_cast<float>(rank + 1) * static_cast<float>(static_cast<int>(i % 13) - 6) / 2;
}

class Job {
  public:
    Job() {
        CHECK_CUDA(cudaMemGetInfo(&free_before_, &total_));
        CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&buffer_), 2 * kCount * sizeof(float)));
        CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&other_), 2 * kCount * sizeof(float)));
        CHECK_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    }

    void run() {
        const std::array<std::pair<const char*, std::function<void()>>, 9> steps = {{
            {"init", [this] { init(); }},
            {"all_reduce", [this] { all_reduces(); }},
            {"group", [this] { group(); }},
            {"mixed_group", [this] { mixed_group(); }},
            {"reduce_scatter", [this] { reduce_scatter(); }},
            {"all_gather", [this] { all_gather(); }},
            {"messages", [this] { messages(); }},
            {"graph", [this] { graph(); }},
            {"split", [this] { split(); }},
        }};
        for (const auto& [name, step] : steps) {
            hash_ = 0;
            try {
                step();
                std::printf("%s ok %016llx\n", name, static_cast<unsigned long long>(hash_));
            } catch (const Failure& failure) {
                std::printf("%s failed: %s\n", name, failure.why.c_str());
                break;
            }
        }
        end();
    }

  private:
    void init() {
        std::fprintf(stderr, "faulted: what came before was the program's own\n");
        NCCL(ncclCommInitRank(&comm_, ranks_, id_, rank_));
    }

    void fill(float* buffer, size_t count, size_t from = 0) {
        std::vector<float> values(count);
        for (size_t i = 0; i < count; ++i) {
            values[i] = value(rank_, from + i);
        }
        CUDA(cudaMemcpyAsync(buffer, values.data(), count * sizeof(float), cudaMemcpyHostToDevice,
                             stream_));
        CUDA(cudaStreamSynchronize(stream_));
    }

    // What a program waits with that wants to hear of lost ranks.
    void wait(ncclComm_t comm) {
        cudaError_t state = cudaErrorNotReady;
        while ((state = cudaStreamQuery(stream_)) == cudaErrorNotReady) {
            ncclResult_t error = ncclSuccess;
            NCCL(ncclCommGetAsyncError(comm, &error));
            nccl(error, "asynchronous error");
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        CUDA(state);
        ncclResult_t error = ncclSuccess;
        NCCL(ncclCommGetAsyncError(comm, &error));
        nccl(error, "asynchronous error");
    }

    std::vector<float> read(const float* buffer, size_t count, bool equal_on_ranks = true) {
        std::vector<float> values(count);
        CUDA(cudaMemcpyAsync(values.data(), buffer, count * sizeof(float), cudaMemcpyDeviceToHost,
                             stream_));
        CUDA(cudaStreamSynchronize(stream_));
        for (const float one : values) {
            uint32_t bits = 0;
            std::memcpy(&bits, &one, sizeof bits);
            hash_ = equal_on_ranks ? (hash_ ^ bits) * 0x100000001b3u : hash_;
        }
        return values;
    }

    void expect(const std::vector<float>& got, size_t from, float factor) const {
        for (size_t i = 0; i < got.size(); ++i) {
            const float exact = factor * value(0, from + i);
            EXPECT_THAT(std::fabs(got[i] - exact) <= 0.1f * kLargest,
                        "rank %d, element %zu: %g, expected %g", rank_, i,
                        static_cast<double>(got[i]), static_cast<double>(exact));
        }
    }
    [[nodiscard]] float sum() const { return static_cast<float>(ranks_ * (ranks_ + 1) / 2); }

    void all_reduces() {
        for (int call = 0; call < 3; ++call) {
            fill(buffer_, kCount);
            NCCL(ncclAllReduce(buffer_, other_, kCount, ncclFloat32, ncclSum, comm_, stream_));
            wait(comm_);
            expect(read(other_, kCount), 0, sum());
        }
    }

    void group() {
        fill(buffer_, kCount);
        NCCL(ncclGroupStart());
        const ncclResult_t one =
            ncclAllReduce(buffer_, other_, kCount, ncclFloat32, ncclSum, comm_, stream_);
        const ncclResult_t two =
            ncclAllReduce(buffer_, other_ + kCount, kCount, ncclFloat32, ncclAvg, comm_, stream_);
        const ncclResult_t end = ncclGroupEnd();
        nccl(one, "first");
        nccl(two, "second");
        nccl(end, "end");
        wait(comm_);
        expect(read(other_, kCount), 0, sum());
        expect(read(other_ + kCount, kCount), 0, sum() / static_cast<float>(ranks_));
    }

    // Beside a native call, of a type that no codec takes.
    void mixed_group() {
        fill(buffer_, kCount);
        NCCL(ncclGroupStart());
        const ncclResult_t one =
            ncclAllReduce(buffer_, other_, kCount, ncclFloat32, ncclSum, comm_, stream_);
        const ncclResult_t two = ncclAllReduce(other_ + kCount, other_ + kCount, 100, ncclInt32,
                                               ncclMax, comm_, stream_);
        const ncclResult_t end = ncclGroupEnd();
        nccl(one, "compressed");
        nccl(two, "native");
        nccl(end, "end");
        wait(comm_);
        expect(read(other_, kCount), 0, sum());
    }

    void reduce_scatter() {
        const size_t part = kCount / static_cast<size_t>(ranks_);
        fill(buffer_, kCount);
        NCCL(ncclReduceScatter(buffer_, other_, part, ncclFloat32, ncclSum, comm_, stream_));
        wait(comm_);
        expect(read(other_, part, false), part * static_cast<size_t>(rank_), sum());
    }

    void all_gather() {
        const size_t part = kCount / static_cast<size_t>(ranks_);
        fill(buffer_, part);
        NCCL(ncclAllGather(buffer_, other_, part, ncclFloat32, comm_, stream_));
        wait(comm_);
        const std::vector<float> all = read(other_, part * static_cast<size_t>(ranks_));
        for (int rank = 0; rank < ranks_; ++rank) {
            const auto begin = all.begin() + rank * static_cast<std::ptrdiff_t>(part);
            expect({begin, begin + static_cast<std::ptrdiff_t>(part)}, 0,
                   static_cast<float>(rank + 1));
        }
    }

    void messages() {
        const int next = (rank_ + 1) % ranks_, before = (rank_ + ranks_ - 1) % ranks_;
        fill(buffer_, kCount);
        NCCL(ncclGroupStart());
        const ncclResult_t one = ncclSend(buffer_, kCount, ncclFloat32, next, comm_, stream_);
        const ncclResult_t two = ncclRecv(other_, kCount, ncclFloat32, before, comm_, stream_);
        const ncclResult_t end = ncclGroupEnd();
        nccl(one, "send");
        nccl(two, "receive");
        nccl(end, "end");
        wait(comm_);
        expect(read(other_, kCount, false), 0, static_cast<float>(before + 1));
    }

    void graph() {
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t ready = nullptr;
        fill(buffer_, kCount);
        CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
        const ncclResult_t one =
            ncclAllReduce(buffer_, other_, kCount, ncclFloat32, ncclSum, comm_, stream_);
        const cudaError_t captured = cudaStreamEndCapture(stream_, &graph);
        if (one != ncclSuccess) {
            (void)cudaGetLastError();  // of a capture that was broken off
            if (graph != nullptr) {
                (void)cudaGraphDestroy(graph);
            }
        }
        nccl(one, "captured");
        CUDA(captured);
        CUDA(cudaGraphInstantiate(&ready, graph, 0));
        try {
            for (int replay = 0; replay < 2; ++replay) {
                CUDA(cudaGraphLaunch(ready, stream_));
                wait(comm_);
                expect(read(other_, kCount), 0, sum());
            }
        } catch (const Failure&) {
            release(ready, graph);
            throw;
        }
        release(ready, graph);
    }
    static void release(cudaGraphExec_t ready, cudaGraph_t graph) {
        (void)cudaGraphExecDestroy(ready);
        (void)cudaGraphDestroy(graph);
    }

    void split() {
        NCCL(ncclCommSplit(comm_, 0, ranks_ - rank_, &part_, nullptr));
        fill(buffer_, kCount);
        NCCL(ncclAllReduce(buffer_, other_, kCount, ncclFloat32, ncclSum, part_, stream_));
        wait(part_);
        expect(read(other_, kCount), 0, sum());
        const ncclComm_t part = part_;
        part_ = nullptr;
        NCCL(ncclCommDestroy(part));
        const ncclComm_t comm = comm_;
        comm_ = nullptr;
        NCCL(ncclCommDestroy(comm));
    }

    // After a failure communicators are aborted.
    void end() {
        for (const ncclComm_t comm : {part_, comm_}) {
            if (comm != nullptr) {
                const ncclResult_t aborted = ncclCommAbort(comm);
                std::printf("abort %d\n", static_cast<int>(aborted));
            }
        }
        // Errors of calls of our own were read where they came up.
        const cudaError_t left = cudaGetLastError();
        EXPECT_THAT(left == cudaSuccess, "rank %d: an error was left behind: %s", rank_,
                    cudaGetErrorString(left));
        size_t free_after = 0;
        // What work used that had not ended in the abort is freed by a later call.
        bool known = cudaDeviceSynchronize() == cudaSuccess;
        known = ncclCommAbort(nullptr) == ncclSuccess && known;
        for (const cudaError_t cleared :
             {cudaFree(buffer_), cudaFree(other_), cudaStreamDestroy(stream_),
              cudaMemGetInfo(&free_after, &total_)}) {
            known = known && cleared == cudaSuccess;
        }
        std::printf("kept %s\n",
                    known ? std::to_string(free_before_ - free_after).c_str() : "unknown");
    }

    int rank_ = slimwire::test::launcher_rank();
    int ranks_ = slimwire::test::launcher_ranks();
    ncclUniqueId id_ = slimwire::test::exchange_id(rank_);
    ncclComm_t comm_ = nullptr, part_ = nullptr;
    cudaStream_t stream_ = nullptr;
    float *buffer_ = nullptr, *other_ = nullptr;
    size_t free_before_ = 0, total_ = 0;
    uint64_t hash_ = 0;
};

}  // namespace

int main() {
    CHECK_CUDA(cudaSetDevice(0));
    Job().run();
    return 0;
}
