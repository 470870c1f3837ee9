// What goes wrong around the emulated NCCL ends in an NCCL error on the other ranks, in bounded
// time. The situations are functions of nccl_faults_program.cpp, which make the checks.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/has.h"
#include "tests/tools/emulator/nccl_jobs.h"

namespace slimwire::test {
namespace {

constexpr int kKilled = 128 + 9;

// Where $TEST_FAULTS_PLUGIN names a net plugin, the situations happen over it.
void use_plugin(Job* job) {
    if (const char* plugin = std::getenv("TEST_FAULTS_PLUGIN"); plugin != nullptr) {
        job->environment["NCCL_NET_PLUGIN"] = plugin;
    }
}

// Runs the test's own name as a situation. `victim` ends with `victim_code`, all others with 0.
void expect_situation(int ranks,
                      int victim = -1,
                      int victim_code = 0,
                      const Environment& environment = {}) {
    const std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    Job job = emulator_job("faults", ranks, {name});
    use_plugin(&job);
    for (const auto& [key, value] : environment) {
        job.environment[key] = value;
    }
    const auto ended = run_ranks(job);
    for (int rank = 0; rank < ranks; ++rank) {
        const Ended& end = ended[static_cast<size_t>(rank)];
        EXPECT_EQ(end.exit_code, rank == victim ? victim_code : 0)
            << "rank " << rank << (end.expired ? " (time was up)" : "") << "\n"
            << end.err;
    }
}

TEST(NcclFaults, killed_in_a_collective) {
    expect_situation(3, 1, kKilled);
}
TEST(NcclFaults, killed_in_the_middle_of_a_transfer) {
    expect_situation(3, 1, kKilled, {{"SLIMWIRE_EMU_LINK", "100mbit"}});
}
TEST(NcclFaults, killed_while_the_others_are_idle) {
    expect_situation(3, 1, kKilled);
}
TEST(NcclFaults, exits_without_destroying) {
    expect_situation(2);
}
TEST(NcclFaults, a_split_sees_the_death_of_a_member) {
    expect_situation(3, 1, kKilled);
}
TEST(NcclFaults, abort_ends_a_waiting_collective) {
    expect_situation(3);
}
TEST(NcclFaults, left_early) {
    expect_situation(2);
}
TEST(NcclFaults, left_before_another_comes) {
    expect_situation(3);
}
TEST(NcclFaults, revoked_one_after_the_other) {
    expect_situation(3);
}
TEST(NcclFaults, different_counts) {
    expect_situation(2);
}
TEST(NcclFaults, the_survivors_shrink) {
    expect_situation(4, 1, kKilled);
}
TEST(NcclFaults, injected) {
    expect_situation(
        2, -1, 0,
        {{"SLIMWIRE_EMU_FAULT", "ncclAllReduce:2,ncclAllReduce:3=6,ncclGroupEnd:2=50ms"}});
}
TEST(NcclFaults, dies_during_initialisation) {
    expect_situation(3, 1, kKilled);
}
TEST(NcclFaults, ranks_disagree_about_their_number) {
    expect_situation(2);
}
TEST(NcclFaults, root_is_gone) {
    expect_situation(2);
}
TEST(NcclFaults, stray_connections) {
    expect_situation(3);
}

std::string last_line(int ranks, const std::string& situation, const Job& base) {
    Job job = base;
    job.ranks = ranks;
    job.command.push_back(situation);
    const auto ended = run_ranks(job);
    EXPECT_EQ(unless_all_exit(ended), "");
    return ended[0].out;
}

TEST(NcclFaults, bad_link) {
    Job job = emulator_job("faults", 2);
    job.environment["SLIMWIRE_EMU_LINK"] = "fast";
    const std::string line = last_line(2, "bad_link", job);
    EXPECT_HAS(line, "SLIMWIRE_EMU_LINK='fast'");
    EXPECT_HAS(line, "100mbit,50us");
}

}  // namespace
}  // namespace slimwire::test
