#include "collectives/framework/deepspeed.h"

#include <algorithm>
#include <utility>

namespace slimwire {
namespace {

bool is_float(DType dtype) noexcept {
    return dtype == DType::kFloat64 || dtype == DType::kFloat32 || dtype == DType::kFloat16 ||
           dtype == DType::kBfloat16;
}

// The same parts, of the parameters in the opposite order.
std::vector<Bucket> turned_round(const std::vector<Bucket>& buckets, size_t parameters) {
    std::vector<Bucket> turned;
    for (const Bucket& bucket : buckets) {
        Bucket& other = turned.emplace_back();
        for (auto range = bucket.ranges.rbegin(); range != bucket.ranges.rend(); ++range) {
            const auto parameter = static_cast<uint32_t>(parameters - 1 - range->parameter);
            other.ranges.push_back({parameter, other.count, range->count});
            other.count += range->count;
        }
    }
    return turned;
}

// Whether parts of these sizes, which come again and again, can also be taken from the last
// parameter down, with any of them the first.
bool fit_downward(const std::vector<Bucket>& buckets, const std::vector<uint64_t>& counts) {
    for (size_t first = 0; first < buckets.size(); ++first) {
        size_t left = counts.size(), fitting = 0;
        for (; fitting < buckets.size(); ++fitting) {
            const uint64_t wanted = buckets[(first + fitting) % buckets.size()].count;
            uint64_t sum = 0;
            while (left > 0 && sum < wanted) {
                sum += counts[--left];
            }
            if (sum != wanted) {
                break;
            }
        }
        if (fitting == buckets.size()) {
            return true;
        }
    }
    return false;
}

}  // namespace

void DeepSpeedListener::end_run() {
    std::vector<uint64_t> counts = std::exchange(run_.counts, {});
    if (counts.size() < 2 || (counts_ != nullptr && counts == *counts_)) {
        return;  // the same again is the engine's parameters loaded again
    }
    if (begun_ && counts_ == nullptr) {
        return;  // no start of an engine
    }
    if (counts_ != nullptr || counts.size() > kMostParameters) {
        hopeless_ = true;
        return;
    }
    upward_.emplace(std::vector<uint64_t>(counts.rbegin(), counts.rend()));
    model_ = std::make_shared<const DdpModel>(DdpModel{std::vector<ParameterShape>(counts.size())});
    counts_ = std::make_shared<const std::vector<uint64_t>>(std::move(counts));
}

void DeepSpeedListener::hear(const CallFacts& facts) {
    const bool broadcast = facts.op == Op::kBroadcast;
    if (std::exchange(gathered_, facts.op == Op::kAllGather && facts.dtype == DType::kInt64 &&
                                     facts.count == 1) &&
        broadcast && facts.dtype == DType::kInt64 && facts.count % 2 == 0) {
        hopeless_ = true;  // DDP compares its ranks' models
    }
    if (hopeless_) {
        return;
    }
    if (broadcast && is_float(facts.dtype)) {
        if (!run_.counts.empty() &&
            (run_.root != facts.root_or_peer || run_.dtype != facts.dtype)) {
            end_run();
        }
        run_.root = facts.root_or_peer;
        run_.dtype = facts.dtype;
        if (run_.counts.size() <= kMostParameters) {
            run_.counts.push_back(facts.count);
        }
        return;
    }
    end_run();
    begun_ |= reduces(facts.op) && facts.count > 1 && is_float(facts.dtype);
}

BucketPlace DeepSpeedListener::next(uint64_t count) {
    if (hopeless_ || counts_ == nullptr) {
        return {};
    }
    if (!sequence_.has_value()) {
        if (upward_->next(count)) {
            std::vector<Bucket> buckets = turned_round(upward_->buckets(), counts_->size());
            if (fit_downward(buckets, *counts_)) {
                hopeless_ = true;
            } else {
                sequence_.emplace(std::move(buckets));
            }
        }
        return {};
    }
    const Bucket* const bucket = sequence_->next(count);
    if (bucket == nullptr) {
        return {};
    }
    return {model_.get(), bucket, kModelNumber, 1,
            static_cast<uint32_t>(bucket - sequence_->buckets().data())};
}

}  // namespace slimwire
