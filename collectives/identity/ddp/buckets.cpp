#include "collectives/identity/ddp/buckets.h"

#include <algorithm>
#include <utility>

namespace slimwire {
namespace {

void append(Bucket* bucket, uint32_t parameter, uint64_t count) {
    bucket->ranges.push_back({parameter, bucket->count, count});
    bucket->count += count;
}

}  // namespace

std::optional<std::vector<Bucket>> read_buckets(std::span<const int64_t> indices,
                                                std::span<const int64_t> sizes,
                                                std::span<const ParameterShape> parameters) {
    const size_t total = parameters.size();
    if (indices.size() != total + 1 || static_cast<uint64_t>(indices.back()) != sizes.size()) {
        return std::nullopt;
    }
    std::vector<bool> taken(total, false);
    std::vector<Bucket> buckets;
    size_t at = 0;
    for (const int64_t size : sizes) {
        if (size < 1 || static_cast<uint64_t>(size) > total - at) {
            return std::nullopt;
        }
        Bucket& bucket = buckets.emplace_back();
        for (int64_t i = 0; i < size; ++i, ++at) {
            const int64_t index = indices[at];
            if (index < 0 || static_cast<uint64_t>(index) >= total ||
                taken[static_cast<size_t>(index)]) {
                return std::nullopt;
            }
            taken[static_cast<size_t>(index)] = true;
            append(&bucket, static_cast<uint32_t>(index),
                   parameters[static_cast<size_t>(index)].count());
        }
    }
    return at == total ? std::optional(std::move(buckets)) : std::nullopt;
}

BucketsFromCounts::BucketsFromCounts(std::span<const ParameterShape> parameters) {
    std::vector<uint64_t> counts;
    for (const ParameterShape& shape : parameters) {
        counts.push_back(shape.count());
    }
    parameter_counts_ = std::make_shared<const std::vector<uint64_t>>(std::move(counts));
}

// Takes parameters for one more bucket, from the last on downwards; false where none are so many
// elements. One of no elements goes with those after it.
bool BucketsFromCounts::extend(Division* division, uint64_t count) const {
    uint32_t first = division->firsts.empty() ? static_cast<uint32_t>(parameter_counts_->size())
                                              : division->firsts.back();
    uint64_t sum = 0;
    while (first > 0 && sum < count) {
        sum += (*parameter_counts_)[--first];
    }
    while (first > 0 && (*parameter_counts_)[first - 1] == 0) {
        --first;
    }
    if (sum != count || count == 0) {
        return false;
    }
    division->firsts.push_back(first);
    division->counts.push_back(count);
    return true;
}

// Whether the division found came a second time.
bool BucketsFromCounts::confirm(uint64_t count) {
    if (count != found_.counts[confirmed_]) {
        ++passed_;
        return false;
    }
    passed_ = 0;
    confirmed_ = (confirmed_ + 1) % found_.counts.size();
    return confirmed_ == 0;
}

bool BucketsFromCounts::next(uint64_t count) {
    if (!found_.counts.empty()) {
        if (confirm(count)) {
            return true;
        }
        if (passed_ <= kMostBetween) {
            return false;
        }
        found_ = {};
    }
    Division fresh;
    if (extend(&fresh, count)) {
        if (begun_.size() == kMostBegun) {
            begun_.erase(begun_.begin());
        }
        begun_.emplace_back();
    }
    for (Division& division : begun_) {
        if (extend(&division, count) && division.firsts.back() == 0) {
            found_ = std::move(division);
            begun_.clear();
            confirmed_ = 0;
            passed_ = 0;
            break;
        }
    }
    return false;
}

std::vector<Bucket> BucketsFromCounts::buckets() const {
    std::vector<Bucket> buckets;
    auto end = static_cast<uint32_t>(parameter_counts_->size());
    for (const uint32_t first : found_.firsts) {
        Bucket& bucket = buckets.emplace_back();
        for (uint32_t parameter = first; parameter < end; ++parameter) {
            append(&bucket, parameter, (*parameter_counts_)[parameter]);
        }
        end = first;
    }
    return buckets;
}

BucketSequence::BucketSequence(std::vector<Bucket> buckets)
    : buckets_(std::make_shared<const std::vector<Bucket>>(std::move(buckets))) {}

// Sets what is expected if the counts seen are the buckets from one of them on, and no other.
bool BucketSequence::find_turn() noexcept {
    const size_t n = buckets_->size();
    size_t turns = 0;
    for (size_t turn = 0; turn < n && turns < 2; ++turn) {
        bool fits = seen_.size() == n;
        for (size_t i = 0; fits && i < n; ++i) {
            fits = seen_[i] == (*buckets_)[(turn + i) % n].count;
        }
        if (fits) {
            expected_ = turn;
            ++turns;
        }
    }
    return turns == 1;
}

const Bucket* BucketSequence::next(uint64_t count) {
    const bool known = std::any_of(buckets_->begin(), buckets_->end(),
                                   [&](const Bucket& bucket) { return bucket.count == count; });
    if (!known) {
        return nullptr;
    }
    if (!lost_ && (*buckets_)[expected_].count == count) {
        const Bucket* bucket = &(*buckets_)[expected_];
        expected_ = (expected_ + 1) % buckets_->size();
        return bucket;
    }
    if (!std::exchange(lost_, true)) {
        seen_.clear();
    }
    seen_.push_back(count);
    if (seen_.size() > buckets_->size()) {
        seen_.erase(seen_.begin());
    }
    lost_ = !find_turn();
    return nullptr;
}

}  // namespace slimwire
