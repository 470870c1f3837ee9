// What is heard from the calls of a DeepSpeed engine, played as engine.py makes them: of each
// all-reduce the right parameters or none.
#include "collectives/framework/deepspeed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "tests/support/seed.h"

namespace slimwire {
namespace {

using Counts = std::vector<uint64_t>;
using Parts = std::vector<std::vector<uint32_t>>;  // parameters of each all-reduce, as they lie

CallFacts facts_of(Op op, uint64_t count, DType dtype = DType::kFloat16, int root = 0) {
    CallFacts facts;
    facts.op = op;
    facts.dtype = dtype;
    facts.redop = reduces(op) ? RedOp::kSum : RedOp::kNone;
    facts.count = count;
    facts.root_or_peer = root;
    return facts;
}

// As allreduce_no_retain cuts gradients in this order.
Parts parts_of(const Counts& counts, const std::vector<uint32_t>& order, uint64_t least) {
    Parts parts(1);
    uint64_t elems = 0;
    for (const uint32_t parameter : order) {
        parts.back().push_back(parameter);
        elems += counts[parameter];
        if (elems > least) {
            parts.emplace_back();
            elems = 0;
        }
    }
    if (parts.back().empty()) {
        parts.pop_back();
    }
    return parts;
}
std::vector<uint32_t> registered(const Counts& counts) {
    std::vector<uint32_t> order(counts.size());
    for (uint32_t i = 0; i < order.size(); ++i) {
        order[i] = i;
    }
    return order;
}
std::vector<uint32_t> as_ready(const Counts& counts) {
    std::vector<uint32_t> order = registered(counts);
    std::reverse(order.begin(), order.end());
    return order;
}

// Whether no two parts are of one size: a part too many of the size expected looks like it.
bool apart(const Counts& counts, const Parts& parts) {
    std::set<uint64_t> sizes;
    for (const auto& part : parts) {
        uint64_t size = 0;
        for (const uint32_t parameter : part) {
            size += counts[parameter];
        }
        sizes.insert(size);
    }
    return sizes.size() == parts.size();
}

struct Job {
    DeepSpeedListener listener;
    size_t known = 0, unknown = 0, wrong = 0;

