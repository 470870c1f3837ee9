// The shape of a communicator from what its ranks say of themselves.
#include "topology/machine/comm_shape.h"
#include "tests/support/has.h"

#include <gtest/gtest.h>

namespace slimwire {
namespace {

std::vector<RankIdentity> on_hosts(const std::vector<uint64_t>& hosts) {
    std::vector<RankIdentity> identities;
    for (size_t i = 0; i < hosts.size(); ++i) {
        identities.push_back({hosts[i], 0, static_cast<int32_t>(i)});
    }
    return identities;
}

TEST(CommShape, one_node) {
    const auto shape = make_comm_shape(on_hosts({7, 7, 7}));
    ASSERT_TRUE(shape.ok());
    EXPECT_EQ(shape.value().ranks, 3);
    EXPECT_EQ(shape.value().nodes, 1);
    EXPECT_EQ(shape.value().scope, Scope::kIntraNode);
    EXPECT_EQ(shape.value().node_of_rank, (std::vector<int>{0, 0, 0}));
    EXPECT_EQ(shape.value().local_rank, (std::vector<int>{0, 1, 2}));
    EXPECT_TRUE(shape.value().even());
}

TEST(CommShape, a_single_rank_is_one_node) {
    const auto shape = make_comm_shape(on_hosts({9}));
    ASSERT_TRUE(shape.ok());
    EXPECT_EQ(shape.value().nodes, 1);
    EXPECT_EQ(shape.value().max_ranks_per_node, 1);
    EXPECT_EQ(shape.value().scope, Scope::kIntraNode);
}

TEST(CommShape, interleaved_ranks_keep_node_numbers_in_order_of_first_rank) {
    const auto shape = make_comm_shape(on_hosts({500, 3, 500, 3, 500, 44}));
    ASSERT_TRUE(shape.ok());
    EXPECT_EQ(shape.value().nodes, 3);
    EXPECT_EQ(shape.value().node_of_rank, (std::vector<int>{0, 1, 0, 1, 0, 2}));
    EXPECT_EQ(shape.value().local_rank, (std::vector<int>{0, 0, 1, 1, 2, 0}));
    EXPECT_EQ(shape.value().scope, Scope::kInterNode);
}

TEST(CommShape, uneven_nodes) {
    const auto shape = make_comm_shape(on_hosts({1, 1, 1, 2}));
    ASSERT_TRUE(shape.ok());
    EXPECT_EQ(shape.value().min_ranks_per_node, 1);
    EXPECT_EQ(shape.value().max_ranks_per_node, 3);
    EXPECT_FALSE(shape.value().even());
    EXPECT_EQ(shape.value().scope, Scope::kInterNode) << "two nodes are enough";
}

// Nothing but who shares a host may enter: device and launcher rank differ between restarts.
TEST(CommShape, device_and_launcher_rank_do_not_enter) {
    auto identities = on_hosts({1, 2, 1, 2});
    const auto before = make_comm_shape(identities);
    for (RankIdentity& identity : identities) {
        identity.device += 5;
        identity.launcher_rank = 100 - identity.launcher_rank;
        identity.host_id = identity.host_id * 1000 + 1;
    }
    const auto after = make_comm_shape(identities);
    ASSERT_TRUE(before.ok() && after.ok());
    EXPECT_EQ(before.value(), after.value());
}

TEST(CommShape, no_ranks_is_an_error) {
    const auto shape = make_comm_shape({});
    ASSERT_FALSE(shape.ok());
    EXPECT_EQ(shape.status().code(), Code::kInvalidArgument);
    EXPECT_HAS(shape.status().message(), "0 ranks");
}

TEST(CommShape, scope_names_are_the_policy_spelling) {
    EXPECT_STREQ(scope_name(Scope::kIntraNode), "intra_node");
    EXPECT_STREQ(scope_name(Scope::kInterNode), "inter_node");
}

}  // namespace
}  // namespace slimwire
