// Groups of calls whose two sides are built differently, beside what the conformance program draws.
#include <gtest/gtest.h>

#include "tests/support/job.h"

namespace slimwire::test {
namespace {

TEST(Groups, scratch_grows_without_waiting_for_the_group_itself) {
    const TemporaryFolder reports;
    Job job = slimwire_job({SLIMWIRE_TEST_GROWING_GROUP}, 2, reports.path());
    job.environment["SLIMWIRE_CODEC"] = "int8:block=64";
    job.environment["SLIMWIRE_OPS"] = "all";
    job.environment["SLIMWIRE_MIN_BYTES"] = "2KiB";
    job.limit_s = 30;
    const auto ranks = run_ranks(job);
    ASSERT_EQ(unless_all_exit(ranks), "");
    const auto records = read_reports(reports.path());
    EXPECT_EQ(sum_keys(records, "calls", compressed), 6u);
    EXPECT_EQ(sum_keys(records, "calls", [](const auto& key) { return !compressed(key); }), 6u);
}

TEST(Groups, collectives_come_before_the_messages_of_their_group) {
    const TemporaryFolder reports;
    Job job = slimwire_job({SLIMWIRE_TEST_MIXED_GROUP}, 2, reports.path());
    job.environment["SLIMWIRE_CODEC"] = "int8:block=64";
    job.environment["SLIMWIRE_OPS"] = "all";
    job.limit_s = 30;
    ASSERT_EQ(unless_all_exit(run_ranks(job)), "");
    EXPECT_EQ(sum_keys(read_reports(reports.path()), "calls", compressed), 4u);
}

}  // namespace
}  // namespace slimwire::test
