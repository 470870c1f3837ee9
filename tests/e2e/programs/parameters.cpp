// Makes the calls that PyTorch's DistributedDataParallel makes, in the ways a program may make
// them, and says how the gradients of each all-reduce came back. Two ranks, whose sum has one
// order. The argument names the way; lines are "step N: WORD WORD", a word for each bucket:
//   native   all elements are the exact sums
//   parts    those of parameters of one dimension are, the others are near
//   all      none of them all are
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/support/nccl_program.h"

namespace {

using slimwire::test::launcher_rank;
using slimwire::test::launcher_ranks;

using Buckets = std::vector<std::vector<size_t>>;
const std::vector<std::vector<int64_t>> kModel = {{96, 64}, {96}, {64}, {64, 32}, {32}};
const Buckets kMade = {{3, 4}, {0, 1, 2}};     // the last parameters first
const Buckets kRebuilt = {{4, 3, 2}, {1, 0}};  // as gradients became ready

size_t count_of(size_t parameter) {
    size_t count = 1;
    for (const int64_t size : kModel[parameter]) {
        count *= static_cast<size_t>(size);
    }
    return count;
}

struct Program {
    int rank = launcher_rank(), ranks = launcher_ranks();
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    char *send = nullptr, *receive = nullptr;
    bool grouped = false, blocking = true;
    uint32_t draws = 0;

