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

// Known with the last of these counts.
TEST(Buckets, FromCounts) {
    std::vector<uint64_t> not_again = {10, 16};
    not_again.resize(2 + BucketsFromCounts::kMostBetween + 1, 24);
    not_again.insert(not_again.end(), {10, 16, 10, 16});
    for (const std::vector<uint64_t>& seen :
         {std::vector<uint64_t>{10, 1, 16, 10, 1, 16},        // another tensor's between
          std::vector<uint64_t>{10, 10, 16, 10, 10, 16},      // steps cut short
          std::vector<uint64_t>{2, 10, 2, 16, 2, 10, 2, 16},  // as large as the last parameter
          not_again}) {
        BucketsFromCounts counts(kBucketsModel);
        for (size_t i = 0; i < seen.size(); ++i) {
            EXPECT_EQ(counts.next(seen[i]), i + 1 == seen.size()) << i << " of " << seen.size();
        }
        EXPECT_EQ(counts.buckets(), (std::vector<Bucket>{test::bucket_of(kBucketsModel, {2, 3}),
                                                         test::bucket_of(kBucketsModel, {0, 1})}));
    }
}

TEST(Buckets, FromCountsOfRandomModels) {
    std::mt19937 random(test_seed());
    SCOPED_TRACE("seed " + std::to_string(test_seed()));
    for (int i = 0; i < 300; ++i) {
        const Model model = test::draw_model(random, true);
        const auto buckets =
            test::first_buckets(model, 1 + random() % 10000, 1 + random() % 100000);
        BucketsFromCounts counts(model);
        std::vector<Bucket> wanted;
        for (const auto& parameters : buckets) {
            wanted.push_back(test::bucket_of(model, parameters));
        }
        for (int step = 0; step < 2; ++step) {
            for (size_t b = 0; b < wanted.size(); ++b) {
                ASSERT_EQ(counts.next(wanted[b].count), step == 1 && b + 1 == wanted.size());
            }
        }
        ASSERT_EQ(counts.buckets(), wanted);
    }
}

std::vector<Bucket> of_counts(const std::vector<uint64_t>& counts) {
    std::vector<Bucket> buckets;
    for (const uint64_t count : counts) {
        buckets.push_back({{{static_cast<uint32_t>(buckets.size()), 0, count}}, count});
    }
    return buckets;
}

TEST(BucketSequence, SaysWhichBucketItIsOrNone) {
    struct Seen {
        uint64_t count;
        int number;  // of the bucket; -1: none
    };
    const std::pair<std::vector<uint64_t>, std::vector<Seen>> kCases[] = {
        {{5, 7, 5}, {{5, 0}, {1, -1}, {7, 1}, {5, 2}, {5, 0}, {1, -1}, {7, 1}, {5, 2}}},
        // The step was cut short after its first bucket.
        {{5, 7, 5}, {{5, 0}, {5, -1}, {7, -1}, {5, -1}, {5, 0}, {7, 1}}},
        // Of equal halves it is lost for good.
        {{5, 7, 5, 7}, {{5, 0}, {7, 1}, {7, -1}, {5, -1}, {7, -1}, {5, -1}, {7, -1}, {5, -1}}},
        {{9}, {{9, 0}, {8, -1}, {9, 0}}},
    };
    for (const auto& [counts, calls] : kCases) {
        BucketSequence sequence(of_counts(counts));
        for (size_t i = 0; i < calls.size(); ++i) {
            const Bucket* bucket = sequence.next(calls[i].count);
            EXPECT_EQ(bucket == nullptr ? -1 : bucket - sequence.buckets().data(), calls[i].number)
                << i << " of " << calls.size();
        }
    }
}

}  // namespace
}  // namespace slimwire
