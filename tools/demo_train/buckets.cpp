#include "tools/demo_train/buckets.h"

#include <algorithm>

namespace demo {

BucketLayout make_buckets(const std::vector<Tensor>& tensors, size_t bucket_bytes, int ranks) {
    BucketLayout layout;
    layout.placements.resize(tensors.size());
    const auto pieces = static_cast<size_t>(ranks);
    Bucket open;
    const auto close = [&] {
        open.padded_elems = (open.elems + pieces - 1) / pieces * pieces;
        layout.flat_elems = open.offset + open.padded_elems;
        layout.buckets.push_back(open);
        open = Bucket{};
        open.offset = layout.flat_elems;
    };
    for (size_t i = tensors.size(); i-- > 0;) {
        const Tensor& tensor = tensors[i];
        if (open.elems == 0) {
            open.first_layer = open.last_layer = tensor.layer;
        }
        layout.placements[i] = {layout.buckets.size(), open.offset + open.elems};
        open.first_layer = std::min(open.first_layer, tensor.layer);
        open.last_layer = std::max(open.last_layer, tensor.layer);
        open.elems += tensor.elems;
        if (open.elems * sizeof(float) >= bucket_bytes) {
            close();
        }
    }
    if (open.elems > 0) {
        close();
    }
    return layout;
}

}  // namespace demo
