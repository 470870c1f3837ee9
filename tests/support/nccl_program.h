// The start of an ordinary NCCL program, for the programs under test: checks, the launcher's
// variables, the usual exchange of the unique id. Knows CUDA and NCCL only.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/support/meeting.h"

// Ends the program with 3 (CUDA) or 4 (NCCL) and a line that says where.
#define CHECK_CUDA(call)                                                       \
    do {                                                                       \
        if (const cudaError_t error_ = (call); error_ != cudaSuccess) {        \
            std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, \
                         cudaGetErrorString(error_));                          \
            std::exit(3);                                                      \
        }                                                                      \
    } while (0)
#define CHECK_NCCL(call)                                                           \
    do {                                                                           \
        if (const ncclResult_t result_ = (call); result_ != ncclSuccess) {         \
            std::fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, \
                         ncclGetErrorString(result_), ncclGetLastError(nullptr));  \
            std::exit(4);                                                          \
        }                                                                          \
    } while (0)
// Ends the program with 5 when a condition that the test is about does not hold.
#define EXPECT_THAT(condition, ...)                                                  \
    do {                                                                             \
        if (!(condition)) {                                                          \
            std::fprintf(stderr, "%s:%d: not %s: ", __FILE__, __LINE__, #condition); \
            std::fprintf(stderr, __VA_ARGS__);                                       \
            std::fputc('\n', stderr);                                                \
            std::exit(5);                                                            \
        }                                                                            \
    } while (0)

namespace slimwire::test {

inline int integer_variable(const char* name, int otherwise) {
    const char* value = std::getenv(name);
    return value != nullptr ? std::atoi(value) : otherwise;
}

inline int launcher_rank() {
    return integer_variable("RANK", 0);
}
inline int launcher_ranks() {
    return integer_variable("WORLD_SIZE", 1);
}

// The unique id of the job, made by rank 0.
inline ncclUniqueId exchange_id(int rank, const std::string& name = "id") {
    ncclUniqueId id;
    if (rank == 0) {
        CHECK_NCCL(ncclGetUniqueId(&id));
        publish(name, std::string(id.internal, sizeof(id.internal)));
    } else {
        std::memcpy(id.internal, await(name).data(), sizeof(id.internal));
    }
    return id;
}

// The communicator of the whole job, on the first device.
inline ncclComm_t join_job(int rank, int ranks) {
    CHECK_CUDA(cudaSetDevice(0));
    const ncclUniqueId id = exchange_id(rank);
    ncclComm_t comm = nullptr;
    CHECK_NCCL(ncclCommInitRank(&comm, ranks, id, rank));
    return comm;
}

}  // namespace slimwire::test
