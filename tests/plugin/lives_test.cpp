// Communicators' lives in whole jobs: ranks of several processes that poll late, give up, differ or
// die while communicators are made, split and shrunk. The situations are functions of
// programs/lives.cpp, which make the checks; nobody may hang.
#include <gtest/gtest.h>

#include "tests/support/job.h"

namespace slimwire::test {
namespace {

constexpr int kKilled = 128 + 9;

// A job of the situation that has the test's own name.
Job lives_job(int ranks, const std::string& reports = {}) {
    const std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    Job job = slimwire_job({SLIMWIRE_TEST_LIVES, name}, ranks, reports);
    job.environment["SLIMWIRE_CODEC"] = "int8:block=64";
    job.environment["SLIMWIRE_MIN_BYTES"] = "4KiB";
    // Longer than anything may take here: what ends sooner did not end by this limit.
    job.environment["SLIMWIRE_AGREE_TIMEOUT"] = "30s";
    job.limit_s = 50;
    return job;
}

// All ranks end with 0 but the last one when it is the victim.
std::vector<Ended> expect_ends(const Job& job, bool has_victim = false) {
    std::vector<Ended> ended = run_ranks(job);
    for (int rank = 0; rank < job.ranks; ++rank) {
        const Ended& end = ended[static_cast<size_t>(rank)];
        EXPECT_EQ(end.exit_code, has_victim && rank == job.ranks - 1 ? kKilled : 0)
            << "rank " << rank << (end.expired ? " (time was up)" : "") << "\n"
            << end.err;
    }
    return ended;
}

TEST(Lives, non_blocking_polled_late) {
    const TemporaryFolder reports;
    expect_ends(lives_job(2, reports.path()));
    EXPECT_EQ(sum_keys(read_reports(reports.path()), "calls", compressed), 2u * 2 * 3);
}

TEST(Lives, parts_of_parts) {
    const TemporaryFolder reports;
    expect_ends(lives_job(4, reports.path()));
    // World and half on four ranks, the rest on three; blocking and not.
    EXPECT_EQ(sum_keys(read_reports(reports.path()), "calls", compressed), 2u * (4 + 4 + 3) * 3);
}

TEST(Lives, scalable) {
    expect_ends(lives_job(3));
}

TEST(Lives, non_blocking_with_a_stranger) {
    Job job = lives_job(3);
    job.environment["SLIMWIRE_AGREE_TIMEOUT"] = "800ms";
    job.without_preload = {1};
    expect_ends(job);
}

TEST(Lives, non_blocking_with_different_policies) {
    Job job = lives_job(3);
    job.of_rank[1]["SLIMWIRE_CODEC"] = "int4:block=64";
    const auto ended = expect_ends(job);
    EXPECT_NE(ended[0].out.find("different policies"), std::string::npos) << ended[0].out;
    EXPECT_EQ(ended[1].out, ended[0].out);
    EXPECT_EQ(ended[2].out, ended[0].out);
}

TEST(Lives, abort_during_agreement) {
    Job job = lives_job(3);
    job.without_preload = {2};
    expect_ends(job);
}

TEST(Lives, killed_during_agreement) {
    Job job = lives_job(3);
    job.without_preload = {2};
    expect_ends(job, true);
}

TEST(Lives, killed_during_agreement_non_blocking) {
    Job job = lives_job(3);
    job.without_preload = {2};
    expect_ends(job, true);
}

TEST(Lives, killed_in_the_private_split) {
    Job job = lives_job(3);
    job.of_rank[2]["SLIMWIRE_EMU_FAULT"] = "ncclCommSplit:1=40s";
    expect_ends(job, true);
}

TEST(Lives, killed_in_the_private_split_non_blocking) {
    Job job = lives_job(3);
    job.of_rank[2]["SLIMWIRE_EMU_FAULT"] = "ncclCommSplit:1=40s";
    expect_ends(job, true);
}

// The victim's first three all-gathers are those of its compressed calls.
TEST(Lives, killed_in_a_split) {
    Job job = lives_job(3);
    job.of_rank[2]["SLIMWIRE_EMU_FAULT"] = "ncclAllGather:4=40s";
    expect_ends(job, true);
}

TEST(Lives, the_survivors_shrink) {
    expect_ends(lives_job(4), true);
}

TEST(Lives, the_survivors_shrink_non_blocking) {
    expect_ends(lives_job(4), true);
}

// No memory for the identities of the new ranks, on rank 1 alone.
TEST(Lives, one_rank_fails_its_part) {
    Job job = lives_job(3);
    job.of_rank[1]["SLIMWIRE_EMU_FAULT"] = "cudaMalloc:3";
    expect_ends(job);
}

}  // namespace
}  // namespace slimwire::test
