// What two ranks carry over a network: the bits of all results, and a rate. Run over one network
// after another by tests/gpu/net/run, which compares. Usage: carry COUNT REPEATS. Each rank prints
// "bits OPERATION TYPE COUNT HASH" for every operation and type, rank 0 then "rate GBPS" of REPEATS
// all-reduces of COUNT bf16 numbers, in Gbit/s of the message.
#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/nccl_program.h"

namespace {

struct Type {
    const char* name;
    ncclDataType_t type;
    size_t bytes;
};
constexpr Type kTypes[] = {
    {"fp32", ncclFloat32, 4}, {"bf16", ncclBfloat16, 2}, {"int8", ncclInt8, 1}};

// Numbers of different magnitudes as gradients have, or any bytes; the same in every run.
std::vector<unsigned char> values(const Type& type, size_t count, int rank) {
    std::vector<unsigned char> data(count * type.bytes);
    uint64_t state = static_cast<uint64_t>(rank) * 977 + type.bytes + 1;
    for (size_t i = 0; i < count; ++i) {
        float sum = -2;
        uint64_t bits = 0;
        for (int k = 0; k < 4; ++k) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            bits = state >> 33;
            sum += static_cast<float>(bits) * 0x1p-31f;
        }
        const float number = std::ldexp(sum, -6 - static_cast<int>(i / 4096 % 5));
        uint32_t word;
        std::memcpy(&word, &number, sizeof word);
        word = type.bytes == 1 ? static_cast<uint32_t>(bits) : word >> (32 - 8 * type.bytes);
        std::memcpy(data.data() + i * type.bytes, &word, type.bytes);
    }
    return data;
}

struct Carrier {
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    int rank = 0, ranks = 0;
    size_t count = 0;
    void* in = nullptr;
    void* out = nullptr;

    void print(const char* operation, const Type& type, size_t elems) const {
        CHECK_CUDA(cudaStreamSynchronize(stream));
        std::vector<unsigned char> result(elems * type.bytes);
        CHECK_CUDA(cudaMemcpy(result.data(), out, result.size(), cudaMemcpyDeviceToHost));
        uint64_t hash = 14695981039346656037u;
        for (const unsigned char byte : result) {
            hash = (hash ^ byte) * 1099511628211u;
        }
        std::printf("bits %s %s %zu %016llx\n", operation, type.name, elems,
                    static_cast<unsigned long long>(hash));
    }

    void run(const Type& type) const {
        const std::vector<unsigned char> data = values(type, count, rank);
        const auto all = static_cast<size_t>(ranks);
        CHECK_CUDA(cudaMemcpy(in, data.data(), data.size(), cudaMemcpyHostToDevice));
        CHECK_NCCL(ncclAllReduce(in, out, count, type.type, ncclSum, comm, stream));
        print("allreduce", type, count);
        CHECK_NCCL(ncclReduceScatter(in, out, count / all, type.type, ncclSum, comm, stream));
        print("reducescatter", type, count / all);
        CHECK_NCCL(ncclAllGather(in, out, count, type.type, comm, stream));
        print("allgather", type, count * all);
        CHECK_NCCL(ncclBroadcast(in, out, count, type.type, ranks - 1, comm, stream));
        print("broadcast", type, count);
        CHECK_CUDA(cudaMemset(out, 0, count * type.bytes));
        CHECK_CUDA(cudaDeviceSynchronize());
        CHECK_NCCL(ncclReduce(in, out, count, type.type, ncclMax, 0, comm, stream));
        print("reduce", type, rank == 0 ? count : 0);
        CHECK_NCCL(ncclGroupStart());
        CHECK_NCCL(ncclSend(in, count, type.type, (rank + 1) % ranks, comm, stream));
        CHECK_NCCL(ncclRecv(out, count, type.type, (rank + ranks - 1) % ranks, comm, stream));
        CHECK_NCCL(ncclGroupEnd());
        print("sendrecv", type, count);
    }

    double rate_gbps(int repeats) const {
        const std::vector<unsigned char> data = values(kTypes[1], count, rank);
        CHECK_CUDA(cudaMemcpy(in, data.data(), data.size(), cudaMemcpyHostToDevice));
        const auto reduce = [&](int times) {
            for (int i = 0; i < times; ++i) {
                CHECK_NCCL(ncclAllReduce(in, out, count, ncclBfloat16, ncclSum, comm, stream));
            }
            CHECK_CUDA(cudaStreamSynchronize(stream));
        };
        reduce(1);
        const auto begin = std::chrono::steady_clock::now();
        reduce(repeats);
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
        return 8e-9 * static_cast<double>(data.size()) * repeats / took.count();
    }
};

}  // namespace

int main(int argc, char** argv) {
    using namespace slimwire::test;
    if (argc != 3) {
        std::fprintf(stderr, "usage: carry COUNT REPEATS\n");
        return 2;
    }
    Carrier carrier;
    carrier.rank = launcher_rank();
    carrier.ranks = launcher_ranks();
    carrier.count = std::stoul(argv[1]);
    CHECK_CUDA(cudaSetDevice(0));
    const ncclUniqueId id = exchange_id(carrier.rank);
    CHECK_NCCL(ncclCommInitRank(&carrier.comm, carrier.ranks, id, carrier.rank));
    CHECK_CUDA(cudaStreamCreateWithFlags(&carrier.stream, cudaStreamNonBlocking));
    CHECK_CUDA(cudaMalloc(&carrier.in, carrier.count * 4));
    CHECK_CUDA(cudaMalloc(&carrier.out, carrier.count * 4 * static_cast<size_t>(carrier.ranks)));
    for (const Type& type : kTypes) {
        carrier.run(type);
    }
    const double rate = carrier.rate_gbps(std::atoi(argv[2]));
    if (carrier.rank == 0) {
        std::printf("rate %.4f\n", rate);
    }
    CHECK_NCCL(ncclCommDestroy(carrier.comm));
    return 0;
}
