// How the parameters lie in flat buckets. Tensors are taken from the last layer to the first, since
// gradients become ready in that order; a bucket closes when it has reached the wanted size, and no
// tensor is cut (the rule of the data-parallel wrappers of the frameworks). Pure computation.
#pragma once

#include <cstddef>
#include <vector>

#include "tools/demo_train/mlp.h"

namespace demo {

struct Placement {
    size_t bucket = 0;
    size_t offset = 0;  // elements from the start of the flat array of all buckets
};

struct Bucket {
    size_t offset = 0;        // elements, in the flat array
    size_t elems = 0;         // of its tensors
    size_t padded_elems = 0;  // multiple of the number of ranks: what sharding exchanges
    int first_layer = 0;      // lowest layer inside: the bucket is ready after its backward
    int last_layer = 0;       // highest layer inside
};

struct BucketLayout {
    std::vector<Bucket> buckets;        // in the order of readiness
    std::vector<Placement> placements;  // of each tensor, in model order
    size_t flat_elems = 0;              // all buckets with their padding
};

// `bucket_bytes`: a bucket closes when its tensors reach this size. `ranks` >= 1.
BucketLayout make_buckets(const std::vector<Tensor>& tensors, size_t bucket_bytes, int ranks);

}  // namespace demo