    explicit Program(bool blocks) : blocking(blocks) {
        CHECK_CUDA(cudaSetDevice(0));
        CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&send), 1 << 20));
        CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&receive), 1 << 20));
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = blocks ? 1 : 0;
        settle(
            ncclCommInitRankConfig(&comm, ranks, slimwire::test::exchange_id(rank), rank, &config));
    }
    ~Program() {
        CHECK_CUDA(cudaStreamSynchronize(stream));
        settle(ncclCommFinalize(comm));
        CHECK_NCCL(ncclCommDestroy(comm));
    }
    void settle(ncclResult_t result) {
        while (result == ncclInProgress) {
            CHECK_NCCL(ncclCommGetAsyncError(comm, &result));
        }
        CHECK_NCCL(result);
    }
    void make(const std::function<ncclResult_t()>& call) {
        if (grouped) {
            CHECK_NCCL(ncclGroupStart());
            const ncclResult_t queued = call();
            EXPECT_THAT(queued == ncclSuccess || queued == ncclInProgress, "%d", queued);
            settle(ncclGroupEnd());
        } else {
            settle(call());
        }
    }
    template <class T>
    void put(const std::vector<T>& values) {
        CHECK_CUDA(cudaMemcpyAsync(send, values.data(), values.size() * sizeof(T),
                                   cudaMemcpyHostToDevice, stream));
        CHECK_CUDA(cudaStreamSynchronize(stream));
    }
    // Of the root's values; the others' are not used.
    template <class T>
    void broadcast(std::vector<T> values, ncclDataType_t type, bool old_name = false) {
        if (rank != 0) {
            std::fill(values.begin(), values.end(), T{-1});
        }
        put(values);
        make([&] {
            return old_name ? ncclBcast(send, values.size(), type, 0, comm, stream)
                            : ncclBroadcast(send, receive, values.size(), type, 0, comm, stream);
        });
    }
    void wrap() {
        put(std::vector<int64_t>{static_cast<int64_t>(kModel.size())});
        make([&] { return ncclAllGather(send, receive, 1, ncclInt64, comm, stream); });
        std::vector<int64_t> shapes;
        for (const auto& sizes : kModel) {
            shapes.insert(shapes.end(), sizes.begin(), sizes.end());
            for (size_t d = 0; d < sizes.size(); ++d) {
                shapes.push_back(d + 1 < sizes.size() ? sizes[d + 1] : 1);
            }
        }
        broadcast(shapes, ncclInt64);
    }
    void rebuild(bool old_name = false) {
        std::vector<int32_t> indices, sizes;
        for (const auto& bucket : kRebuilt) {
            indices.insert(indices.end(), bucket.begin(), bucket.end());
            sizes.push_back(static_cast<int32_t>(bucket.size()));
        }
        indices.push_back(static_cast<int32_t>(kRebuilt.size()));
        broadcast(indices, ncclInt32, old_name);
        broadcast(sizes, ncclInt32, old_name);
    }
    float value(int of_rank, uint32_t draw, size_t at) const {
        uint32_t x = static_cast<uint32_t>(at) * 2654435761u + draw * 40503u +
                     static_cast<uint32_t>(of_rank) * 97u + 1;
        x = (x ^ x >> 15) * 2246822519u;
        x = (x ^ x >> 13) * 3266489917u;
        return static_cast<float>(static_cast<int32_t>(x ^ x >> 16)) / 2147483648.0f;
    }
    size_t draw(const std::vector<size_t>& bucket) {
        size_t count = 0;
        for (const size_t parameter : bucket) {
            count += count_of(parameter);
        }
        ++draws;
        std::vector<float> mine(count);
        for (size_t i = 0; i < count; ++i) {
            mine[i] = value(rank, draws, i);
        }
        put(mine);
        return count;
    }
    std::string verdict(const std::vector<size_t>& bucket, size_t count) const {
        std::vector<float> sums(count);
        CHECK_CUDA(cudaMemcpyAsync(sums.data(), receive, count * sizeof(float),
                                   cudaMemcpyDeviceToHost, stream));
        CHECK_CUDA(cudaStreamSynchronize(stream));
        size_t at = 0, exact_vectors = 0, vectors = 0, exact_others = 0, others = 0;
        for (const size_t parameter : bucket) {
            bool exact = true;
            for (size_t i = 0; i < count_of(parameter); ++i, ++at) {
                float sum = value(0, draws, at);
                for (int of = 1; of < ranks; ++of) {
                    sum += value(of, draws, at);
                }
                exact = exact && sums[at] == sum;
                EXPECT_THAT(std::abs(sums[at] - sum) < 0.5f, "element %zu: %g is not near %g", at,
                            static_cast<double>(sums[at]), static_cast<double>(sum));
            }
            const bool vector = kModel[parameter].size() == 1;
            (vector ? vectors : others) += 1;
            (vector ? exact_vectors : exact_others) += exact ? 1 : 0;
        }
        return exact_vectors == vectors && exact_others == others ? "native"
               : exact_vectors == vectors && exact_others == 0    ? "parts"
               : exact_vectors == 0 && exact_others == 0          ? "all"
                                                                  : "mixed";
    }
    ncclResult_t reduce(size_t count) {
        return ncclAllReduce(send, receive, count, ncclFloat32, ncclSum, comm, stream);
    }
    void step(const Buckets& buckets, const std::function<void()>& before = {}) {
        static int steps = 0;
        std::printf("step %d:", ++steps);
        for (const auto& bucket : buckets) {
            if (before) {
                before();
            }
            const size_t count = draw(bucket);
            make([&] { return reduce(count); });
            std::printf(" %s", verdict(bucket, count).c_str());
        }
        std::printf("\n");
    }
    // Of as many integers as it takes, in every step: tokens, say.
    void chatter() {
        broadcast(std::vector<int32_t>(77, 5), ncclInt32);
        for (int call = 0; call < 40; ++call) {
            put(std::vector<int64_t>{call});
            make([&] { return ncclAllGather(send, receive, 1, ncclInt64, comm, stream); });
        }
        put(std::vector<float>(9, 1.0f));
        make([&] { return ncclAllReduce(send, receive, 9, ncclFloat32, ncclMax, comm, stream); });
        make([&] { return ncclAllReduce(send, receive, 0, ncclFloat32, ncclSum, comm, stream); });
    }
    // A group that NCCL refuses on this rank; the call that it holds never was.
    void refused(size_t count) {
        CHECK_NCCL(ncclGroupStart());
        (void)reduce(count);
        const ncclResult_t result =
            ncclBroadcast(send, receive, 4, ncclFloat32, ranks + 5, comm, stream);
        EXPECT_THAT(result == ncclInvalidArgument, "%d", result);
        EXPECT_THAT(ncclGroupEnd() != ncclSuccess, "the group ended well");
    }
};

