// Models drawn at random, and what DistributedDataParallel tells of them through NCCL, written from
// its source independently of collectives/identity/ddp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "collectives/identity/ddp/buckets.h"

namespace slimwire::test {

// With the dimensions lying in memory in this order, given outermost first.
inline ParameterShape in_order(std::vector<int64_t> sizes, const std::vector<size_t>& order) {
    ParameterShape shape{std::move(sizes), {}};
    shape.strides.resize(shape.sizes.size());
    int64_t stride = 1;
    for (size_t i = order.size(); i-- > 0;) {
        shape.strides[order[i]] = stride;
        stride *= std::max<int64_t>(shape.sizes[order[i]], 1);
    }
    return shape;
}

inline ParameterShape contiguous(std::vector<int64_t> sizes) {
    std::vector<size_t> order(sizes.size());
    std::iota(order.begin(), order.end(), size_t{0});
    return in_order(std::move(sizes), order);
}

inline ParameterShape channels_last(int64_t n, int64_t c, int64_t h, int64_t w) {
    return in_order({n, c, h, w}, {0, 2, 3, 1});
}

// What verify_params_across_processes broadcasts.
inline std::vector<int64_t> shapes_tensor(const std::vector<ParameterShape>& model) {
    std::vector<int64_t> values;
    for (const ParameterShape& shape : model) {
        values.insert(values.end(), shape.sizes.begin(), shape.sizes.end());
        values.insert(values.end(), shape.strides.begin(), shape.strides.end());
    }
    return values;
}

// Layers as networks have them: linear, convolutions in either memory format, norms, embeddings,
// attention's stacked projections, positions; widths ragged, sometimes 1.
inline std::vector<ParameterShape> draw_model(std::mt19937& random, bool transposed) {
    const auto below = [&](int bound) {
        return static_cast<int64_t>(random() % static_cast<unsigned>(bound));
    };
    const auto width = [&] { return below(50) == 0 ? 1 : 2 + below(300); };
    const bool last = below(3) == 0;
    std::vector<ParameterShape> model = {contiguous({width()})};
    const auto bias = [&](int64_t size) {
        if (below(4) != 0) {
            model.push_back(contiguous({size}));
        }
    };
    int64_t features = width();
    for (int64_t layer = 1 + below(30); layer > 0; --layer) {
        const int64_t to = width();
        switch (below(6)) {
            case 0:
            case 1:
                model.push_back(contiguous({to, features}));
                bias(to);
                break;
            case 2: {
                const int64_t kernel = 1 + 2 * below(3);
                model.push_back(last ? channels_last(to, features, kernel, kernel)
                                     : contiguous({to, features, kernel, kernel}));
                bias(to);
                break;
            }
            case 3:
                model.push_back(contiguous({features}));
                bias(features);
                continue;
            case 4:
                model.push_back(transposed ? in_order({features, to}, {1, 0})
                                           : contiguous({features, to}));
                break;
            default:
                model.push_back(contiguous({1, 1 + below(64), to}));
                break;
        }
        features = to;
    }
    return model;
}

// The parameters' indices in each bucket before the buckets are rebuilt, in the order of the
// all-reduces (compute_bucket_assignment_by_size, whose result DDP reverses).
inline std::vector<std::vector<uint32_t>> first_buckets(const std::vector<ParameterShape>& model,
                                                        uint64_t first_limit,
                                                        uint64_t limit) {
    std::vector<std::vector<uint32_t>> buckets;
    std::vector<uint32_t> open;
    uint64_t bytes = 0, most = first_limit;
    for (uint32_t parameter = 0; parameter < model.size(); ++parameter) {
        open.push_back(parameter);
        bytes += 4 * model[parameter].count();
        if (bytes >= most) {
            buckets.push_back(std::exchange(open, {}));
            bytes = 0;
            most = limit;
        }
    }
    if (!open.empty()) {
        buckets.push_back(open);
    }
    std::reverse(buckets.begin(), buckets.end());
    return buckets;
}

// Divides the parameters, in the order in which their gradients come, into buckets.
inline std::vector<std::vector<uint32_t>> later_buckets(const std::vector<ParameterShape>& model,
                                                        std::mt19937& random,
                                                        uint64_t limit) {
    std::vector<uint32_t> order(model.size());
    std::iota(order.rbegin(), order.rend(), 0u);
    for (size_t i = 0; i + 1 < order.size(); ++i) {
        if (random() % 4 == 0) {
            std::swap(order[i], order[i + 1]);
        }
    }
    std::vector<std::vector<uint32_t>> buckets(1);
    uint64_t bytes = 0;
    for (const uint32_t parameter : order) {
        if (bytes >= limit) {
            buckets.emplace_back();
            bytes = 0;
        }
        buckets.back().push_back(parameter);
        bytes += 4 * model[parameter].count();
    }
    return buckets;
}

// Of these parameters, one behind the other.
inline Bucket bucket_of(const std::vector<ParameterShape>& model,
                        const std::vector<uint32_t>& parameters) {
    Bucket bucket;
    for (const uint32_t parameter : parameters) {
        bucket.ranges.push_back({parameter, bucket.count, model[parameter].count()});
        bucket.count += model[parameter].count();
    }
    return bucket;
}

}  // namespace slimwire::test
