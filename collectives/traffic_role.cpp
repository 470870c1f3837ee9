#include "collectives/traffic_role.h"

#include <algorithm>
#include <map>

namespace slimwire {
namespace {

constexpr uint64_t kPayload = 4096;  // elements of the largest sum of a model, at least
constexpr size_t kManySums = 4;      // of one count: two in each direction of one layer
constexpr size_t kManyGathers = 4;   // in a row; a layer in parts has two, and a third recomputed

bool is_float(DType dtype) noexcept {
    return dtype == DType::kFloat64 || dtype == DType::kFloat32 || dtype == DType::kFloat16 ||
           dtype == DType::kBfloat16;
}

bool is_sum(const CallFacts& facts) noexcept {
    return reduces(facts.op) && facts.count > 1 && is_float(facts.dtype) &&
           (facts.redop == RedOp::kSum || facts.redop == RedOp::kAvg ||
            facts.redop == RedOp::kPreMulSum);
}

// What is counted in a step.
struct Counts {
    std::map<std::pair<Op, uint64_t>, size_t> sums;  // by count
    std::map<uint64_t, size_t> gathers;              // of floats
    size_t all_sums = 0, maxima = 0, exchanges = 0;
    size_t gathers_in_a_row = 0;
    uint64_t largest_sum = 0;
};

Counts counts_of(std::span<const CallFacts> step) {
    Counts counts;
    size_t in_a_row = 0;
    // Twice, because the step may begin anywhere.
    for (size_t i = 0; i < 2 * step.size(); ++i) {
        const CallFacts& facts = step[i % step.size()];
        const bool gather = facts.op == Op::kAllGather && facts.count > 1;
        in_a_row = gather ? std::min(in_a_row + 1, step.size()) : 0;
        counts.gathers_in_a_row = std::max(counts.gathers_in_a_row, in_a_row);
        if (i >= step.size()) {
            continue;
        }
        counts.gathers[facts.count] += gather ? 1 : 0;
        counts.maxima += reduces(facts.op) && facts.redop == RedOp::kMax && facts.count > 1 &&
                                 is_float(facts.dtype)
                             ? 1
                             : 0;
        counts.exchanges += facts.op == Op::kAllToAll && facts.count > 1 ? 1 : 0;
        if (is_sum(facts)) {
            ++counts.sums[{facts.op, facts.count}];
            ++counts.all_sums;
            counts.largest_sum = std::max(counts.largest_sum, facts.count);
        }
    }
    return counts;
}

}  // namespace

std::optional<RoleFound> role_of_step(std::span<const CallFacts> step, const RoleStart& start) {
    if (step.empty()) {
        return std::nullopt;
    }
    const Counts counts = counts_of(step);
    if (counts.all_sums == 0) {
        return counts.exchanges >= 2
                   ? std::optional(RoleFound{Role::kExpert, "all-to-all exchanges and no sums"})
                   : std::nullopt;
    }
    if (counts.exchanges > 0 || counts.largest_sum < kPayload) {
        return std::nullopt;
    }
    const bool replicas = start.ddp || start.broadcasts >= TrafficRole::kReplicas;
    if (counts.maxima > 0) {
        const auto most =
            std::max_element(counts.sums.begin(), counts.sums.end(),
                             [](const auto& a, const auto& b) { return a.second < b.second; });
        return !replicas && most->second >= kManySums && 10 * most->second >= 9 * counts.all_sums
                   ? std::optional(RoleFound{Role::kTensor,
                                             "many sums of one size, and maxima of an output in "
                                             "parts"})
                   : std::nullopt;
    }
    if (start.ddp) {
        return RoleFound{Role::kData, "models compared as DDP does, then sums"};
    }
    if (replicas) {
        return RoleFound{Role::kData, "tensors broadcast one after another, then sums"};
    }
    const bool shards = std::all_of(counts.sums.begin(), counts.sums.end(), [&](const auto& sum) {
        return sum.first.first == Op::kReduceScatter && counts.gathers.contains(sum.first.second);
    });
    if (shards && counts.gathers_in_a_row >= kManyGathers && counts.sums.size() >= 2) {
        return RoleFound{Role::kData, "shards gathered in a row, gradients reduced and scattered"};
    }
    const bool once = std::all_of(counts.sums.begin(), counts.sums.end(),
                                  [](const auto& sum) { return sum.second == 1; });
    if (once && counts.sums.size() >= 3) {
        return RoleFound{Role::kData, "several sums of different sizes, each once in a step"};
    }
    return std::nullopt;
}

TrafficRole::TrafficRole() : ring_(2 * kMostCalls) {}

void TrafficRole::begin_with(const CallFacts& facts) noexcept {
    const bool broadcast = facts.op == Op::kBroadcast && facts.root_or_peer == 0;
    if (now_.gathered && broadcast && facts.dtype == DType::kInt64 && facts.count % 2 == 0) {
        now_.start.ddp = true;
    }
    now_.gathered = facts.op == Op::kAllGather && facts.dtype == DType::kInt64 && facts.count == 1;
    if (facts.op == Op::kBroadcast && is_float(facts.dtype)) {
        ++now_.start.broadcasts;
    } else if (now_.start.broadcasts < kReplicas) {
        now_.start.broadcasts = 0;
    }
    now_.started = is_sum(facts);
}

void TrafficRole::hear(const CallFacts& facts, uint32_t judge) {
    if (now_.found.has_value()) {
        return;
    }
    if (judge > 0 && judge <= std::min<uint64_t>(now_.calls, kMostCalls)) {
        std::vector<CallFacts> step(judge);
        for (uint32_t i = 0; i < judge; ++i) {
            step[i] = ring_[(now_.calls - judge + i) % ring_.size()];
        }
        now_.found = role_of_step(step, now_.start);
    }
    if (!now_.started) {
        begin_with(facts);
    }
    ring_[now_.calls++ % ring_.size()] = facts;
}

}  // namespace slimwire
