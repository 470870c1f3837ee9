// Hierarchical reductions: who owns what, what it sends, and when a plan takes it.
#include "collectives/algorithms/hierarchical.h"
#include "collectives/algorithms/hierarchical_scatter.h"

#include <gtest/gtest.h>

#include "collectives/algorithms/algorithm.h"
#include "collectives/dispatch/planner.h"
#include "tests/collectives/plan/plans.h"

namespace slimwire {
namespace {

// Ranks of the nodes by their hosts, one a rank.
std::shared_ptr<const NodeTable> table_of(const std::vector<uint64_t>& hosts) {
    std::vector<RankIdentity> places;
    for (const uint64_t host : hosts) {
        places.push_back({host, 0, -1});
    }
    const Result<CommShape> shape = make_comm_shape(places);
    EXPECT_TRUE(shape.ok());
    return std::make_shared<const NodeTable>(shape.value());
}

PlanShape nodes_shape_of(const std::vector<uint64_t>& hosts) {
    PlanShape shape;
    shape.ranks = static_cast<int>(hosts.size());
    shape.go = true;
    shape.nodes = table_of(hosts);
    shape.max_ranks_per_node = shape.nodes->most();
    shape.scope = shape.nodes->nodes() > 1 ? Scope::kInterNode : Scope::kIntraNode;
    return shape;
}

Config reducing_config(const std::string& action) {
    Result<Policy> policy = parse_policy(
        "version = 1\n[[rule]]\nname = \"r\"\nmatch = { op = [\"allreduce\", \"reduce\", "
        "\"reducescatter\"] }\n" +
            action,
        "p.toml");
    EXPECT_TRUE(policy.ok()) << policy.status().message();
    Config config;
    config.settings.slice_bytes = 0;
    config.policy = std::move(policy).value();
    return config;
}

const std::vector<uint64_t> kTwoOfFour = {1, 1, 1, 1, 2, 2, 2, 2};
constexpr Op kReductions[] = {Op::kAllReduce, Op::kReduce, Op::kReduceScatter};

TEST(NodeTable, EveryColumnHasOneOwnerOnEveryNode) {
    for (const std::vector<uint64_t>& hosts :
         {kTwoOfFour, {7, 8, 7, 9, 7, 8}, {5, 6}, {1, 1, 1, 1, 1, 2}, {3, 3, 4, 4, 4}}) {
        const std::shared_ptr<const NodeTable> nodes = table_of(hosts);
        std::vector<int> owned(hosts.size());
        for (int node = 0; node < nodes->nodes(); ++node) {
            for (int column = 0; column < nodes->most(); ++column) {
                const int owner = nodes->owner(node, column);
                EXPECT_EQ(nodes->node_of(owner), node);
                EXPECT_EQ(column % nodes->size_of(node), nodes->local_of(owner));
                ++owned[static_cast<size_t>(owner)];
            }
        }
        for (size_t rank = 0; rank < hosts.size(); ++rank) {
            EXPECT_EQ(nodes->owned_by(static_cast<int>(rank)), owned[rank]) << rank;
            EXPECT_GT(owned[rank], 0);
        }
    }
}

// The worked example of collectives/FORMAT.md.
TEST(Hierarchical, WorkedExampleOfTheFormat) {
    const Result<CodecSpec> int4 = parse_codec("int4:block=64");
    ASSERT_TRUE(int4.ok());
    const PlanShape even = nodes_shape_of({1, 1, 2, 2});
    const Layout layout = hierarchical_layout({{0, 1000, int4.value()}}, DType::kFloat32,
                                              *even.nodes, std::nullopt, 0);
    ASSERT_EQ(layout.slices.size(), 1u);
    EXPECT_EQ(layout.slices[0].pieces[0].chunk_elems, 256);
    EXPECT_EQ(layout.slices[0].slot_bytes, 144);
    const CallSignature signature = sum_of(1000);
    EXPECT_EQ(hierarchical_wire_bytes({layout, signature, even}, 0), 2528u);
    EXPECT_EQ(hierarchical_wire_bytes({layout, signature, even}, 1), 2624u);
    EXPECT_EQ(hierarchical_wire_bytes({layout, signature, even}, 2), 2528u);
    const ExchangeSizes sizes = hierarchical_sizes({layout, signature, even});
    EXPECT_EQ(sizes.wire_bytes, 2624u);
    EXPECT_EQ(sizes.node_wire_bytes, 576u);
    EXPECT_EQ(sizes.residual_elems, 3u * 256);

    const PlanShape uneven = nodes_shape_of({1, 1, 2});
    EXPECT_EQ(hierarchical_wire_bytes({layout, signature, uneven}, 0), 2528u);
    EXPECT_EQ(hierarchical_wire_bytes({layout, signature, uneven}, 2), 576u);
    EXPECT_EQ(hierarchical_sizes({layout, signature, uneven}).residual_elems, 2u * 3 * 256);
}

// The worked examples of collectives/FORMAT.md for a reduce to rank 1 and for a reduce-scatter.
TEST(Hierarchical, WorkedExamplesOfReduceAndReduceScatter) {
    const Result<CodecSpec> int4 = parse_codec("int4:block=64");
    ASSERT_TRUE(int4.ok());
    const PlanShape even = nodes_shape_of({1, 1, 2, 2});
    CallSignature reduce = sum_of(1000, DType::kFloat32, RedOp::kSum, Op::kReduce);
    reduce.root_or_peer = 1;
    const Layout columns = hierarchical_layout({{0, 1000, int4.value()}}, DType::kFloat32,
                                               *even.nodes, std::nullopt, 0);
    EXPECT_EQ(hierarchical_wire_bytes({columns, reduce, even}, 0), 1952u + 144 + 288);
    EXPECT_EQ(hierarchical_wire_bytes({columns, reduce, even}, 1), 2048u + 144);
    EXPECT_EQ(hierarchical_wire_bytes({columns, reduce, even}, 2), 1952u + 288);
    EXPECT_EQ(hierarchical_wire_bytes({columns, reduce, even}, 3), 2048u + 288);
    EXPECT_EQ(hierarchical_sizes({columns, reduce, even}).node_wire_bytes, 576u);

    const CallSignature scatter = sum_of(1000, DType::kFloat32, RedOp::kSum, Op::kReduceScatter);
    const Layout block =
        hierarchical_scatter_layout({{0, 1000, int4.value()}}, DType::kFloat32, std::nullopt, 0);
    ASSERT_EQ(block.total_slot_bytes, 544);
    for (int rank = 0; rank < 4; ++rank) {
        EXPECT_EQ(hierarchical_scatter_wire_bytes({block, scatter, even}, rank), 8544u);
    }
    const ExchangeSizes sizes = hierarchical_scatter_sizes({block, scatter, even});
    EXPECT_EQ(sizes.node_wire_bytes, 1088u);
    EXPECT_EQ(sizes.residual_elems, 2u * 1000);
    // Rank 2 owns both columns, of which only the first has a block on its own node.
    const PlanShape uneven = nodes_shape_of({1, 1, 2});
    EXPECT_EQ(hierarchical_scatter_wire_bytes({block, scatter, uneven}, 0), 4000u + 544);
    EXPECT_EQ(hierarchical_scatter_wire_bytes({block, scatter, uneven}, 1), 8000u);
    EXPECT_EQ(hierarchical_scatter_wire_bytes({block, scatter, uneven}, 2), 2u * 544);
    EXPECT_EQ(hierarchical_scatter_sizes({block, scatter, uneven}).node_wire_bytes, 1088u);
}

// A scatter sends to all ranks of other nodes than its root's.
TEST(Direct, AScatterLeavesTheNodeOfItsRoot) {
    const PlanShape uneven = nodes_shape_of({1, 1, 1, 2});
    CallSignature scatter = sum_of(1000, DType::kFloat32, RedOp::kNone, Op::kScatter);
    const AlgorithmDescriptor& direct = descriptor_of(Algorithm::kDirect);
    Action action;
    action.codec = parse_codec("int4:block=64").value();
    for (const auto& [root, blocks] : {std::pair(0, 1), std::pair(3, 3)}) {
        scatter.root_or_peer = root;
        const Layout layout = direct.layout({scatter, uneven, action}, 0);
        EXPECT_EQ(direct.sizes({layout, scatter, uneven}).node_wire_bytes, blocks * 544u) << root;
    }
}

TEST(Hierarchical, OutOfANodeGoesNoMoreThanNativeByTheRatio) {
    for (const Op op : kReductions) {
        for (const char* codec : {"int8:block=64", "int4:block=64", "int2:block=32", "bf16"}) {
            SCOPED_TRACE(std::string(op_name(op)) + " " + codec);
            const Plan plan = make_plan(
                sum_of(1 << 22, DType::kFloat32, RedOp::kSum, op), nodes_shape_of(kTwoOfFour),
                reducing_config("codec = \"" + std::string(codec) + "\"\n"));
            ASSERT_TRUE(plan.compressed) << plan.reason;
            EXPECT_EQ(plan.algorithm, Algorithm::kHierarchical);
            const ExchangeSizes sizes =
                descriptor_of(plan.algorithm)
                    .sizes({plan.layout, plan.signature, nodes_shape_of(kTwoOfFour)});
            const double ratio = 4.0 * (1 << 22) /
                                 static_cast<double>(parse_codec(codec).value().encoded_bytes(
                                     DType::kFloat32, int64_t{1} << 22));
            // A native ring leaves a node with 2 (N - 1) / N, 1 and N - 1 times the buffer.
            const uint64_t native = native_wire_bytes(plan.signature, 8);
            EXPECT_LE(static_cast<double>(sizes.node_wire_bytes),
                      1.05 * static_cast<double>(native) / ratio);
            EXPECT_LT(sizes.wire_bytes, native);
        }
    }
}

// Whatever the operation, codec, type and count: on nodes of several ranks no rank and no node
// sends more.
TEST(Hierarchical, AutoNeverSendsMoreThanNative) {
    const std::vector<std::vector<uint64_t>> jobs = {
        kTwoOfFour, {1, 1, 2, 2}, {1, 1, 1, 2}, {1, 2, 2, 2, 2, 2, 3}};
    for (const Op op : kReductions) {
        int taken = 0;
        for (const std::vector<uint64_t>& hosts : jobs) {
            const PlanShape shape = nodes_shape_of(hosts);
            for (const char* codec : {"int8", "int4", "bf16", "topk:fraction=0.01"}) {
                const Config config = reducing_config("codec = \"" + std::string(codec) + "\"\n");
                for (uint64_t count = 2; count < 300000; count = count * 3 + 1) {
                    SCOPED_TRACE(std::string(op_name(op)) + " " + codec + " " +
                                 std::to_string(count));
                    const Plan plan =
                        make_plan(sum_of(count, DType::kFloat32, RedOp::kSum, op), shape, config);
                    if (!plan.compressed) {
                        EXPECT_FALSE(plan.reason.empty());
                        continue;
                    }
                    ++taken;
                    const uint64_t native = native_wire_bytes(plan.signature, shape.ranks);
                    const ExchangeSizes sizes =
                        descriptor_of(plan.algorithm).sizes({plan.layout, plan.signature, shape});
                    EXPECT_LT(sizes.node_wire_bytes, native);
                    for (int rank = 0; rank < shape.ranks; ++rank) {
                        EXPECT_LT(wire_bytes_of(plan, shape, rank), native);
                    }
                }
            }
        }
        EXPECT_GT(taken, 50);
    }
}

TEST(Hierarchical, SaysWhyItIsNotTaken) {
    struct Case {
        const char* action;
        CallSignature signature;
        std::vector<uint64_t> hosts;
        const char* reason;
    };
    const CallSignature gather = sum_of(1 << 20, DType::kFloat32, RedOp::kNone, Op::kAllGather);
    const CallSignature premul = sum_of(1 << 20, DType::kFloat32, RedOp::kPreMulSum);
    const char* plain = "codec = \"int4\"\nalgorithm = \"hierarchical\"\n";
    for (const Case& of :
         {Case{plain, sum_of(1 << 20), {1, 1, 1}, "all ranks are on one node"},
          Case{"codec = \"int4\"\nintra_codec = \"bf16\"\n", sum_of(1 << 20, DType::kFloat64),
               kTwoOfFour, "int4 does not take f64"},
          Case{"codec = \"topk\"\nintra_codec = \"bf16\"\nalgorithm = \"hierarchical\"\n",
               sum_of(1 << 20, DType::kBfloat16), kTwoOfFour, "bf16 does not take bf16"},
          Case{"codec = \"topk\"\nintra_codec = \"randomk\"\nalgorithm = \"hierarchical\"\n",
               sum_of(1 << 20),
               {1, 1, 1},
               "all ranks are on one node"}}) {
        const Plan plan =
            make_plan(of.signature, nodes_shape_of(of.hosts), reducing_config(of.action));
        EXPECT_FALSE(plan.compressed);
        EXPECT_NE(plan.reason.find(of.reason), std::string::npos) << plan.reason;
    }
    Config everything = reducing_config(plain);
    everything.policy.rules[0].match.ops = kAllOps;
    EXPECT_NE(make_plan(gather, nodes_shape_of(kTwoOfFour), everything)
                  .reason.find("hierarchical has no form of allgather"),
              std::string::npos);
    for (const char* intra : {"native", "bf16"}) {
        EXPECT_EQ(make_plan(premul, nodes_shape_of(kTwoOfFour),
                            reducing_config("codec = \"int4\"\nintra_codec = \"" +
                                            std::string(intra) + "\"\n"))
                      .algorithm,
                  Algorithm::kHierarchical);
    }
}

}  // namespace
}  // namespace slimwire
