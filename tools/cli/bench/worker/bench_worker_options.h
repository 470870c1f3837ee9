// The arguments of the worker of `slimwire bench collective`.
#pragma once

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

}  // namespace slimwire::bench
