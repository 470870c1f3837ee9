// The arguments of the worker of `slimwire bench collective`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/cli/bench/worker/bench_worker_data.h"

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
    Type type = Type::kF32;
    std::vector<size_t> bytes;
    int port = 0;
    int rounds = 5;
    int warmup = 1;
    uint64_t seed = 1;
    std::string out;
};

// Ends the program with its usage when something is wrong.
Options parse_options(int argc, char** argv);

}  // namespace slimwire::bench
