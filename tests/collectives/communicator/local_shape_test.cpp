// Where ranks sit, as far as one process can tell from its launcher.
#include "collectives/communicator/local_shape.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "collectives/call/launcher.h"

namespace slimwire {
namespace {

std::map<std::string, std::string>& environment() {
    static std::map<std::string, std::string> variables;
    return variables;
}

const char* variable(const char* name) {
    const auto found = environment().find(name);
    return found == environment().end() ? nullptr : found->second.c_str();
}

LocalShape local_shape_of(int ranks,
                          int rank,
                          std::map<std::string, std::string> variables,
                          const DeviceApi* api = nullptr) {
    environment() = std::move(variables);
    return local_shape(api, ranks, rank, variable);
}

TEST(LocalShape, without_a_launcher_each_rank_is_taken_for_a_node) {
    const LocalShape local = local_shape_of(4, 1, {});
    EXPECT_FALSE(local.known);
    EXPECT_EQ(local.shape.ranks, 4);
    EXPECT_EQ(local.shape.nodes, 4);
    EXPECT_EQ(local.shape.max_ranks_per_node, 1);
    EXPECT_EQ(local.shape.scope, Scope::kInterNode);
}

TEST(LocalShape, all_ranks_of_a_job_lie_node_after_node) {
    std::map<std::string, std::string> batch;  // as sbatch leaves it to what mpirun starts in it
    for (const auto& [size, local_size, rank] :
         {std::tuple{"WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK"},
          std::tuple{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_RANK"},
          std::tuple{"PMI_SIZE", "MPI_LOCALNRANKS", "PMI_RANK"},
          std::tuple{"SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_PROCID"},
          std::tuple{"PMI_SIZE", "MPI_LOCALNRANKS", "PMIX_RANK"}}) {
        std::map<std::string, std::string> variables = batch;
        variables.insert({{size, "8"}, {local_size, "4"}, {rank, "5"}});
        const LocalShape local = local_shape_of(8, 5, variables);
        EXPECT_TRUE(local.known) << size;
        EXPECT_EQ(local.shape.nodes, 2);
        EXPECT_EQ(local.shape.node_of_rank, (std::vector<int>{0, 0, 0, 0, 1, 1, 1, 1}));
        EXPECT_EQ(local.shape.scope, Scope::kInterNode);
        if (size == std::string("SLURM_NTASKS")) {
            batch = {{size, "1"}, {local_size, "1"}, {rank, "0"}};
        }
    }
}

TEST(LocalShape, some_ranks_of_a_job_are_known_on_one_node_or_one_a_node_only) {
    struct Case {
        int ranks, rank;
        const char* on_node;  // of the launcher's eight ranks, of which this is number 5
        bool known;
        int nodes;
    };
    for (const Case& one : {Case{4, 1, "4", false, 4},
                            {8, 1, "4", false, 8},  // in another order than the launcher's
                            {4, 1, "8", true, 1},
                            {4, 1, "1", true, 4},
                            {8, 5, "0", false, 8}}) {
        const LocalShape local =
            local_shape_of(one.ranks, one.rank,
                           {{"WORLD_SIZE", "8"}, {"LOCAL_WORLD_SIZE", one.on_node}, {"RANK", "5"}});
        EXPECT_EQ(local.known, one.known) << one.on_node;
        EXPECT_EQ(local.shape.nodes, one.nodes) << one.on_node;
        EXPECT_EQ(local.shape.scope, one.nodes > 1 ? Scope::kInterNode : Scope::kIntraNode);
    }
}

TEST(LocalShape, the_emulator_has_nodes_of_its_own) {
    DeviceApi api;
    api.emulator = reinterpret_cast<const EmulatorApi*>(&api);  // only looked at
    const std::map<std::string, std::string> job = {
        {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "4"}, {"RANK", "2"}};
    EXPECT_EQ(local_shape_of(4, 2, job, &api).shape.nodes, 4);
    auto nodes = job;
    nodes["SLIMWIRE_EMU_NODES"] = "2x2";
    const LocalShape local = local_shape_of(4, 2, nodes, &api);
    EXPECT_TRUE(local.known);
    EXPECT_EQ(local.shape.node_of_rank, (std::vector<int>{0, 0, 1, 1}));
    nodes["SLIMWIRE_EMU_NODES"] = "2y2";
    EXPECT_FALSE(local_shape_of(4, 2, nodes, &api).known);
}

// Of parallel dimensions each makes groups; of more ranks those of the dimension that grew have
// more ranks, and are as many.
TEST(RankGroups, are_those_of_a_grid_on_any_number_of_ranks) {
    const auto check = [](std::vector<int> members, int ranks, int then,
                          const std::vector<int>& wanted) {
        const RankGroup group = group_of(members, ranks);
        EXPECT_EQ(group.number, 1u);
        std::vector<int> now;
        for (int rank = 0; group.fits(then) && rank < then; ++rank) {
            if (group.has(rank, then)) {
                now.push_back(rank);
            }
        }
        EXPECT_EQ(now, wanted);
        if (wanted.size() > 1) {
            EXPECT_EQ(group_of(now, then).order(), group.order());
        }
    };
    check({0, 1, 2, 3}, 4, 3, {0, 1, 2});
    check({1, 3}, 4, 8, {1, 3, 5, 7});      // data parallel beside 2 of a tensor
    check({4, 5, 6, 7}, 8, 4, {2, 3});      // shards of the second copy
    check({5, 7}, 8, 16, {9, 11, 13, 15});  // of the second stage of a pipeline
    check({5, 7}, 8, 4, {3});
    check({1, 3}, 4, 3, {});
    check({6, 7}, 8, 2, {});
    for (const std::vector<int>& none : std::vector<std::vector<int>>{
             {}, {1, 0}, {0, 1, 3}, {1, 2}, {0, 0}, {-1, 0}, {0, 3}, {0, 1, 2}}) {
        EXPECT_EQ(group_of(none, 4).number, 0u);
    }
    EXPECT_TRUE(group_of(std::vector<int>{0, 1, 2, 3}, 4).of_all());
    EXPECT_TRUE(group_of(std::vector<int>{0, 1}, 4).of_some());
    EXPECT_FALSE(RankGroup().of_all() || RankGroup().of_some());
}

}  // namespace
}  // namespace slimwire