    void other(const CallFacts& facts) { listener.hear(facts); }
    void start(const Counts& counts, int root = 0) {
        for (const uint64_t count : counts) {
            other(facts_of(Op::kBroadcast, count, DType::kFloat16, root));
        }
        other(facts_of(Op::kAllReduce, 1, DType::kFloat32));  // a barrier
    }
    void part(const Counts& counts, const std::vector<uint32_t>& parameters) {
        uint64_t count = 0;
        for (const uint32_t parameter : parameters) {
            count += counts[parameter];
        }
        other(facts_of(Op::kAllReduce, count));
        const BucketPlace place = listener.next(count);
        if (place.model == nullptr) {
            ++unknown;
            return;
        }
        ++known;
        uint64_t offset = 0;
        bool right = place.bucket->ranges.size() == parameters.size() &&
                     place.bucket->count == count &&
                     place.model_number == DeepSpeedListener::kModelNumber;
        for (size_t i = 0; right && i < parameters.size(); ++i) {
            right = place.bucket->ranges[i] ==
                    Bucket::Range{parameters[i], offset, counts[parameters[i]]};
            offset += counts[parameters[i]];
        }
        wrong += right ? 0 : 1;
    }
    void step(const Counts& counts, const Parts& parts) {
        for (const auto& parameters : parts) {
            part(counts, parameters);
        }
        other(facts_of(Op::kAllReduce, 1, DType::kFloat32));  // the norm
    }
    void steps(const Counts& counts, const Parts& parts, int number) {
        for (int i = 0; i < number; ++i) {
            step(counts, parts);
        }
    }
};

const Counts kModel = {700, 30, 5000, 10, 20000, 40, 900, 1};

TEST(DeepSpeedListener, KnowsThePartsFromTheThirdStepOn) {
    const Parts parts = parts_of(kModel, registered(kModel), 4000);
    ASSERT_EQ(parts.size(), 3u);
    Job job;
    job.start(kModel);
    ASSERT_NE(job.listener.counts(), nullptr);
    EXPECT_EQ(*job.listener.counts(), kModel);
    job.steps(kModel, parts, 2);
    EXPECT_EQ(job.known, 0u);
    job.steps(kModel, parts, 10);
    EXPECT_EQ(job.known, 30u);
    EXPECT_EQ(job.wrong, 0u);
    // Parameters broadcast again, as after a checkpoint was loaded.
    job.start(kModel);
    job.steps(kModel, parts, 2);
    EXPECT_EQ(job.known, 36u);
}

TEST(DeepSpeedListener, OtherSumsInBetweenAreNone) {
    const Parts parts = parts_of(kModel, registered(kModel), 4000);
    Job job;
    job.start(kModel);
    for (int i = 0; i < 6; ++i) {
        job.part({3}, {0});
        job.step(kModel, parts);
        job.part({77777}, {0});
    }
    EXPECT_EQ(job.known, 4u * parts.size());
    EXPECT_EQ(job.wrong, 0u);
}

TEST(DeepSpeedListener, SaysNothingWhereTheOrderIsOpen) {
    const auto known = [](const Counts& started, const Counts& counts, const Parts& parts) {
        Job job;
        job.start(started);
        job.steps(counts, parts, 8);
        EXPECT_EQ(job.wrong, 0u);
        return job.known;
    };
    EXPECT_EQ(known(kModel, kModel, {registered(kModel)}), 0u) << "all in one part";
    EXPECT_EQ(known(kModel, kModel, parts_of(kModel, as_ready(kModel), 4000)), 0u)
        << "buckets of ZeRO";
    EXPECT_EQ(known(kModel, kModel, parts_of(kModel, registered(kModel), 9000)), 0u)
        << "of two parts either may be the first";
    EXPECT_EQ(known({10, 10, 10, 10}, {10, 10, 10, 10}, {{0, 1}, {2, 3}}), 0u) << "the same turned";
    // The third is frozen.
    const std::vector<uint32_t> order = {0, 1, 3, 4, 5, 6, 7};
    EXPECT_EQ(known(kModel, kModel, parts_of(kModel, order, 4000)), 0u);
    EXPECT_EQ(known({500}, {500}, {{0}}), 0u) << "one broadcast is no engine";
}

TEST(DeepSpeedListener, SaysNothingWhereItIsNotAlone) {
    const Parts parts = parts_of(kModel, registered(kModel), 4000);
    Job two;
    two.start(kModel);
    two.start({5, 6, 7});
    two.steps(kModel, parts, 8);
    EXPECT_EQ(two.known, 0u);
    Job later;
    later.start(kModel);
    later.steps(kModel, parts, 8);
    EXPECT_GT(later.known, 0u);
    later.start({5, 6, 7});
    later.known = 0;
    later.steps(kModel, parts, 8);
    EXPECT_EQ(later.known, 0u);
    Job ddp;
    ddp.other(facts_of(Op::kAllGather, 1, DType::kInt64));
    ddp.other(facts_of(Op::kBroadcast, 32, DType::kInt64));
    ddp.start(kModel);
    ddp.steps(kModel, parts, 8);
    EXPECT_EQ(ddp.known, 0u);
    Job training;  // what is broadcast after a sum is no start
    training.part({9}, {0});
    training.start(kModel);
    training.steps(kModel, parts, 8);
    EXPECT_EQ(training.known, 0u);
    Job roots;
    roots.start({700, 30}, 0);
    roots.start({700, 31}, 1);
    roots.steps({700, 30}, {{0}, {1}}, 8);
    EXPECT_EQ(roots.known, 0u);
}

// Models and limits at random, the order of registration or of readiness, steps cut short: the
// right parameters or none.
TEST(DeepSpeedListener, RandomEnginesAreNeverWrong) {
    const uint32_t seed = test_seed();
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    size_t known = 0, upward = 0;
    for (int round = 0; round < 300; ++round) {
        Counts counts;
        for (size_t i = 2 + random() % 12; i > 0; --i) {
            counts.push_back(1 + (random() % 2 == 0 ? random() % 6 : random() % 3000));
        }
        const bool ready = random() % 3 == 0;
        const Parts parts =
            parts_of(counts, ready ? as_ready(counts) : registered(counts), random() % 3000);
        Job job;
        job.start(counts);
        job.steps(counts, parts, 4);
        const size_t cut = random() % parts.size();
        for (size_t i = 0; i < cut && apart(counts, parts); ++i) {
            job.part(counts, parts[i]);
        }
        job.steps(counts, parts, 4);
        // Where parts of both orders have the same sizes, nothing can be known.
        EXPECT_EQ(job.wrong, 0u) << "round " << round;
        EXPECT_TRUE(!ready || job.known == 0u) << "round " << round;
        known += job.known;
        upward += ready || parts.size() < 3 || !apart(counts, parts) ? 0 : 6 * parts.size();
    }
    EXPECT_GT(upward, 1000u);
    EXPECT_GT(10 * known, 8 * upward);
}

}  // namespace
}  // namespace slimwire
