#include "tests/collectives/identity/stock_jobs.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "collectives/policy/names.h"

namespace slimwire::test {
namespace {

constexpr int kNodeRanks = 8;
constexpr StockComm kCluster = {16, Scope::kInterNode};
constexpr StockComm kNode = {kNodeRanks, Scope::kIntraNode};
constexpr StockComm kNodes = {4, Scope::kInterNode};  // one rank of each node

// Of a layer with a hidden size of 4096, and of the tables at both ends of a model.
constexpr uint64_t kHidden = 4096;
constexpr uint64_t kLayer = 12 * kHidden * kHidden;
constexpr uint64_t kRoot = 32000 * kHidden;
constexpr uint64_t kTokens = 4096;
constexpr int kLayers = 24;

template <class T>
StockCall integers(Op op, const std::vector<T>& values, uint64_t count) {
    StockCall call = call_of(op, sizeof(T) == 8 ? DType::kInt64 : DType::kInt32, count);
    call.result.resize(values.size() * sizeof(T));
    std::memcpy(call.result.data(), values.data(), call.result.size());
    return call;
}

// The scalars of gradient clipping.
StockCall norm() {
    return call_of(Op::kAllReduce, DType::kFloat32, 1);
}

void add(StockCalls* calls, StockCall call, size_t comm = 0) {
    call.comm = comm;
    calls->push_back(std::move(call));
}

// ZeRO++ sends bytes of its own in place of parameters, `coalesced` layers of which are fetched at
// once, and of gradients.
StockCalls zero_plus_plus_step(int coalesced) {
    StockCalls calls;
    const auto gather = [&](uint64_t size) {
        const uint64_t share = size / kCluster.ranks;
        add(&calls, call_of(Op::kAllGather, DType::kInt8, share));
        add(&calls, call_of(Op::kAllGather, DType::kFloat32, share / 2048));
    };
    const auto reduce = [&](uint64_t size) {
        for (const int ranks : {kNodeRanks, kCluster.ranks / kNodeRanks}) {
            const uint64_t given = size / (kNodeRanks / 2 * ranks);
            add(&calls, call_of(Op::kAllToAll, DType::kInt8, given), ranks == kNodeRanks ? 1 : 2);
            add(&calls, call_of(Op::kAllToAll, DType::kFloat32, given / 2048),
                ranks == kNodeRanks ? 1 : 2);
        }
    };
    for (const bool backward : {false, true}) {
        gather(kRoot);
        for (int layer = 0; layer < kLayers; layer += coalesced) {
            gather(coalesced * kLayer);
            for (int i = 0; backward && i < coalesced; ++i) {
                reduce(kLayer);
            }
        }
    }
    reduce(kRoot);
    add(&calls, call_of(Op::kAllReduce, DType::kUint8, 1, RedOp::kMax));
    return calls;
}

// A pass of a rank of eight that share each layer's matrices, by all-reduces or, with `sequence`,
// by gathers and reduce-scatters, which the backward pass answers.
StockCalls tensor_parallel_pass(bool sequence, size_t comm) {
    constexpr uint64_t kActivation = kTokens * kHidden;
    StockCalls calls;
    for (const bool backward : {false, true}) {
        for (int half = 0; half < 2 * kLayers; ++half) {
            if (!sequence) {
                add(&calls, call_of(Op::kAllReduce, DType::kBfloat16, kActivation), comm);
                continue;
            }
            const uint64_t share = kActivation / kNodeRanks;
            add(&calls, call_of(Op::kAllGather, DType::kBfloat16, share), comm);
            if (backward) {  // of the input again, for the gradient of the weights
                add(&calls, call_of(Op::kAllGather, DType::kBfloat16, share), comm);
            }
            add(&calls, call_of(Op::kReduceScatter, DType::kBfloat16, share), comm);
        }
        if (!backward) {  // the loss over a vocabulary in parts
            add(&calls, call_of(Op::kAllReduce, DType::kFloat32, kTokens, RedOp::kMax), comm);
            add(&calls, call_of(Op::kAllReduce, DType::kFloat32, kTokens), comm);
            add(&calls, call_of(Op::kAllReduce, DType::kFloat32, kTokens), comm);
        }
    }
    return calls;
}

// Megatron's distributed optimizer: buckets of gradients to their owners, parameters back.
StockCalls distributed_optimizer(int ranks, size_t comm, bool as_exchange = false) {
    StockCalls calls;
    const uint64_t share = kLayer / kNodeRanks / ranks;
    for (int layer = 0; layer < kLayers; ++layer) {
        add(&calls,
            as_exchange ? call_of(Op::kAllToAll, DType::kBfloat16, share)
                        : call_of(Op::kReduceScatter, DType::kFloat32, share),
            comm);
    }
    add(&calls, norm(), comm);
    for (int layer = 0; layer < kLayers; ++layer) {
        add(&calls, call_of(Op::kAllGather, DType::kBfloat16, share), comm);
    }
    return calls;
}

// Tokens of prompts, then of 64 sequences at a time, each of which takes two sums a layer.
StockCalls inference_pass(int step) {
    StockCalls calls;
    const auto run = [&](uint64_t tokens) {
        for (int half = 0; half < 2 * kLayers + 1; ++half) {
            add(&calls, call_of(Op::kAllReduce, DType::kBfloat16, tokens * kHidden));
        }
        StockCall logits = call_of(Op::kSend, DType::kBfloat16, 64 * 32000 / kNodeRanks);
        add(&calls, std::move(logits));
    };
    run(512 + static_cast<uint64_t>(step % 7) * 1097);
    for (int token = 0; token < 8; ++token) {
        run(64);
    }
    return calls;
}

StockCalls repeated(int steps, const StockCalls& step) {
    StockCalls calls;
    for (int i = 0; i < steps; ++i) {
        calls.insert(calls.end(), step.begin(), step.end());
    }
    return calls;
}

StockCalls operator+(StockCalls calls, const StockCalls& more) {
    calls.insert(calls.end(), more.begin(), more.end());
    return calls;
}

// Of the next lines of a record, at most so many. One with `lines` stands before as many whose
// calls are made `times`.
StockCalls read_calls(std::istream& file, size_t lines) {
    StockCalls calls;
    for (std::string line; lines > 0 && std::getline(file, line); --lines) {
        const nlohmann::json json = nlohmann::json::parse(line);
        const int times = json.value("times", 1);
        if (const size_t block = json.value("lines", size_t{0}); block > 0) {
            calls = std::move(calls) + repeated(times, read_calls(file, block));
            lines -= block;
            continue;
        }
        const DType dtype = *parse_dtype(json.at("dtype").get<std::string>());
        const Op op = *parse_op(json.at("op").get<std::string>());
        const auto count = json.at("count").get<uint64_t>();
        const auto values = json.value("values", std::vector<int64_t>());
        StockCall call =
            dtype == DType::kInt32
                ? integers(op, std::vector<int32_t>(values.begin(), values.end()), count)
            : dtype == DType::kInt64
                ? integers(op, values, count)
                : call_of(op, dtype, count, *parse_redop(json.value("redop", "sum")));
        call.signature.root_or_peer = json.value("root", 0);
        call.comm = json.value("group", size_t{0});
        calls = std::move(calls) + repeated(times, {call});
    }
    return calls;
}

// One that PyTorch or DeepSpeed made (tests/e2e/torch/record_jobs.py), `node_ranks` to a node; of
// more steps the last one again.
StockJob recorded(const std::string& name,
                  const std::string& policy,
                  int steps,
                  const std::string& trace,
                  int node_ranks = 2) {
    std::ifstream file(std::string(std::getenv("SOURCE_ROOT")) +
                       "/tests/collectives/identity/traces/" + trace + ".jsonl");
    std::string line;
    std::getline(file, line);
    const nlohmann::json header = nlohmann::json::parse(line);
    StockJob job;
    job.name = name;
    job.policy = policy;
    for (const auto& ranks : header.at("groups").get<std::vector<std::vector<int>>>()) {
        const bool one_node = ranks.front() / node_ranks == ranks.back() / node_ranks;
        job.comms.push_back(
            {static_cast<int>(ranks.size()), one_node ? Scope::kIntraNode : Scope::kInterNode});
    }
    job.calls = read_calls(file, SIZE_MAX);
    const auto begins = header.at("begins").get<std::vector<size_t>>();
    const StockCalls last(job.calls.begin() + static_cast<ptrdiff_t>(begins.back()),
                          job.calls.end());
    job.step_calls = last.size();
    job.calls = std::move(job.calls) + repeated(steps - static_cast<int>(begins.size()), last);
    return job;
}

}  // namespace

StockCall call_of(Op op, DType dtype, uint64_t count, RedOp redop) {
    StockCall call;
    call.signature.op = op;
    call.signature.dtype = dtype;
    call.signature.count = count;
    call.signature.redop = reduces(op) ? redop : RedOp::kNone;
    return call;
}

std::vector<StockJob> stock_jobs(int steps) {
    const StockCalls tensor = tensor_parallel_pass(false, 0);
    const StockCalls sequence = tensor_parallel_pass(true, 0);
    StockCalls inference, gathered;
    for (int step = 0; step < steps; ++step) {
        inference = std::move(inference) + inference_pass(step);
    }
    for (int layer = 0; layer < kLayers; ++layer) {  // the trainer's shards, for the other engine
        add(&gathered, call_of(Op::kAllGather, DType::kBfloat16, kLayer / kNodeRanks));
    }
    const StockCall bucket = call_of(Op::kBroadcast, DType::kUint8, 1 << 30);
    return {
        recorded("DDP, 1 bucket", "int4-ef14", steps, "ddp-one-bucket"),
        recorded("DDP, 3 buckets", "int8", steps, "ddp"),
        recorded("DDP, 32 buckets", "hierarchical", steps, "ddp-many-buckets"),
        recorded("DDP, static_graph", "int4-ef14", steps, "ddp-static-graph"),
        recorded("DDP, no_sync, buffers", "int4-ef14", steps, "ddp-no-sync"),
        recorded("FSDP1", "sharded-weights", steps, "fsdp1"),
        recorded("FSDP2", "sharded-weights", steps, "fsdp2"),
        recorded("HSDP", "sharded-weights", steps, "hsdp"),
        recorded("FSDP2, TP", "sharded-weights", steps, "fsdp2-tensor"),
        recorded("DTensor TP, SP", "tensor-parallel", steps, "tensor-sequence", 4),
        recorded("PP, 1F1B", "dct-pipeline", steps, "stages"),
        recorded("PP, interleaved", "dct-pipeline", steps, "stages-interleaved"),
        recorded("DeepSpeed ZeRO-1", "sharded-weights", steps, "zero1"),
        recorded("DeepSpeed ZeRO-2", "sharded-weights", steps, "zero2"),
        recorded("DeepSpeed ZeRO-3", "sharded-weights", steps, "zero3"),
        {"DeepSpeed ZeRO++",
         "",
         {kCluster, kNode, kNodes},
         zero_plus_plus_step(1) + repeated(steps - 1, zero_plus_plus_step(4))},
        {"Megatron TP, DP",
         "tensor-parallel",
         {kNode, kNodes},
         repeated(steps, tensor + distributed_optimizer(kNodes.ranks, 1))},
        {"Megatron SP, DP",
         "tensor-parallel",
         {kNode, kNodes},
         repeated(steps, sequence + distributed_optimizer(kNodes.ranks, 1))},
        {"Megatron DP, fp32 sums",
         "sharded-weights",
         {kNode, kNodes},
         repeated(steps, distributed_optimizer(kNodes.ranks, 1, true))},
        {"vLLM TP", "tensor-parallel", {kNode}, inference},
        {"verl, weights gathered", "sharded-weights", {kCluster}, repeated(steps, gathered)},
        {"verl, weights broadcast", "", {kCluster}, repeated(steps, {bucket, bucket})},
    };
}

}  // namespace slimwire::test
