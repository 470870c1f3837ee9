// What goes wrong around the emulated NCCL ends in an NCCL error on the other ranks, in bounded
// time. The situations are functions of nccl_faults_program.cpp, which make the checks.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/has.h"
#include "tests/tools/emulator/nccl_jobs.h"

namespace slimwire::test {
namespace {

constexpr int kKilled = 128 + 9;

// A function of the program. `victim` ends with `victim_code`, all others with 0.
struct Situation {
    const char* name;
    int ranks;
    int victim = -1;
    int victim_code = 0;
    Environment environment = {};
};
const Situation kSituations[] = {
    {"killed_in_a_collective", 3, 1, kKilled},
    {"killed_in_the_middle_of_a_transfer", 3, 1, kKilled, {{"SLIMWIRE_EMU_LINK", "100mbit"}}},
    {"killed_while_the_others_are_idle", 3, 1, kKilled},
    {"exits_without_destroying", 2},
    {"a_split_sees_the_death_of_a_member", 3, 1, kKilled},
    {"abort_ends_a_waiting_collective", 3},
    {"left_early", 2},
    {"left_before_another_comes", 3},
    {"revoked_one_after_the_other", 3},
    {"different_counts", 2},
    {"the_survivors_shrink", 4, 1, kKilled},
    {"injected",
     2,
     -1,
     0,
     {{"SLIMWIRE_EMU_FAULT", "ncclAllReduce:2,ncclAllReduce:3=6,ncclGroupEnd:2=50ms"}}},
    {"dies_during_initialisation", 3, 1, kKilled},
    {"ranks_disagree_about_their_number", 2},
    {"root_is_gone", 2},
    {"stray_connections", 3},
};

std::vector<Ended> run_situation(const Situation& situation) {
    Job job = emulator_job("faults", situation.ranks, {situation.name});
    // Where it names a net plugin, the situations happen over it.
    if (const char* plugin = std::getenv("TEST_FAULTS_PLUGIN"); plugin != nullptr) {
        job.environment["NCCL_NET_PLUGIN"] = plugin;
    }
    for (const auto& [key, value] : situation.environment) {
        job.environment[key] = value;
    }
    return run_ranks(job);
}

class NcclFaults : public testing::TestWithParam<Situation> {};

TEST_P(NcclFaults, end_in_an_error_in_bounded_time) {
    const std::vector<Ended> ended = run_situation(GetParam());
    for (size_t rank = 0; rank < ended.size(); ++rank) {
        const bool victim = static_cast<int>(rank) == GetParam().victim;
        EXPECT_EQ(ended[rank].exit_code, victim ? GetParam().victim_code : 0)
            << "rank " << rank << (ended[rank].expired ? " (time was up)" : "") << "\n"
            << ended[rank].err;
    }
}
INSTANTIATE_TEST_SUITE_P(Of, NcclFaults, testing::ValuesIn(kSituations), [](const auto& info) {
    return std::string(info.param.name);
});

TEST(NcclBadLink, is_an_error_that_says_what_would_do) {
    const auto ended = run_situation({"bad_link", 2, -1, 0, {{"SLIMWIRE_EMU_LINK", "fast"}}});
    EXPECT_EQ(unless_all_exit(ended), "");
    EXPECT_HAS(ended[0].out, "SLIMWIRE_EMU_LINK='fast'");
    EXPECT_HAS(ended[0].out, "100mbit,50us");
}

}  // namespace
}  // namespace slimwire::test
