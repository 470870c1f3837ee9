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

TEST(CommShape, nodes_are_numbered_as_ranks_first_name_them) {
    const struct {
        std::vector<uint64_t> hosts;
        std::vector<int> node_of_rank, local_rank;
        int nodes, least, most;
    } cases[] = {{{7, 7, 7}, {0, 0, 0}, {0, 1, 2}, 1, 3, 3},
                 {{9}, {0}, {0}, 1, 1, 1},
                 {{500, 3, 500, 3, 500, 44}, {0, 1, 0, 1, 0, 2}, {0, 0, 1, 1, 2, 0}, 3, 1, 3},
                 {{1, 1, 1, 2}, {0, 0, 0, 1}, {0, 1, 2, 0}, 2, 1, 3}};
    for (const auto& each : cases) {
        SCOPED_TRACE(testing::PrintToString(each.hosts));
        const auto made = make_comm_shape(on_hosts(each.hosts));
        ASSERT_TRUE(made.ok());
        const CommShape& shape = made.value();
        EXPECT_EQ(shape.ranks, static_cast<int>(each.hosts.size()));
        EXPECT_EQ(shape.nodes, each.nodes);
        EXPECT_EQ(shape.node_of_rank, each.node_of_rank);
        EXPECT_EQ(shape.local_rank, each.local_rank);
        EXPECT_EQ(shape.min_ranks_per_node, each.least);
        EXPECT_EQ(shape.max_ranks_per_node, each.most);
        EXPECT_EQ(shape.even(), each.least == each.most);
        EXPECT_EQ(shape.scope, each.nodes > 1 ? Scope::kInterNode : Scope::kIntraNode);
    }
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

}  // namespace
}  // namespace slimwire
