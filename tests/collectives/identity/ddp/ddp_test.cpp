// What a listener hears from the calls that DistributedDataParallel makes, in the situations of a
// training run: of each all-reduce the right bucket or none, and right ones once it can know.
#include "collectives/identity/ddp/listener.h"

#include <gtest/gtest.h>

#include "tests/collectives/identity/ddp/models.h"
#include "tests/support/seed.h"

namespace slimwire {
namespace {

using test::contiguous;
using Model = std::vector<ParameterShape>;
using Buckets = std::vector<std::vector<uint32_t>>;
using Values = std::vector<int64_t>;

constexpr int kDdpRanks = 4;

CallSignature facts_of(Op op, DType dtype, uint64_t count, int root = 0) {
    CallSignature signature;
    signature.op = op;
    signature.dtype = dtype;
    signature.count = count;
    signature.root_or_peer = root;
    return signature;
}

// Makes the calls of DDP jobs on one communicator, and compares what the listener says of them.
class DdpJob {
  public:
    // A call that is not DDP's.
    void other(const CallSignature& signature) {
        EXPECT_EQ(listener.wanted(signature, kDdpRanks), 0u);
    }

    void tensor(const CallSignature& signature, const Values& values) {
        const uint64_t wanted = listener.wanted(signature, kDdpRanks);
        if (wanted > 0) {
            ASSERT_EQ(wanted, values.size());
            listener.read(signature, values);
        }
    }

    void wrap(const Model& model) {
        tensor(facts_of(Op::kAllGather, DType::kInt64, 1),
               Values(kDdpRanks, static_cast<int64_t>(model.size())));
        const Values values = test::shapes_tensor(model);
        tensor(facts_of(Op::kBroadcast, DType::kInt64, values.size()), values);
        other(facts_of(Op::kBroadcast, DType::kFloat32, 1000));
    }

    void rebuild(const Buckets& buckets) {
        Values indices, sizes;
        for (const auto& bucket : buckets) {
            indices.insert(indices.end(), bucket.begin(), bucket.end());
            sizes.push_back(static_cast<int64_t>(bucket.size()));
        }
        indices.push_back(static_cast<int64_t>(buckets.size()));
        tensor(facts_of(Op::kBroadcast, DType::kInt32, indices.size()), indices);
        tensor(facts_of(Op::kBroadcast, DType::kInt32, sizes.size()), sizes);
    }

    // One all-reduce of a bucket. Returns whether the listener knew it; fails if it was wrong.
    bool bucket(const Model& model, const std::vector<uint32_t>& parameters) {
        const Bucket wanted = test::bucket_of(model, parameters);
        other(facts_of(Op::kAllReduce, DType::kFloat32, wanted.count));
        const BucketPlace place = listener.next(wanted.count);
        if (place.model == nullptr) {
            return false;
        }
        EXPECT_EQ(place.model->parameters, model);
        EXPECT_EQ(*place.bucket, wanted);
        return true;
    }

    // All buckets of a step; how many were known.
    size_t step(const Model& model, const Buckets& buckets) {
        size_t known = 0;
        for (const auto& parameters : buckets) {
            known += bucket(model, parameters) ? 1 : 0;
        }
        return known;
    }

    // An all-reduce that is no bucket, as of a loss or a gradient's norm.
    void metric(uint64_t count) {
        other(facts_of(Op::kAllReduce, DType::kFloat32, count));
        EXPECT_EQ(listener.next(count).model, nullptr);
    }

