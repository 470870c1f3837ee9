// The calls that stock jobs make on one rank, recorded or written after the sources of PyTorch (the
// reducer of DDP, fully_shard), DeepSpeed 0.19, Megatron-LM, vLLM and verl. Models have few layers,
// each as large as a real one's.
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
};

// A call that carries numbers; `redop`: of those that reduce.
StockCall call_of(Op op, DType dtype, uint64_t count, RedOp redop = RedOp::kSum);

// DDP's calls for a model of matrices and biases whose buckets, once rebuilt, have `sizes`
// parameters each; before, it has one bucket less than that, but at least one. `accumulated`:
// passes without a reduction before each step's last (no_sync). `buffers`: broadcast before each
// forward pass.
StockCalls ddp_calls(int steps,
                     const std::vector<size_t>& sizes,
                     int accumulated = 0,
                     uint64_t buffers = 0);

std::vector<StockJob> stock_jobs(int steps);

}  // namespace slimwire::test
