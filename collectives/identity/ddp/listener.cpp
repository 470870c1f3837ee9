#include "collectives/identity/ddp/listener.h"

#include <algorithm>
#include <utility>

namespace slimwire {
namespace {

bool has_count(const std::vector<Bucket>& buckets, uint64_t count) noexcept {
    return std::any_of(buckets.begin(), buckets.end(),
                       [count](const Bucket& bucket) { return bucket.count == count; });
}

}  // namespace

// Whether so many integers may be the bucket indices of a model that has not been rebuilt. One that
// is not read yet may have any number of parameters.
bool DdpListener::may_be_indices(uint64_t count) const noexcept {
    return count >= 2 &&
           (unread_ > 0 || std::any_of(models_.begin(), models_.end(), [count](const Entry& entry) {
                return !entry.rebuilt && entry.model->parameters.size() + 1 == count;
            }));
}

uint64_t DdpListener::wanted(const CallSignature& signature, int ranks) noexcept {
    const Expects expected = std::exchange(expects_, Expects::kNothing);
    if (signature.op == Op::kAllGather && signature.dtype == DType::kInt64 &&
        signature.count == 1) {
        expects_ = Expects::kShapes;
        return static_cast<uint64_t>(ranks);
    }
    if (signature.op != Op::kBroadcast || signature.root_or_peer != 0 ||
        signature.count > kMaxValues) {
        return 0;
    }
    const bool shapes = signature.dtype == DType::kInt64 && expected == Expects::kShapes &&
                        signature.count > 0 && signature.count % 2 == 0;
    const bool buckets = signature.dtype == DType::kInt32 && signature.count > 0 &&
                         (expected == Expects::kBucketSizes || may_be_indices(signature.count));
    if (buckets) {
        expects_ = Expects::kBucketSizes;
    }
    unread_ += shapes || buckets ? 1 : 0;
    return shapes || buckets ? signature.count : 0;
}

void DdpListener::found_model(std::vector<ParameterShape> shapes) {
    // The same model wrapped again, as after a restart within the process.
    std::erase_if(models_, [&](const Entry& entry) { return entry.model->parameters == shapes; });
    if (models_.size() == kMaxModels) {
        models_.erase(models_.begin());
    }
    BucketsFromCounts counts(shapes);
    models_.push_back({std::make_shared<const DdpModel>(DdpModel{std::move(shapes)}), false,
                       numbers_++, std::move(counts), std::nullopt});
}

// A tensor that may be bucket indices, or the sizes that belong to the ones before.
void DdpListener::found_indices(std::span<const int64_t> values) {
    Entry* owner = nullptr;
    std::vector<Bucket> buckets;
    size_t owners = 0;
    for (Entry& entry : models_) {
        auto read = read_buckets(indices_, values, entry.model->parameters);
        if (read.has_value()) {
            owner = &entry;
            buckets = std::move(*read);
            ++owners;
        }
    }
    if (owners == 0) {
        indices_.assign(values.begin(), values.end());
        return;
    }
    // Which of several models with as many parameters was rebuilt, nothing tells.
    for (Entry& entry : models_) {
        if (owners > 1 && entry.model->parameters.size() + 1 == indices_.size()) {
            entry.sequence.reset();
            entry.rebuilt = true;
        }
    }
    if (owners == 1) {
        owner->sequence.emplace(std::move(buckets));
        owner->rebuilt = true;
    }
    indices_.clear();
}

void DdpListener::read(const CallSignature& signature, std::span<const int64_t> values) {
    unread_ -= signature.op == Op::kBroadcast ? 1 : 0;
    if (signature.dtype == DType::kInt32) {
        found_indices(values);
        return;
    }
    indices_.clear();
    if (signature.op == Op::kAllGather) {
        const bool equal =
            std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) == values.end();
        parameters_ =
            equal && !values.empty() && values[0] > 0 ? static_cast<uint64_t>(values[0]) : 0;
        return;
    }
    auto shapes = read_parameter_shapes(values, std::exchange(parameters_, 0));
    if (shapes.has_value()) {
        found_model(std::move(*shapes));
    }
}

BucketPlace DdpListener::next(uint64_t count) {
    BucketPlace place;
    size_t owners = 0;
    for (Entry& entry : models_) {
        if (!entry.sequence.has_value()) {
            if (!entry.rebuilt && entry.counts.next(count)) {
                entry.sequence.emplace(entry.counts.buckets());
            }
            continue;
        }
        if (!has_count(entry.sequence->buckets(), count)) {
            continue;
        }
        ++owners;
        if (const Bucket* bucket = entry.sequence->next(count); bucket != nullptr) {
            const Bucket* const first = entry.sequence->buckets().data();
            const auto equal = [count](const Bucket& other) { return other.count == count; };
            place = {entry.model.get(),
                     bucket,
                     entry.number,
                     entry.rebuilt ? 2u : 1u,
                     static_cast<uint32_t>(bucket - first),
                     static_cast<uint32_t>(std::count_if(first, bucket, equal))};
        }
    }
    return owners == 1 ? place : BucketPlace{};
}

}  // namespace slimwire