    DdpListener listener;
};

const Model kDdpModel = {contiguous({40, 30}), contiguous({40}),     contiguous({20, 40}),
                         contiguous({20}),     contiguous({10, 20}), contiguous({10})};
const Buckets kAll = {{0, 1, 2, 3, 4, 5}};
const Buckets kRebuilt = {{5, 4, 3}, {2}, {1, 0}};

TEST(DdpListener, TwoModelsOnOneCommunicator) {
    DdpJob job;
    const Model other = {contiguous({9, 3}), contiguous({9})};
    job.wrap(kDdpModel);
    job.wrap(other);
    job.rebuild({{1}, {0}});
    job.rebuild(kRebuilt);
    for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(job.step(other, {{1}, {0}}), 2u);
        EXPECT_EQ(job.step(kDdpModel, kRebuilt), 3u);
    }
}

TEST(DdpListener, ModelsWithEqualBucketsAreNotGuessed) {
    DdpJob job;
    const Model other = {contiguous({7}), contiguous({40, 20})};
    job.wrap(kDdpModel);
    job.wrap(other);
    job.rebuild(kRebuilt);
    job.rebuild({{1}, {0}});  // its first has 800 elements, as kDdpModel's second
    for (int i = 0; i < 3; ++i) {
        EXPECT_FALSE(job.bucket(other, {1}));
        job.step(other, {{0}});
        job.step(kDdpModel, kRebuilt);
    }
}

TEST(DdpListener, WhichOfTwoTwinsWasRebuiltIsNotGuessed) {
    DdpJob job;
    Model twin = kDdpModel;
    twin[0] = contiguous({41, 30});
    job.wrap(kDdpModel);
    job.wrap(twin);
    job.rebuild(kRebuilt);
    EXPECT_EQ(job.step(kDdpModel, kRebuilt), 0u);
    EXPECT_EQ(job.step(twin, kRebuilt), 0u);
}

TEST(DdpListener, AModelWrappedAgain) {
    DdpJob job;
    job.wrap(kDdpModel);
    job.rebuild(kRebuilt);
    EXPECT_EQ(job.step(kDdpModel, kRebuilt), 3u);
    job.wrap(kDdpModel);
    EXPECT_EQ(job.listener.models(), 1u);
    EXPECT_EQ(job.step(kDdpModel, kAll), 0u);
    const Buckets again = {{5}, {4, 3, 2, 1}, {0}};
    job.rebuild(again);
    EXPECT_EQ(job.step(kDdpModel, again), 3u);
}

TEST(DdpListener, ManyModelsAreBounded) {
    DdpJob job;
    for (int64_t i = 0; i < 200; ++i) {
        job.wrap({contiguous({i + 2, 3}), contiguous({i + 2})});
    }
    EXPECT_EQ(job.listener.models(), DdpListener::kMaxModels);
}

TEST(DdpListener, WhatOnlyLooksAlikeIsLeftAlone) {
    DdpJob job;
    job.other(facts_of(Op::kBroadcast, DType::kInt32, 7));
    job.other(facts_of(Op::kBroadcast, DType::kInt64, 8));
    job.tensor(facts_of(Op::kAllGather, DType::kInt64, 1), {3, 3, 3, 2});
    job.tensor(facts_of(Op::kBroadcast, DType::kInt64, 4), {6, 1, 5, 1});
    EXPECT_EQ(job.listener.models(), 0u);
    job.tensor(facts_of(Op::kAllGather, DType::kInt64, 1), {-1, -1, -1, -1});
    job.tensor(facts_of(Op::kBroadcast, DType::kInt64, 4), {6, 1, 5, 1});
    EXPECT_EQ(job.listener.models(), 0u);
    job.tensor(facts_of(Op::kAllGather, DType::kInt64, 1), {2, 2, 2, 2});
    job.other(facts_of(Op::kAllReduce, DType::kInt64, 1));
    job.other(facts_of(Op::kBroadcast, DType::kInt64, 4));
    job.tensor(facts_of(Op::kAllGather, DType::kInt64, 1), {2, 2, 2, 2});
    job.other(facts_of(Op::kBroadcast, DType::kInt64, 4, 1));
    job.tensor(facts_of(Op::kAllGather, DType::kInt64, 1), {2, 2, 2, 2});
    job.other(facts_of(Op::kBroadcast, DType::kInt64, 2 * DdpListener::kMaxValues));
    EXPECT_EQ(job.listener.models(), 0u);
    // A tensor of indices whose sizes do not follow at once is forgotten.
    job.wrap(kDdpModel);
    job.tensor(facts_of(Op::kBroadcast, DType::kInt32, 7), {5, 4, 3, 2, 1, 0, 1});
    job.metric(3);
    job.tensor(facts_of(Op::kBroadcast, DType::kInt32, 5), {5, 5, 5, 5, 5});
    job.tensor(facts_of(Op::kBroadcast, DType::kInt32, 1), {6});
    EXPECT_EQ(job.step(kDdpModel, kAll), 0u);
}

// Training with evaluation, accumulation, steps cut short and models wrapped again: never a wrong
// bucket, and after the rebuild every one of an undisturbed step once the order is found.
TEST(DdpListener, RandomJobs) {
    SCOPED_TRACE("seed " + std::to_string(test_seed()));
    std::mt19937 random(test_seed());
    size_t known = 0, all = 0;
    for (int run = 0; run < 200; ++run) {
        DdpJob job;
        for (int wraps = 0; wraps < 3; ++wraps) {
            Model model = test::draw_model(random, true);
            job.wrap(model);
            const bool unused = random() % 3 == 0;
            Buckets buckets = test::first_buckets(model, unused ? 5000 : ~0ull, 50000);
            for (int i = 0; i < 3; ++i) {
                job.step(model, buckets);
            }
            if (!unused) {
                buckets = test::later_buckets(model, random, 50000);
                job.rebuild(buckets);
            }
            for (int i = 0; i < 30; ++i) {
                if (random() % 10 == 0) {
                    for (uint64_t metrics = random() % 5; metrics > 0; --metrics) {
                        job.other(facts_of(Op::kAllReduce, DType::kFloat64, 2));
                        job.other(facts_of(Op::kAllGather, DType::kFloat32, 100));
                    }
                }
                if (random() % 15 == 0) {
                    for (size_t b = random() % buckets.size(); b > 0; --b) {
                        job.bucket(model, buckets[b - 1]);
                    }
                }
                known += job.step(model, buckets);
                all += buckets.size();
            }
        }
    }
    std::printf("%zu of %zu buckets known\n", known, all);
    EXPECT_GT(known, all / 2);
}

}  // namespace
}  // namespace slimwire
