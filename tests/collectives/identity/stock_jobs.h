// The calls that stock jobs make on one rank, recorded, or written after the sources of DeepSpeed
// (ZeRO++), Megatron-LM, vLLM and verl. Models have few layers, of those written each as large as a
// real one's.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "collectives/plan/plan.h"

namespace slimwire::test {

// `result`: where slimwire may read it.
struct StockCall {
    CallSignature signature;
    std::vector<std::byte> result;
    size_t comm = 0;
};
using StockCalls = std::vector<StockCall>;

struct StockComm {
    int ranks;
    Scope scope;
};

struct StockJob {
    std::string name;
    std::string policy;  // the shipped one for it where the network is slow; or none
    std::vector<StockComm> comms;
    StockCalls calls;
    size_t step_calls = 0;  // of the last steps, which are alike; 0: not told
};

// A call that carries numbers; `redop`: of those that reduce.
StockCall call_of(Op op, DType dtype, uint64_t count, RedOp redop = RedOp::kSum);

std::vector<StockJob> stock_jobs(int steps);

}  // namespace slimwire::test