void training(Program* program) {
    program->step(kMade);  // not known yet: one broadcast of gradients is no model
    program->wrap();
    program->step(kMade);
    program->step(kMade);
    program->step(kMade);
    program->rebuild();
    program->step(kRebuilt);
    program->step(kRebuilt);
}

void refused_groups(Program* program) {
    program->wrap();
    program->step(kMade);
    program->rebuild(true);
    // On one rank: the first of all refuses what would have read the broadcasts.
    const auto refuse = [&] {
        if (program->rank == 1) {
            program->refused(2144);
            program->refused(6240);
        }
    };
    refuse();
    program->step(kRebuilt, refuse);
    program->step(kRebuilt, refuse);
}

void chatting(Program* program) {
    program->wrap();
    program->chatter();
    program->step(kMade);
    program->chatter();
    program->rebuild();
    program->step(kRebuilt, [&] { program->chatter(); });
    program->step(kRebuilt, [&] { program->chatter(); });
}

// All buckets of a step in one group, and in one graph.
void together(Program* program) {
    program->wrap();
    program->step(kMade);
    program->rebuild();
    program->step(kRebuilt);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    const size_t count = program->draw(kRebuilt[0]);
    CHECK_CUDA(cudaStreamBeginCapture(program->stream, cudaStreamCaptureModeGlobal));
    CHECK_NCCL(program->reduce(count));
    CHECK_CUDA(cudaStreamEndCapture(program->stream, &graph));
    CHECK_CUDA(cudaGraphInstantiate(&ready, graph, 0));
    for (int replay = 0; replay < 3; ++replay) {
        program->draw(kRebuilt[0]);
        CHECK_CUDA(cudaGraphLaunch(ready, program->stream));
        std::printf("replay: %s\n", program->verdict(kRebuilt[0], count).c_str());
    }
    CHECK_CUDA(cudaGraphExecDestroy(ready));
    CHECK_CUDA(cudaGraphDestroy(graph));
}

// The broadcast of the shapes and an all-reduce of gradients in one group.
void too_early(Program* program) {
    program->put(std::vector<int64_t>{1});
    program->make([&] {
        return ncclAllGather(program->send, program->receive, 1, ncclInt64, program->comm,
                             program->stream);
    });
    CHECK_NCCL(ncclGroupStart());
    CHECK_NCCL(ncclBroadcast(program->send, program->receive, 2, ncclInt64, 0, program->comm,
                             program->stream));
    const ncclResult_t result = program->reduce(4096);
    std::printf("%s\n", result == ncclInvalidUsage ? ncclGetLastError(nullptr) : "no error");
    std::printf("end %d\n", static_cast<int>(ncclGroupEnd()));
}

// Names of all parameters: p0, p1, ...
void tell_names() {
    for (uint32_t i = 0; i < kModel.size(); ++i) {
        const std::string name = "p" + std::to_string(i);
        EXPECT_THAT(slimwire_register_parameter(0, i, name.c_str(), kModel[i].data(),
                                                static_cast<int>(kModel[i].size())) == SLIMWIRE_OK,
                    "%s", slimwire_last_error());
    }
}

}  // namespace

int main(int argc, char** argv) {
    const std::string_view way = argc > 1 ? argv[1] : "";
    if (way == "named" || (way == "named on one" && launcher_rank() == 1)) {
        tell_names();
    }
    Program program(way != "non-blocking");
    if (way == "named late") {
        tell_names();
    }
    program.grouped = way == "grouped";
    if (way == "refused") {
        refused_groups(&program);
    } else if (way == "chatting") {
        chatting(&program);
    } else if (way == "together") {
        together(&program);
    } else if (way == "too early") {
        too_early(&program);
    } else {
        training(&program);
    }
    return 0;
}
