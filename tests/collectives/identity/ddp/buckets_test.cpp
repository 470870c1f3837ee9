// Buckets from DDP's broadcasts and from the all-reduces themselves, and where each all-reduce
// belongs.
#include "collectives/identity/ddp/buckets.h"

#include <gtest/gtest.h>

#include "tests/collectives/identity/ddp/models.h"
#include "tests/support/seed.h"

namespace slimwire {
namespace {

using test::contiguous;
using Model = std::vector<ParameterShape>;
using Values = std::vector<int64_t>;

const Model kBucketsModel = {contiguous({4, 3}), contiguous({4}), contiguous({2, 4}),
                             contiguous({2})};

std::vector<uint64_t> counts_of(const Model& model) {
    std::vector<uint64_t> counts;
    for (const ParameterShape& shape : model) {
        counts.push_back(shape.count());
    }
    return counts;
}

TEST(Buckets, OfTheTwoTensors) {
    const auto buckets = read_buckets(Values{3, 2, 1, 0, 2}, Values{3, 1}, kBucketsModel);
    ASSERT_TRUE(buckets.has_value());
    const std::vector<Bucket> expected = {{{{3, 0, 2}, {2, 2, 8}, {1, 10, 4}}, 14},
                                          {{{0, 0, 12}}, 12}};
    EXPECT_EQ(*buckets, expected);
}

TEST(Buckets, WhatIsNone) {
    for (const auto& [indices, sizes] : std::vector<std::pair<Values, Values>>{
             {{3, 2, 1, 0, 2}, {4}},      // another number of buckets
             {{3, 2, 1, 0, 2}, {3, 2}},   // more parameters than there are
             {{3, 2, 1, 0, 2}, {2, 1}},   // fewer
             {{3, 2, 1, 0, 2}, {4, 0}},   // an empty bucket
             {{3, 2, 1, 0, 2}, {5, -1}},  //
             {{3, 2, 2, 0, 2}, {3, 1}},   // one twice
             {{3, 2, 1, 4, 2}, {3, 1}},   // one that is not there
             {{3, 2, 1, -1, 2}, {3, 1}},  //
             {{3, 2, 1, 2}, {2, 1}},      // of another model
             {{3, 2, 1, 0, 0}, {}},       //
             {{}, {}},                    //
             {{3, 2, 1, 0, int64_t{1} << 62}, {3, 1}},
         }) {
        EXPECT_EQ(read_buckets(indices, sizes, kBucketsModel), std::nullopt);
    }
}

TEST(Buckets, FromCounts) {
    BucketsFromCounts counts(counts_of(kBucketsModel));
    EXPECT_FALSE(counts.next(10));
    EXPECT_FALSE(counts.next(1));  // another tensor's
    EXPECT_FALSE(counts.next(16));
    EXPECT_FALSE(counts.next(10));
    EXPECT_FALSE(counts.next(1));
    EXPECT_TRUE(counts.next(16));
    const std::vector<Bucket> expected = {{{{2, 0, 8}, {3, 8, 2}}, 10},
                                          {{{0, 0, 12}, {1, 12, 4}}, 16}};
    EXPECT_EQ(counts.buckets(), expected);
}

TEST(Buckets, FromCountsAfterAStepCutShort) {
    BucketsFromCounts counts(counts_of(kBucketsModel));
    for (const uint64_t count : {10, 10, 16, 10, 10}) {
        EXPECT_FALSE(counts.next(count)) << count;
    }
    EXPECT_TRUE(counts.next(16));
    EXPECT_EQ(counts.buckets().size(), 2u);
}

TEST(Buckets, FromCountsBesideATensorAsLargeAsTheLastParameter) {
    BucketsFromCounts counts(counts_of(kBucketsModel));
    for (const uint64_t count : {2, 10, 2, 16, 2, 10, 2}) {
        EXPECT_FALSE(counts.next(count)) << count;
    }
    EXPECT_TRUE(counts.next(16));
}

TEST(Buckets, FromCountsOfADivisionThatDoesNotComeBack) {
    BucketsFromCounts counts(counts_of(kBucketsModel));
    EXPECT_FALSE(counts.next(10));
    EXPECT_FALSE(counts.next(16));
    for (uint32_t i = 0; i <= BucketsFromCounts::kMostBetween; ++i) {
        EXPECT_FALSE(counts.next(24));
    }
    for (const uint64_t count : {10, 16, 10}) {
        EXPECT_FALSE(counts.next(count)) << count;
    }
    EXPECT_TRUE(counts.next(16));
}

TEST(Buckets, FromCountsOfRandomModels) {
    std::mt19937 random(test_seed());
    SCOPED_TRACE("seed " + std::to_string(test_seed()));
    for (int i = 0; i < 300; ++i) {
        const Model model = test::draw_model(random, true);
        const auto buckets =
            test::first_buckets(model, 1 + random() % 10000, 1 + random() % 100000);
        BucketsFromCounts counts(counts_of(model));
        for (int step = 0; step < 2; ++step) {
            for (size_t b = 0; b < buckets.size(); ++b) {
                ASSERT_EQ(counts.next(test::count_of(model, buckets[b])),
                          step == 1 && b + 1 == buckets.size());
            }
        }
        const std::vector<Bucket> found = counts.buckets();
        ASSERT_EQ(found.size(), buckets.size());
        for (size_t b = 0; b < buckets.size(); ++b) {
            ASSERT_EQ(found[b].ranges.size(), buckets[b].size());
            uint64_t offset = 0;
            for (size_t r = 0; r < buckets[b].size(); ++r) {
                const uint64_t count = model[buckets[b][r]].count();
                const Bucket::Range expected{buckets[b][r], offset, count};
                ASSERT_EQ(found[b].ranges[r], expected);
                offset += count;
            }
        }
    }
}

std::vector<Bucket> of_counts(const std::vector<uint64_t>& counts) {
    std::vector<Bucket> buckets;
    for (const uint64_t count : counts) {
        buckets.push_back({{{static_cast<uint32_t>(buckets.size()), 0, count}}, count});
    }
    return buckets;
}

// The number of the bucket, or -1.
int number(BucketSequence* sequence, uint64_t count) {
    const Bucket* bucket = sequence->next(count);
    return bucket == nullptr ? -1 : static_cast<int>(bucket - sequence->buckets().data());
}

TEST(BucketSequence, FollowsTheSteps) {
    BucketSequence sequence(of_counts({5, 7, 5}));
    for (int step = 0; step < 3; ++step) {
        EXPECT_EQ(number(&sequence, 5), 0);
        EXPECT_EQ(number(&sequence, 1), -1);
        EXPECT_EQ(number(&sequence, 7), 1);
        EXPECT_EQ(number(&sequence, 5), 2);
    }
}

TEST(BucketSequence, FindsItsTurnAgain) {
    BucketSequence sequence(of_counts({5, 7, 5}));
    EXPECT_EQ(number(&sequence, 5), 0);
    // The step was cut short after its first bucket.
    EXPECT_EQ(number(&sequence, 5), -1);
    EXPECT_EQ(number(&sequence, 7), -1);
    EXPECT_EQ(number(&sequence, 5), -1);
    EXPECT_EQ(number(&sequence, 5), 0);
    EXPECT_EQ(number(&sequence, 7), 1);
}

TEST(BucketSequence, OfEqualBucketsIsLostForGood) {
    BucketSequence sequence(of_counts({5, 7, 5, 7}));
    EXPECT_EQ(number(&sequence, 5), 0);
    EXPECT_EQ(number(&sequence, 7), 1);
    EXPECT_EQ(number(&sequence, 7), -1);
    for (int i = 0; i < 20; ++i) {
        EXPECT_EQ(number(&sequence, 5), -1);
        EXPECT_EQ(number(&sequence, 7), -1);
    }
}

TEST(BucketSequence, OfOneBucket) {
    BucketSequence sequence(of_counts({9}));
    EXPECT_EQ(number(&sequence, 9), 0);
    EXPECT_EQ(number(&sequence, 8), -1);
    EXPECT_EQ(number(&sequence, 9), 0);
}

}  // namespace
}  // namespace slimwire
