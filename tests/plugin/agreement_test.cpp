// Ranks that differ: one without slimwire, different policies, a wrong policy, a damaged id. Whole
// jobs on the emulator; whatever happens, all ranks end alike and nobody hangs.
#include <gtest/gtest.h>

#include <fstream>
#include <tuple>

#include "tests/support/has.h"
#include "tests/support/job.h"

namespace slimwire::test {
namespace {

// How long ranks wait for one that never answers: the others have to, until then.
constexpr char kPatience[] = "2s";

Job reduce_job(const std::string& reports, std::vector<std::string> arguments = {}) {
    arguments.insert(arguments.begin(), SLIMWIRE_TEST_REDUCE);
    Job job = slimwire_job(arguments, 3, reports);
    job.environment["SLIMWIRE_CODEC"] = "int4:block=64";
    job.environment["runtime.agree_timeout"] = "60s";
    return job;
}

int occurrences(const std::string& text, const std::string& part) {
    int found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
        ++found;
    }
    return found;
}

constexpr int kInvalidArgument = 10 + 4;  // as the program reports ncclInvalidArgument

TEST(Agreement, AllRanksAlikeCompress) {
    const TemporaryFolder reports;
    const auto ranks = run_ranks(reduce_job(reports.path()));
    ASSERT_EQ(unless_all_exit(ranks), "");
    EXPECT_EQ(sum_keys(read_reports(reports.path()), "calls", compressed), 15u);
    // The control of the tests below: with compression the results are not exact.
    EXPECT_NE(unless_all_exit(run_ranks(reduce_job(reports.path(), {"--exact"}))), "");
}

// One that joins, and the one that makes the id.
TEST(Agreement, OneRankWithoutSlimwireMakesAllNative) {
    for (const int without : {2, 0}) {
        const TemporaryFolder reports;
        Job job = reduce_job(reports.path(), {"--exact"});
        job.without_preload = {without};
        job.environment["runtime.agree_timeout"] = kPatience;
        const auto ranks = run_ranks(job);
        ASSERT_EQ(unless_all_exit(ranks), "");
        EXPECT_HAS(ranks[1].err, without == 0 ? "stay native" : "");
        EXPECT_HAS(ranks[2 - static_cast<size_t>(without)].err,
                   without == 0 ? "stay native" : "rank 2 did not answer");
        const auto records = read_reports(reports.path());
        EXPECT_EQ(sum_keys(records, "calls", compressed), 0u);
        EXPECT_EQ(sum_keys(records, "calls", any_key), 10u);
    }
}

TEST(Agreement, RanksWithDifferentPoliciesGetOneError) {
    const TemporaryFolder reports;
    Job job = reduce_job(reports.path());
    job.of_rank[1]["SLIMWIRE_CODEC"] = "int8";
    const auto ranks = run_ranks(job);
    ASSERT_EQ(unless_all_exit(ranks, kInvalidArgument), "");
    EXPECT_HAS(ranks[0].out, "rank 1 and rank 0 have different policies");
    EXPECT_HAS(ranks[0].out,
               "in codec of rule 'env' of SLIMWIRE_CODEC and the like: int8 and "
               "int4;");
    EXPECT_EQ(ranks[1].out, ranks[0].out);
    EXPECT_EQ(ranks[2].out, ranks[0].out);
}

TEST(Agreement, AWrongPolicyOnOneRankGivesAllTheSameError) {
    for (const int wrong : {0, 1}) {
        const TemporaryFolder reports;
        Job job = reduce_job(reports.path());
        job.of_rank[wrong]["SLIMWIRE_CODEC"] = "int5";
        const auto ranks = run_ranks(job);
        ASSERT_EQ(unless_all_exit(ranks, kInvalidArgument), "");
        EXPECT_HAS(ranks[0].out, "rank " + std::to_string(wrong) + ":");
        EXPECT_HAS(ranks[0].out, "int5");
        EXPECT_HAS(ranks[0].out, "int8") << "accepted values are missing";
        EXPECT_EQ(ranks[1].out, ranks[0].out);
        EXPECT_EQ(ranks[2].out, ranks[0].out);
    }
}

TEST(Agreement, AWrongPolicyFileIsNamedWithLineAndKeyOnAllRanks) {
    const TemporaryFolder folder;
    const std::string policy = folder.file("policy.toml");
    std::ofstream(policy) << "version = 1\n\n[[rule]]\nname = \"all\"\n"
                             "match = { op = \"allreduce\" }\ncodek = \"int4\"\n";
    const TemporaryFolder reports;
    Job job = reduce_job(reports.path());
    job.environment.erase("SLIMWIRE_CODEC");
    job.environment.erase("runtime.agree_timeout");  // the policy would be told as text
    job.environment.erase("runtime.summary");
    job.environment["SLIMWIRE_POLICY"] = policy;
    const auto ranks = run_ranks(job);
    ASSERT_EQ(unless_all_exit(ranks, kInvalidArgument), "");
    for (const char* part : {"policy.toml", "6", "codek"}) {
        EXPECT_HAS(ranks[2].out, part) << part << " is not in: " << ranks[2].out;
    }
}

// Bytes 64.. hold slimwire's mark, token, address and checksum.
TEST(Agreement, TornIdTailOnAllRanksMakesAllNative) {
    for (const char* byte : {"64", "72", "84", "100"}) {
        const TemporaryFolder reports;
        const auto ranks = run_ranks(reduce_job(reports.path(), {"--exact", "--flip", byte}));
        ASSERT_EQ(unless_all_exit(ranks), "") << "byte " << byte;
        EXPECT_EQ(sum_keys(read_reports(reports.path()), "calls", compressed), 0u);
    }
}

TEST(Agreement, TornIdTailOnOneRankMakesAllNative) {
    const TemporaryFolder reports;
    Job job = reduce_job(reports.path(), {"--exact", "--flip", "72", "--flip-rank", "1"});
    job.environment["runtime.agree_timeout"] = kPatience;
    const auto ranks = run_ranks(job);
    ASSERT_EQ(unless_all_exit(ranks), "");
    EXPECT_HAS(ranks[1].err, "tail is damaged");
    EXPECT_HAS(ranks[0].err, "rank 1 did not answer");
    EXPECT_EQ(sum_keys(read_reports(reports.path()), "calls", compressed), 0u);
}

// Each rank is there; one of them tells the others later than they wait who it is, or has no
// memory, which it tells them.
TEST(Agreement, RanksThatDoNotHearOfEachOtherInTimeOrLackMemoryAreNative) {
    constexpr char kNotHeard[] = "did not hear of each other in time";
    for (const auto& [fault, why, shares, patience] :
         {std::tuple("ncclAllGather:1=1500ms", kNotHeard, "0", "800ms"),
          std::tuple("ncclAllGather:1=1500ms", kNotHeard, "1", "800ms"),
          std::tuple("cudaMallocFromPoolAsync:1+", "more than the 0 that all ranks have", "0",
                     "60s")}) {
        const TemporaryFolder reports;
        Job job = reduce_job(reports.path(), {"--exact"});
        job.environment["NCCL_COMM_SPLIT_SHARE_RESOURCES"] = shares;
        job.environment["runtime.agree_timeout"] = patience;
        job.of_rank[1]["SLIMWIRE_EMU_FAULT"] = fault;
        const auto ranks = run_ranks(job);
        ASSERT_EQ(unless_all_exit(ranks), "") << fault;
        EXPECT_HAS(ranks[0].err, why) << fault << ": " << ranks[0].err;
        const auto records = read_reports(reports.path());
        EXPECT_EQ(sum_keys(records, "calls", compressed), 0u) << fault;
        EXPECT_EQ(sum_keys(records, "calls", any_key), 15u) << fault;
    }
}

TEST(Agreement, WithoutPolicyNothingIsSaidOrChanged) {
    Job job = slimwire_job({SLIMWIRE_TEST_REDUCE, "--exact"}, 3);
    job.environment.erase("runtime.summary");
    const auto ranks = run_ranks(job);
    ASSERT_EQ(unless_all_exit(ranks), "");
    for (const Ended& rank : ranks) {
        EXPECT_EQ(rank.out + rank.err, "");
    }
}

TEST(Agreement, ModeOffIsNativeAtOnceAlsoOfOneRank) {
    Job job = reduce_job("", {"--exact"});
    job.of_rank[1]["SLIMWIRE_MODE"] = "off";
    const auto ranks = run_ranks(job);
    ASSERT_EQ(unless_all_exit(ranks), "");
    EXPECT_HAS(ranks[0].err, "rank 1: SLIMWIRE_MODE is off");
    job.environment["SLIMWIRE_MODE"] = "off";
    EXPECT_EQ(unless_all_exit(run_ranks(job)), "");
}

TEST(Agreement, TheSummaryAtExitIsAtMostFiveLinesOfOneRank) {
    Job job = reduce_job("");
    job.environment.erase("runtime.summary");
    const auto ranks = run_ranks(job);
    ASSERT_EQ(unless_all_exit(ranks), "");
    const int lines = occurrences(ranks[0].err + ranks[0].out, "\n");
    EXPECT_GE(lines, 1);
    EXPECT_LE(lines, 5) << ranks[0].err;
    EXPECT_EQ(ranks[1].err + ranks[2].err, "");
}

}  // namespace
}  // namespace slimwire::test
