#include "tests/collectives/identity/stock_jobs.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "collectives/policy/names.h"
#include "tests/collectives/identity/ddp/models.h"

namespace slimwire::test {
namespace {

constexpr int kNodeRanks = 8;
constexpr StockComm kCluster = {16, Scope::kInterNode};
constexpr StockComm kPair = {2, Scope::kInterNode};
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

// A step of fully_shard: layers gathered in the forward pass and again, a layer ahead, in the
// backward pass; the root stays gathered. Gradients are reduced in fp32; `replicas`, where there
// are some, is the communicator that sums a shard over the copies of the model.
StockCalls sharded_step(int ranks, size_t shards, size_t replicas = 0) {
    StockCalls calls;
    const auto gather = [&](uint64_t size) {
        add(&calls, call_of(Op::kAllGather, DType::kBfloat16, size / ranks), shards);
    };
    const auto reduce = [&](uint64_t size) {
        const uint64_t shard = size / ranks;
        add(&calls, call_of(Op::kReduceScatter, DType::kFloat32, shard, RedOp::kAvg), shards);
        if (replicas != shards) {
            add(&calls, call_of(Op::kAllReduce, DType::kFloat32, shard, RedOp::kAvg), replicas);
        }
    };
    gather(kRoot);
    for (int layer = 0; layer < kLayers; ++layer) {
        gather(kLayer);
    }
    gather(kLayer);
    for (int layer = 0; layer < kLayers; ++layer) {
        if (layer + 2 < kLayers) {
            gather(kLayer);
        }
        reduce(kLayer);
    }
    reduce(kRoot);
    add(&calls, norm(), shards);
    return calls;
}

// Stages 1 and 2 sum buckets, of whatever parameters become ready, in the type of the parameters,
// and gather those once they are updated; with `overlap` also where a bucket ends at another rank's
// part.
StockCalls deepspeed_step(bool overlap) {
    constexpr uint64_t kBucket = 50'000'000;
    StockCalls calls;
    const uint64_t all = kLayers * kLayer + 2 * kRoot;
    for (uint64_t at = 0; at < all; at += kBucket) {
        const uint64_t size = std::min(kBucket, all - at);
        if (overlap && size > kRoot / 2) {  // split where another rank's part begins
            add(&calls, call_of(Op::kAllReduce, DType::kBfloat16, size / 2));
            add(&calls, call_of(Op::kAllReduce, DType::kBfloat16, size - size / 2));
        } else {
            add(&calls, call_of(Op::kAllReduce, DType::kBfloat16, size));
        }
    }
    add(&calls, call_of(Op::kAllReduce, DType::kUint8, 1, RedOp::kMax));
    add(&calls, norm());
    add(&calls, call_of(Op::kAllGather, DType::kBfloat16, all / kCluster.ranks));
    return calls;
}

// Stage 3: `coalesced` parameters are fetched at once; ZeRO++ sends its own bytes in their place.
StockCalls zero3_step(int coalesced, bool plus_plus) {
    StockCalls calls;
    const auto gather = [&](uint64_t size) {
        const uint64_t share = size / kCluster.ranks;
        if (plus_plus) {
            add(&calls, call_of(Op::kAllGather, DType::kInt8, share));
            add(&calls, call_of(Op::kAllGather, DType::kFloat32, share / 2048));
        } else {
            add(&calls, call_of(Op::kAllGather, DType::kBfloat16, share));
        }
    };
    const auto reduce = [&](uint64_t size) {
        if (!plus_plus) {
            add(&calls, call_of(Op::kReduceScatter, DType::kBfloat16, size / kCluster.ranks));
            return;
        }
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

StockCall message(Op op, int peer) {
    StockCall call = call_of(op, DType::kBfloat16, kTokens * kHidden);
    call.signature.root_or_peer = peer;
    return call;
}

// The second of four stages with two chunks of layers each and eight micro-batches, interleaved:
// eight forward passes, then one of each, then the rest of the gradients.
StockCalls interleaved_step() {
    constexpr int kBefore = 0, kAfter = 2, kPasses = 16, kWarmUp = 8;
    StockCalls calls;
    const auto pass = [&](int from, int to) {
        add(&calls, message(Op::kRecv, from));
        add(&calls, message(Op::kSend, to));
    };
    for (int i = 0; i < kPasses + kWarmUp; ++i) {
        if (i < kPasses) {
            pass(kBefore, kAfter);
        }
        if (i >= kWarmUp) {
            pass(kAfter, kBefore);
        }
    }
    add(&calls, norm(), 0);
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

// What PyTorch's own modules called (tests/e2e/torch/record_traces.py), a loss behind each step; of
// more steps the last one again.
StockCalls recorded(int steps, const std::string& trace) {
    std::ifstream file(std::string(std::getenv("SOURCE_ROOT")) +
                       "/tests/collectives/identity/ddp/traces/" + trace + ".jsonl");
    StockCalls calls;
    size_t begin = 0, end = 0;  // of the last step
    int made = 0;
    std::string line;
    std::getline(file, line);  // what is true of the model
    while (std::getline(file, line)) {
        const nlohmann::json json = nlohmann::json::parse(line);
        const DType dtype = *parse_dtype(json.at("dtype").get<std::string>());
        const Op op = *parse_op(json.at("op").get<std::string>());
        const auto count = json.at("count").get<uint64_t>();
        const auto values = json.value("values", std::vector<int64_t>());
        calls.push_back(
            dtype == DType::kInt32
                ? integers(op, std::vector<int32_t>(values.begin(), values.end()), count)
            : dtype == DType::kInt64 ? integers(op, values, count)
                                     : call_of(op, dtype, count));
        if (op == Op::kAllReduce && count == 1) {
            begin = std::exchange(end, calls.size());
            ++made;
        }
    }
    const auto at = [&](size_t place) { return calls.begin() + static_cast<ptrdiff_t>(place); };
    const StockCalls step(at(begin), at(end));
    return std::move(calls) + repeated(steps - made, step);
}

// Parameters of PyTorch modules are broadcast one by one, or in buckets, when a job begins.
StockCalls begun(StockCalls calls) {
    return StockCalls{call_of(Op::kBroadcast, DType::kFloat32, 1 << 20)} + calls;
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

StockCalls ddp_calls(int steps,
                     const std::vector<size_t>& sizes,
                     int accumulated,
                     uint64_t buffers) {
    constexpr int kRanks = kCluster.ranks;
    const auto floats = [](Op op, uint64_t count) { return call_of(op, DType::kFloat32, count); };
    std::vector<ParameterShape> model;
    size_t total = 0;
    for (const size_t size : sizes) {
        total += size;
    }
    for (size_t i = 0; i < total; ++i) {
        const auto width = static_cast<int64_t>(256 + 16 * i);
        model.push_back(i % 2 == 0 ? contiguous({width, 512}) : contiguous({width}));
    }
    StockCalls calls = {integers(Op::kAllGather, std::vector<int64_t>(kRanks, total), 1)};
    const std::vector<int64_t> shapes = shapes_tensor(model);
    calls.push_back(integers(Op::kBroadcast, shapes, shapes.size()));
    std::vector<int32_t> indices, counts;
    std::vector<uint64_t> buckets;
    uint64_t all = 0;
    size_t next = total;
    for (const size_t size : sizes) {
        counts.push_back(static_cast<int32_t>(size));
        buckets.push_back(0);
        for (size_t i = 0; i < size; ++i) {
            indices.push_back(static_cast<int32_t>(--next));
            buckets.back() += model[next].count();
        }
        all += buckets.back();
    }
    indices.push_back(static_cast<int32_t>(sizes.size()));
    calls.push_back(floats(Op::kBroadcast, all));
    for (int step = 0; step < steps; ++step) {
        for (int pass = 0; buffers > 0 && pass <= accumulated; ++pass) {
            calls.push_back(floats(Op::kBroadcast, buffers));
        }
        if (step == 0) {
            for (size_t i = 0; i + 2 < buckets.size(); ++i) {
                calls.push_back(floats(Op::kAllReduce, buckets[i]));
            }
            calls.push_back(floats(
                Op::kAllReduce, buckets.size() == 1 ? all : buckets.back() + *(buckets.end() - 2)));
            calls.push_back(integers(Op::kBroadcast, indices, indices.size()));
            calls.push_back(integers(Op::kBroadcast, counts, counts.size()));
            continue;
        }
        for (const uint64_t bucket : buckets) {
            calls.push_back(floats(Op::kAllReduce, bucket));
        }
    }
    return calls;
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
        {"DDP, 1 bucket", "int4-ef14", {kCluster}, ddp_calls(steps, {6})},
        {"DDP, 2 buckets", "int8", {kCluster}, ddp_calls(steps, {3, 5})},
        {"DDP, 30 buckets",
         "hierarchical",
         {kCluster},
         ddp_calls(steps, std::vector<size_t>(30, 3))},
        {"DDP, no_sync, buffers",
         "int4-ef14",
         {kCluster},
         ddp_calls(steps, {2, 3, 5, 4}, 3, 60000)},
        {"DDP, recorded", "int4-ef14", {kPair}, recorded(steps, "perceptron")},
        {"DDP, static_graph, recorded",
         "int4-ef14",
         {kPair},
         recorded(steps, "perceptron-static-graph")},
        {"FSDP2",
         "sharded-weights",
         {kCluster},
         begun(repeated(steps, sharded_step(kCluster.ranks, 0)))},
        {"HSDP",
         "sharded-weights",
         {kNode, kNodes},
         begun(repeated(steps, sharded_step(kNodeRanks, 0, 1)))},
        {"DeepSpeed ZeRO-1",
         "sharded-weights",
         {kCluster},
         begun(repeated(steps, deepspeed_step(false)))},
        {"DeepSpeed ZeRO-2",
         "sharded-weights",
         {kCluster},
         begun(repeated(steps, deepspeed_step(true)))},
        {"DeepSpeed ZeRO-3",
         "sharded-weights",
         {kCluster},
         zero3_step(1, false) + repeated(steps - 1, zero3_step(4, false))},
        {"DeepSpeed ZeRO++",
         "",
         {kCluster, kNode, kNodes},
         zero3_step(1, true) + repeated(steps - 1, zero3_step(4, true))},
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
        {"Megatron PP, interleaved", "dct-pipeline", {kNodes}, repeated(steps, interleaved_step())},
        {"torchtitan FSDP2, TP",
         "sharded-weights",
         {kNode, kNodes},
         repeated(steps, sequence + sharded_step(kNodes.ranks, 1, 1))},
        {"vLLM TP", "tensor-parallel", {kNode}, inference},
        {"verl, weights gathered", "sharded-weights", {kCluster}, repeated(steps, gathered)},
        {"verl, weights broadcast", "", {kCluster}, repeated(steps, {bucket, bucket})},
    };
}

}  // namespace slimwire::test
