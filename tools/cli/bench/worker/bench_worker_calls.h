// Parts of the worker of `slimwire bench collective`: its arguments, its data and its calls.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace slimwire::bench {

// kSendRecv: to the next rank and from the one before, in a group. kPairs: even ranks send to the
// next one, odd ones receive, each call by itself.
enum class Operation {
    kAllReduce,
    kReduceScatter,
    kAllGather,
    kAllToAll,
    kBroadcast,
    kReduce,
    kSendRecv,
    kPairs,
};

struct Options {
    Operation operation = Operation::kAllReduce;
    ncclDataType_t type = ncclFloat32;  // or ncclFloat16, ncclBfloat16
    std::vector<size_t> bytes;
    int port = 0;
    int rounds = 5;
    int warmup = 1;
    uint64_t seed = 1;
    std::string out;
};

// Says what is wrong and ends the program with exit code 1.
[[noreturn]] void stop(const std::string& text);

// Ends the program with its usage when something is wrong.
Options parse_options(int argc, char** argv);

// The data: normal deviates by position, so that every rank knows
// everybody's without being sent them, and the element types they are stored in: ncclFloat32,
// ncclFloat16, ncclBfloat16.
[[nodiscard]] uint64_t mix(uint64_t x);
// Element `index` of rank `rank`'s input, before it is rounded to a type.
[[nodiscard]] float gaussian(uint64_t seed, int rank, size_t index);
[[nodiscard]] size_t element_bytes(ncclDataType_t type);
void store(ncclDataType_t type, void* buffer, size_t index, float value);
[[nodiscard]] float load(ncclDataType_t type, const void* buffer, size_t index);
// The value as it stands in a rank's buffer.
[[nodiscard]] float rounded(ncclDataType_t type, float value);

// End the program with a text unless all is well.
void check(cudaError_t error, const char* what);
void check(ncclResult_t result, const char* what);

// Enqueues one operation of one rank, on its stream.
struct Calls {
    Operation operation;
    ncclDataType_t type;
    int rank, ranks;
    ncclComm_t comm;
    cudaStream_t stream;
    void *send, *recv;

    // As the program's symbols resolve, and by NCCL's profiling twins, which nobody intercepts.
    void own(size_t count) const;
    void native(size_t count) const;
    // As many plain bytes as the call gave to the transport, by the same kinds of exchange,
    // natively.
    void raw(size_t wire_bytes) const;
};

}  // namespace slimwire::bench
