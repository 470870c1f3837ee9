// What the collectives of a communicator say it is for: the usual kinds of parallelism, and nothing
// where several could be meant.
#include "collectives/traffic_role.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "collectives/places.h"
#include "tests/support/seed.h"

namespace slimwire {
namespace {

using Calls = std::vector<CallFacts>;

CallFacts call(Op op, uint64_t count, DType dtype = DType::kFloat32, RedOp redop = RedOp::kSum) {
    CallFacts facts;
    facts.op = op;
    facts.dtype = dtype;
    facts.redop = reduces(op) ? redop : RedOp::kNone;
    facts.count = count;
    return facts;
}

Calls operator+(Calls a, const Calls& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}
Calls times(const Calls& calls, int count) {
    Calls all;
    for (int i = 0; i < count; ++i) {
        all = all + calls;
    }
    return all;
}

const Calls kDdpStart = {call(Op::kAllGather, 1, DType::kInt64),
                         call(Op::kBroadcast, 60, DType::kInt64), call(Op::kBroadcast, 90000)};
const Calls kDdp = {call(Op::kBroadcast, 60), call(Op::kAllReduce, 5050),
                    call(Op::kAllReduce, 16790)};
const Calls kEngineStart = {call(Op::kBroadcast, 100), call(Op::kBroadcast, 20000),
                            call(Op::kBroadcast, 100), call(Op::kBroadcast, 20000)};
// Four layers and a root in shards, gathered in both directions.
const Calls kSharded = times({call(Op::kAllGather, 900)}, 1) +
                       times({call(Op::kAllGather, 4096)}, 4) +
                       times({call(Op::kAllGather, 4096), call(Op::kReduceScatter, 4096)}, 4) +
                       Calls{call(Op::kReduceScatter, 900)};
// Layers in parts, with an output whose loss needs the largest value of each row.
const Calls kTensor =
    times({call(Op::kAllReduce, 65536)}, 16) +
    Calls{call(Op::kAllReduce, 128, DType::kFloat32, RedOp::kMax), call(Op::kAllReduce, 128)};
const Calls kExperts = times({call(Op::kAllToAll, 8192)}, 8);
const Calls kSequence = times({call(Op::kAllGather, 4096), call(Op::kReduceScatter, 4096),
                               call(Op::kAllGather, 4096), call(Op::kReduceScatter, 4096)},
                              4);

std::string said(const Calls& step, const RoleStart& start = {}) {
    std::string of_all;
    for (size_t turn = 0; turn < step.size(); ++turn) {
        Calls turned = step;
        std::rotate(turned.begin(), turned.begin() + static_cast<long>(turn), turned.end());
        const auto found = role_of_step(turned, start);
        const std::string role = found ? role_name(found->role) : "-";
        EXPECT_TRUE(of_all.empty() || of_all == role) << "from call " << turn;
        of_all = role;
    }
    return of_all;
}

TEST(TrafficRole, TheUsualKinds) {
    EXPECT_EQ(said(kDdp, {true, 1}), "dp");
    EXPECT_EQ(said({call(Op::kAllReduce, 500000)}, {false, 4}), "dp");
    EXPECT_EQ(said(kSharded), "dp");
    EXPECT_EQ(said({call(Op::kAllReduce, 5000), call(Op::kAllReduce, 700),
                    call(Op::kReduceScatter, 4000), call(Op::kAllReduce, 1)}),
              "dp");
    EXPECT_EQ(said(kTensor), "tp");
    EXPECT_EQ(said(kExperts), "ep");
}

TEST(TrafficRole, NothingWhereSeveralCouldBeMeant) {
    EXPECT_EQ(said(kDdp), "-") << "two sums and no start";
    EXPECT_EQ(said(kDdp, {false, 3}), "-");
    EXPECT_EQ(said(kSequence), "-") << "parts of a sequence, or shards of one size";
    EXPECT_EQ(said(times({call(Op::kAllReduce, 65536)}, 16)), "-") << "without the output";
    EXPECT_EQ(said(kTensor, {false, 4}), "-") << "replicas with maxima";
    EXPECT_EQ(said(kTensor + Calls{call(Op::kAllReduce, 5000), call(Op::kAllReduce, 6000)}), "-");
    EXPECT_EQ(said(kExperts + Calls{call(Op::kAllReduce, 5000)}), "-");
    EXPECT_EQ(said({call(Op::kAllReduce, 3), call(Op::kAllReduce, 2), call(Op::kAllReduce, 7)}),
              "-")
        << "measures of a job";
    EXPECT_EQ(said({call(Op::kAllReduce, 5000), call(Op::kAllReduce, 6000),
                    call(Op::kAllReduce, 5000), call(Op::kAllReduce, 7000)}),
              "-");
    EXPECT_EQ(said({call(Op::kAllGather, 5000), call(Op::kBroadcast, 5000)}), "-");
    EXPECT_EQ(
        said({call(Op::kAllReduce, 5000, DType::kInt64), call(Op::kAllReduce, 6000, DType::kInt64),
              call(Op::kAllReduce, 7000, DType::kInt64)}),
        "-");
    EXPECT_FALSE(role_of_step({}, {}).has_value());
}

// As a communicator hears it; the call (from 0) after which it knows, and what.
std::pair<size_t, std::string> heard(const Calls& calls, Training* training, size_t step = 0) {
    CallPlaces places(*training);
    places.look_for_role();
    CommStats stats;
    for (size_t i = 0; i < calls.size(); ++i) {
        if (step > 0 && i % step == 0) {
            training->mark_step(i / step);
        }
        places.next(calls[i], 0, &stats);
        if (places.role() != nullptr) {
            EXPECT_EQ(stats.role, role_name(places.role()->role));
            EXPECT_NE(stats.role_evidence, "");
            return {i, role_name(places.role()->role)};
        }
    }
    EXPECT_EQ(stats.role, "");
    return {calls.size(), "-"};
}

TEST(TrafficRole, IsKnownOnceAStepIs) {
    Training training;
    const auto ddp = heard(kDdpStart + times(kDdp, 400), &training);
    EXPECT_EQ(ddp.second, "dp");
    EXPECT_GE(ddp.first, 512u);
    EXPECT_LE(ddp.first, 700u);
    EXPECT_EQ(heard(times(kDdp, 400), &training).second, "-");
    EXPECT_EQ(
        heard(kEngineStart + times({call(Op::kAllReduce, 40200), call(Op::kAllReduce, 1)}, 400),
              &training)
            .second,
        "dp");
    EXPECT_EQ(heard(Calls{call(Op::kAllReduce, 5000)} + kEngineStart +
                        times({call(Op::kAllReduce, 40200), call(Op::kAllReduce, 1)}, 400),
                    &training)
                  .second,
              "-")
        << "not at the start";
    EXPECT_EQ(heard(times(kTensor, 100), &training).second, "tp");
    // A first step says nothing, a later one does.
    EXPECT_EQ(heard(times(kSequence + Calls{call(Op::kAllReduce, 1)}, 100) + times(kTensor, 100),
                    &training)
                  .second,
              "tp");
}

TEST(TrafficRole, IsKnownAtTheThirdMark) {
    Training training;
    EXPECT_EQ(heard(times(kTensor, 5), &training, kTensor.size()),
              (std::pair<size_t, std::string>{2 * kTensor.size(), "tp"}));
}

// Groups that are dropped, at random, change neither what is said nor when.
TEST(TrafficRole, DroppedGroupsNeverWere) {
    const uint32_t seed = test_seed();
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Calls calls = kDdpStart + times(kDdp, 300);
    Training training;
    const auto expected = heard(calls, &training);
    for (int round = 0; round < 20; ++round) {
        CallPlaces places(training);
        places.look_for_role();
        CommStats stats;
        uint64_t group = 0;
        size_t known = calls.size();
        for (size_t i = 0; i < calls.size() && known == calls.size();) {
            const size_t size = std::min<size_t>(1 + random() % 6, calls.size() - i);
            ++group;
            const bool drop = random() % 4 == 0;
            for (size_t j = 0; j < size; ++j) {
                places.next(drop ? calls[random() % calls.size()] : calls[i + j], group, &stats);
                if (!drop && places.role() != nullptr && known == calls.size()) {
                    known = i + j;
                }
            }
            if (drop) {
                places.drop(group);
                ASSERT_EQ(places.role(), nullptr);
            } else {
                i += size;
            }
        }
        EXPECT_EQ(known, expected.first);
    }
}

}  // namespace
}  // namespace slimwire
