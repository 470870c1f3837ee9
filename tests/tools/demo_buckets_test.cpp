// How demo_train lays tensors into buckets: order, sizes, padding, and that nothing overlaps.
#include "tools/demo_train/model.h"

#include <gtest/gtest.h>

#include <numeric>

namespace demo {
namespace {

std::vector<Tensor> tensors_of(const std::vector<int>& widths) {
    return Mlp(widths, 1).tensors();
}

void expect_consistent(const std::vector<Tensor>& tensors,
                       const BucketLayout& layout,
                       size_t ranks) {
    std::vector<int> used(layout.flat_elems, 0);
    for (size_t i = 0; i < tensors.size(); ++i) {
        const Placement place = layout.placements[i];
        const Bucket& bucket = layout.buckets.at(place.bucket);
        EXPECT_GE(place.offset, bucket.offset);
        EXPECT_LE(place.offset + tensors[i].elems, bucket.offset + bucket.elems);
        EXPECT_LE(bucket.first_layer, tensors[i].layer);
        EXPECT_GE(bucket.last_layer, tensors[i].layer);
        for (size_t j = 0; j < tensors[i].elems; ++j) {
            ASSERT_EQ(used.at(place.offset + j)++, 0) << tensors[i].name;
        }
    }
    size_t padding = 0;
    for (const Bucket& bucket : layout.buckets) {
        EXPECT_EQ(bucket.padded_elems % ranks, 0u);
        EXPECT_LT(bucket.padded_elems - bucket.elems, ranks);
        padding += bucket.padded_elems - bucket.elems;
    }
    EXPECT_EQ(std::accumulate(used.begin(), used.end(), size_t{0}) + padding, layout.flat_elems);
}

TEST(DemoBuckets, DemoModelHasTwoBucketsOfMebibytes) {
    const std::vector<Tensor> tensors = tensors_of({784, 1024, 1024, 10});
    const BucketLayout layout = make_buckets(tensors, size_t{4} << 20, 4);
    ASSERT_EQ(layout.buckets.size(), 2u);
    // The last layer comes first: its gradients are ready first.
    EXPECT_EQ(layout.placements[5].offset, 0u);
    EXPECT_EQ(layout.buckets[0].first_layer, 1);
    EXPECT_EQ(layout.buckets[1].first_layer, 0);
    EXPECT_EQ(layout.buckets[0].elems + layout.buckets[1].elems, 1863690u);
    expect_consistent(tensors, layout, 4);
}

TEST(DemoBuckets, SmallLimitGivesOneBucketATensor) {
    const std::vector<Tensor> tensors = tensors_of({3, 5, 2});
    const BucketLayout layout = make_buckets(tensors, 1, 3);
    EXPECT_EQ(layout.buckets.size(), tensors.size());
    expect_consistent(tensors, layout, 3);
}

TEST(DemoBuckets, LargeLimitGivesOneBucket) {
    const std::vector<Tensor> tensors = tensors_of({3, 5, 2});
    const BucketLayout layout = make_buckets(tensors, size_t{1} << 40, 7);
    ASSERT_EQ(layout.buckets.size(), 1u);
    EXPECT_EQ(layout.buckets[0].elems, 32u);
    EXPECT_EQ(layout.buckets[0].padded_elems, 35u);
    expect_consistent(tensors, layout, 7);
}

}  // namespace
}  // namespace demo
