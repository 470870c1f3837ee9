// Saved states taken apart into atoms: the maps of real plans say of every byte of a store what it
// is, and what is owed is the same by whatever number of ranks it is kept.
#include "collectives/state/atoms.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "collectives/algorithms/algorithm.h"
#include "collectives/dispatch/planner.h"
#include "tests/support/ranks.h"
#include "tests/support/seed.h"

namespace slimwire::test {
namespace {

struct Kept {
    const char* rule;
    const char* op = "allreduce";
    bool nodes = false;
};
constexpr Kept kKept[] = {
    {"codec = \"int4\"\nerror_feedback = \"ef14\"\n"},
    {"codec = \"int4\"\nerror_feedback = \"ema\"\nresidual = \"int8\"\n"},
    {"codec = \"int4\"\nerror_feedback = \"ema\"\nresidual = \"bf16\"\n", "reduce"},
    {"codec = \"int4\"\nerror_feedback = \"ef14\"\nalgorithm = \"gather\"\n"},
    {"codec = \"topk:fraction=0.05\"\nerror_feedback = \"ef14\"\n"},
    {"codec = \"threshold:fraction=0.05,refresh=10\"\nerror_feedback = \"ef14\"\n"},
    {"codec = \"randomk:fraction=0.1\"\nalgorithm = \"summable\"\nerror_feedback = \"ef14\"\n"},
    {"codec = \"powersgd:rank=2,row=50\"\nerror_feedback = \"ef14\"\n"},
    {"codec = \"int4\"\nerror_feedback = \"ef14\"\nalgorithm = \"direct\"\n", "reducescatter"},
    {"codec = \"int4\"\nerror_feedback = \"ema\"\nresidual = \"int8\"\nalgorithm = \"direct\"\n",
     "reducescatter"},
    {"codec = \"int4\"\nerror_feedback = \"ef14\"\nalgorithm = \"hierarchical\"\n", "allreduce",
     true},
    {"codec = \"int4\"\nerror_feedback = \"ef14\"\nalgorithm = \"hierarchical\"\n", "reducescatter",
     true},
};

PlanShape shape_of(int ranks, bool nodes) {
    PlanShape shape;
    shape.ranks = ranks;
    shape.go = true;
    CommShape places;
    places.ranks = ranks;
    places.scope = Scope::kInterNode;
    for (int rank = 0; rank < ranks; ++rank) {
        places.node_of_rank.push_back(nodes ? rank / 2 : rank);
        places.local_rank.push_back(nodes ? rank % 2 : 0);
    }
    places.nodes = places.node_of_rank.back() + 1;
    places.min_ranks_per_node = places.max_ranks_per_node = nodes ? 2 : 1;
    shape.max_ranks_per_node = places.max_ranks_per_node;
    shape.nodes = std::make_shared<const NodeTable>(places);
    return shape;
}

Plan plan_of(const Kept& kept, const PlanShape& shape, RedOp redop, uint64_t elems) {
    Result<Policy> policy =
        parse_policy(std::string("version = 1\n[[rule]]\nname = \"r\"\nmatch = { op = \"") +
                         kept.op + "\" }\n" + kept.rule,
                     "p.toml");
    EXPECT_TRUE(policy.ok()) << policy.status().message();
    Config config;
    config.policy = std::move(policy).value();
    config.active = true;
    config.settings.slice_bytes = 16 << 10;
    const std::string op = kept.op;
    CallSignature signature;
    signature.op = op == "allreduce" ? Op::kAllReduce
                   : op == "reduce"  ? Op::kReduce
                                     : Op::kReduceScatter;
    const auto ranks = static_cast<uint64_t>(shape.ranks);
    signature.count = signature.op == Op::kReduceScatter ? (elems + ranks - 1) / ranks : elems;
    signature.redop = redop;
    Plan plan = make_plan(signature, shape, config);
    EXPECT_TRUE(plan.compressed) << kept.rule << plan.reason;
    return plan;
}

// Each element has its contributors and at most one owner of its sum, no two runs share an element
// of the store, and what is written is read.
TEST(Atoms, MapsSayOfEachResidualWhatItIs) {
    std::mt19937 random(test_seed());
    for (const Kept& kept : kKept) {
        for (const int ranks : {2, 6}) {
            SCOPED_TRACE(kept.rule + std::to_string(ranks) + kept.op);
            if (kept.nodes && ranks < 4) {
                continue;
            }
            const uint64_t elems = 8200 + random() % 2000;
            const PlanShape shape = shape_of(ranks, kept.nodes);
            const Plan plan = plan_of(kept, shape, RedOp::kSum, elems);
            std::vector<uint32_t> given, sums;
            for (int rank = 0; rank < ranks; ++rank) {
                const ResidualMap map = residual_map(plan, shape, rank);
                ASSERT_EQ(map.contributors, static_cast<uint32_t>(kept.nodes ? ranks / 2 : ranks));
                ASSERT_LE(map.state_bytes + map.store_bytes(), plan.residual.bytes);
                const std::vector<std::byte> text = bytes_of(map);
                ASSERT_TRUE(residual_map_of(text, plan.residual.bytes).ok());
                EXPECT_FALSE(
                    residual_map_of(std::span(text).first(text.size() - 1), plan.residual.bytes)
                        .ok());
                EXPECT_FALSE(residual_map_of(text, map.state_bytes + map.store_bytes() - 1).ok());
                given.resize(map.elems);
                sums.resize(map.elems);
                std::vector<bool> stored(map.stored_elems);
                size_t again = 0;
                std::vector<std::byte> tensor(plan.residual.bytes);
                for (const ResidualMap::Run& run : map.runs) {
                    std::vector<float> values, back(static_cast<size_t>(run.count));
                    for (int64_t i = 0; i < run.count; ++i) {
                        ++(run.sums != 0 ? sums : given)[static_cast<size_t>(run.at + i)];
                        again += stored[static_cast<size_t>(run.begin + i)] ? 1 : 0;
                        stored[static_cast<size_t>(run.begin + i)] = true;
                        values.push_back(static_cast<float>(i % 127));
                    }
                    write_run(map, tensor.data(), run, values);
                    ASSERT_TRUE(read_run(
                                    map,
                                    [&](uint64_t offset, std::span<std::byte> out) {
                                        std::copy_n(tensor.begin() + static_cast<int64_t>(offset),
                                                    out.size(), out.begin());
                                        return Status();
                                    },
                                    run, 0, back)
                                    .ok());
                    const float most = map.type == ResidualType::kFloat32 ? 0.0f : 1.1f;
                    ASSERT_TRUE(
                        std::equal(back.begin(), back.end(), values.begin(),
                                   [&](float a, float b) { return std::abs(a - b) <= most; }));
                }
                EXPECT_EQ(again, 0u);
            }
            const auto most = static_cast<uint32_t>(kept.nodes ? ranks / 2 : ranks);
            EXPECT_EQ(given, std::vector<uint32_t>(given.size(), most));
            EXPECT_EQ(sums, std::vector<uint32_t>(sums.size(), sums[0]));
        }
    }
}

}  // namespace
}  // namespace slimwire::test
