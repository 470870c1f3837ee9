// Sequences of calls whose tensors are known, and the judge of a step detector's answers. For the
// tests of collectives/step_detector.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "collectives/identity/step_detector.h"

namespace slimwire {

// What is true of a call: the tensor it carries, a number of the test's.
struct TrueCall {
    uint64_t signature = 0;
    int tensor = 0;
};
using Trace = std::vector<TrueCall>;

inline uint64_t signature_of(Op op, uint64_t count, DType dtype = DType::kFloat32) {
    CallSignature signature;
    signature.op = op;
    signature.dtype = dtype;
    signature.redop = reduces(op) ? RedOp::kSum : RedOp::kNone;
    signature.count = count;
    return call_signature(signature);
}

inline void append(Trace* trace, const Trace& more, int times = 1) {
    for (int i = 0; i < times; ++i) {
        trace->insert(trace->end(), more.begin(), more.end());
    }
}

// The calls whose tensor does not follow from their signature and the `context` calls before them:
// elsewhere in the trace the same stands for another tensor. Nobody can be sure of those by so
// much.
inline std::vector<bool> undecidable(const Trace& trace, size_t context) {
    constexpr uint64_t kBase = 0x9E3779B97F4A7C15ull;
    uint64_t power = 1;
    for (size_t i = 0; i < context + 1; ++i) {
        power *= kBase;
    }
    std::unordered_map<uint64_t, int> tensors;
    std::set<uint64_t> open;
    std::vector<uint64_t> seen(trace.size());
    uint64_t hash = 0;
    for (size_t i = 0; i < trace.size(); ++i) {
        hash = hash * kBase + trace[i].signature;
        hash -= i > context ? power * trace[i - context - 1].signature : 0;
        seen[i] = hash;
        if (tensors.try_emplace(hash, trace[i].tensor).first->second != trace[i].tensor) {
            open.insert(hash);
        }
    }
    std::vector<bool> result(trace.size());
    for (size_t i = 0; i < trace.size(); ++i) {
        result[i] = open.count(seen[i]) != 0;
    }
    return result;
}

// Collects answers: a key is (signature, path, ordinal), as for residuals.
class Judge {
  public:
    // An answer; false when the key stood for another tensor before.
    bool hear(const TrueCall& call, const StepPosition& place) {
        ++calls_;
        if (!place.known()) {
            return true;
        }
        ++sure_;
        return tensors_.try_emplace({call.signature, place.path, place.ordinal}, call.tensor)
                   .first->second == call.tensor;
    }
    // Tensors that had two keys in one path.
    [[nodiscard]] size_t split() const {
        std::map<std::pair<int, uint64_t>, int> keys;
        for (const auto& [key, tensor] : tensors_) {
            ++keys[{tensor, key.path}];
        }
        return static_cast<size_t>(std::count_if(
            keys.begin(), keys.end(), [](const auto& entry) { return entry.second > 1; }));
    }
    [[nodiscard]] size_t paths() const {
        std::set<uint64_t> paths;
        for (const auto& [key, tensor] : tensors_) {
            paths.insert(key.path);
        }
        return paths.size();
    }
    [[nodiscard]] size_t calls() const { return calls_; }
    [[nodiscard]] size_t sure() const { return sure_; }

  private:
    struct Key {
        uint64_t signature, path;
        uint32_t ordinal;
        bool operator==(const Key&) const = default;
    };
    struct KeyHash {
        size_t operator()(const Key& key) const {
            return (key.signature ^ key.path * 31) * 31 + key.ordinal;
        }
    };
    std::unordered_map<Key, int, KeyHash> tensors_;
    size_t calls_ = 0, sure_ = 0;
};

// Plays the trace; returns how many answers were wrong. `sure`, if given, gets for each call
// whether the answer was sure.
inline size_t wrong_answers(const Trace& trace,
                            StepDetector* detector,
                            Judge* judge,
                            std::vector<bool>* sure = nullptr) {
    size_t wrong = 0;
    for (const TrueCall& call : trace) {
        const StepPosition place = detector->next(call.signature);
        wrong += judge->hear(call, place) ? 0 : 1;
        if (sure != nullptr) {
            sure->push_back(place.known());
        }
    }
    return wrong;
}

// A step of PyTorch's DDP as recorded with 10 parameters (broadcast of buffers in each forward
// pass, then one all-reduce a bucket), its start, and the calls around the rebuilding of its
// buckets.
struct RecordedDdp {
    Trace start = {{signature_of(Op::kAllGather, 1, DType::kInt64), 1},
                   {signature_of(Op::kBroadcast, 30, DType::kInt64), 2},
                   {signature_of(Op::kBroadcast, 21840), 3}};
    Trace buffers = {{signature_of(Op::kBroadcast, 60), 4},
                     {signature_of(Op::kBroadcast, 1, DType::kInt64), 5}};
    Trace first_buckets = {{signature_of(Op::kAllReduce, 5050), 6},
                           {signature_of(Op::kAllReduce, 16790), 7}};
    Trace rebuild = {{signature_of(Op::kBroadcast, 11, DType::kInt32), 8},
                     {signature_of(Op::kBroadcast, 2, DType::kInt32), 9}};
    Trace buckets = {{signature_of(Op::kAllReduce, 16320), 10},
                     {signature_of(Op::kAllReduce, 5520), 11}};

    [[nodiscard]] Trace step() const {
        Trace step = buffers;
        append(&step, buckets);
        return step;
    }
    [[nodiscard]] Trace until_rebuilt() const {
        Trace calls = start;
        append(&calls, buffers);
        append(&calls, first_buckets);
        append(&calls, rebuild);
        return calls;
    }
};

// A step of a fully sharded model: a root unit and `layers` of equal size, gathered in the forward
// pass, gathered again and reduced in the backward pass. Models of other tensors have another root.
inline Trace sharded_step(int layers, int first_tensor = 100) {
    const auto root = static_cast<uint64_t>(9000 + first_tensor);
    Trace step = {{signature_of(Op::kAllGather, root), first_tensor}};
    for (int i = 0; i < layers; ++i) {
        step.push_back({signature_of(Op::kAllGather, 4096), first_tensor + 1 + i});
    }
    for (int i = layers - 1; i >= 0; --i) {
        step.push_back({signature_of(Op::kAllGather, 4096), first_tensor + 1000 + i});
        step.push_back({signature_of(Op::kReduceScatter, 4096), first_tensor + 2000 + i});
    }
    step.push_back({signature_of(Op::kReduceScatter, root), first_tensor + 3000});
    return step;
}

}  // namespace slimwire
