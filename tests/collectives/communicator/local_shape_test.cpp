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

LocalShape shape_of(int ranks,
                    int rank,
                    std::map<std::string, std::string> variables,
                    const DeviceApi* api = nullptr) {
    environment() = std::move(variables);
    return local_shape(api, ranks, rank, variable);
}

TEST(LocalShape, without_a_launcher_each_rank_is_taken_for_a_node) {
    const LocalShape local = shape_of(4, 1, {});
    EXPECT_FALSE(local.known);
    EXPECT_EQ(local.shape.ranks, 4);
    EXPECT_EQ(local.shape.nodes, 4);
    EXPECT_EQ(local.shape.max_ranks_per_node, 1);
    EXPECT_EQ(local.shape.scope, Scope::kInterNode);
}

TEST(LocalShape, all_ranks_of_a_job_lie_node_after_node) {
    for (const auto& [size, local_size, rank] :
         {std::tuple{"WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK"},
          std::tuple{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_RANK"},
          std::tuple{"PMI_SIZE", "MPI_LOCALNRANKS", "PMI_RANK"},
          std::tuple{"SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_PROCID"}}) {
        const LocalShape local = shape_of(8, 5, {{size, "8"}, {local_size, "4"}, {rank, "5"}});
        EXPECT_TRUE(local.known) << size;
        EXPECT_EQ(local.shape.nodes, 2);
        EXPECT_EQ(local.shape.node_of_rank, (std::vector<int>{0, 0, 0, 0, 1, 1, 1, 1}));
        EXPECT_EQ(local.shape.scope, Scope::kInterNode);
    }
}

// As sbatch leaves them to what mpirun starts in it.
TEST(LocalShape, variables_of_slurm_count_where_no_other_launchers_are) {
    const std::map<std::string, std::string> batch = {
        {"SLURM_NTASKS", "1"}, {"SLURM_NTASKS_PER_NODE", "1"}, {"SLURM_PROCID", "0"}};
    for (const auto& [size, local_size, rank] :
         {std::tuple{"PMI_SIZE", "MPI_LOCALNRANKS", "PMI_RANK"},
          std::tuple{"PMI_SIZE", "MPI_LOCALNRANKS", "PMIX_RANK"},
          std::tuple{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
                     "OMPI_COMM_WORLD_RANK"}}) {
        std::map<std::string, std::string> both = batch;
        both.insert({{size, "8"}, {local_size, "4"}, {rank, "5"}});
        const LocalShape local = shape_of(8, 5, both);
        EXPECT_TRUE(local.known) << rank;
        EXPECT_EQ(local.shape.nodes, 2) << rank;
        EXPECT_EQ(launcher_rank(variable), 5) << rank;
    }
    environment() = batch;
    EXPECT_EQ(launcher_rank(variable), 0);
}

TEST(LocalShape, some_ranks_of_a_job_are_known_on_one_node_or_one_a_node_only) {
    const LocalShape some =
        shape_of(4, 1, {{"WORLD_SIZE", "8"}, {"LOCAL_WORLD_SIZE", "4"}, {"RANK", "5"}});
    EXPECT_FALSE(some.known);
    EXPECT_EQ(some.shape.nodes, 4);
    // All of them, in another order than the launcher's.
    EXPECT_FALSE(
        shape_of(8, 1, {{"WORLD_SIZE", "8"}, {"LOCAL_WORLD_SIZE", "4"}, {"RANK", "5"}}).known);
    const LocalShape near =
        shape_of(4, 1, {{"WORLD_SIZE", "8"}, {"LOCAL_WORLD_SIZE", "8"}, {"RANK", "5"}});
    EXPECT_TRUE(near.known);
    EXPECT_EQ(near.shape.nodes, 1);
    EXPECT_EQ(near.shape.scope, Scope::kIntraNode);
    const LocalShape far =
        shape_of(4, 1, {{"WORLD_SIZE", "8"}, {"LOCAL_WORLD_SIZE", "1"}, {"RANK", "5"}});
    EXPECT_TRUE(far.known);
    EXPECT_EQ(far.shape.nodes, 4);
    EXPECT_FALSE(
        shape_of(8, 5, {{"WORLD_SIZE", "8"}, {"LOCAL_WORLD_SIZE", "0"}, {"RANK", "5"}}).known);
}

TEST(LocalShape, the_emulator_has_nodes_of_its_own) {
    DeviceApi api;
    api.emulator = reinterpret_cast<const EmulatorApi*>(&api);  // only looked at
    const std::map<std::string, std::string> job = {
        {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "4"}, {"RANK", "2"}};
    EXPECT_EQ(shape_of(4, 2, job, &api).shape.nodes, 4);
    auto nodes = job;
    nodes["SLIMWIRE_EMU_NODES"] = "2x2";
    const LocalShape local = shape_of(4, 2, nodes, &api);
    EXPECT_TRUE(local.known);
    EXPECT_EQ(local.shape.node_of_rank, (std::vector<int>{0, 0, 1, 1}));
    nodes["SLIMWIRE_EMU_NODES"] = "2y2";
    EXPECT_FALSE(shape_of(4, 2, nodes, &api).known);
}

}  // namespace
}  // namespace slimwire
