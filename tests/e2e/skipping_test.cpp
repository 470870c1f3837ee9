// Which steps the program skipped, as the traffic of training tells (programs/ordinals.cpp).
#include <gtest/gtest.h>

#include "tests/support/job.h"

namespace slimwire::test {
namespace {

constexpr char kSkippingPolicy[] = R"(version = 1
[[rule]]
name = "gradients"
match = { op = "allreduce", ordinal = 0 }
codec = "int4"
)";

struct SkippingCase {
    const char* way;
    const char* mode;
    int steps;
    const char* out;  // of the program
    int skipped, others;
};

// A call of steps that are found is native until its slot is known, after eight steps; other maxima
// are no flags.
TEST(Skipping, FlagsAreCountedInEveryModeAndWayOfMakingCalls) {
    for (const SkippingCase& of : {SkippingCase{"marked", "on", 8, "step 1: ccc\n", 2, 0},
                                   {"grouped", "on", 8, "step 1: ccc\n", 2, 0},
                                   {"lengths", "on", 8, "step 1: ccc\n", 0, 8},
                                   {"found", "on", 200, "step 1: ---\nstep 9: ccc\n", 2, 0},
                                   {"grouped", "record", 8, "step 1: ---\n", 2, 0},
                                   {"grouped", "shadow", 8, "step 1: ---\n", 2, 0},
                                   {"marked", "record", 8, "step 1: ---\n", 2, 0}}) {
        SCOPED_TRACE(std::string(of.way) + " " + of.mode);
        const TemporaryFolder reports;
        Job job = slimwire_job(
            {SLIMWIRE_TEST_ORDINALS, std::string("skips-") + of.way, std::to_string(of.steps)}, 3,
            reports.path());
        job.environment["SLIMWIRE_POLICY"] = kSkippingPolicy;
        job.environment["SLIMWIRE_MODE"] = of.mode;
        const auto ranks = run_ranks(job);
        EXPECT_EQ(unless_all_exit(ranks), "");
        for (const auto& rank : ranks) {
            EXPECT_EQ(rank.out, of.out);
        }
        int communicators = 0;
        for (const auto& record : read_reports(reports.path())) {
            if (record.at("record") == "comm") {
                ++communicators;
                EXPECT_EQ(record.at("step_flags"), of.steps);
                EXPECT_EQ(record.at("skipped_steps"), of.skipped);
                EXPECT_EQ(record.at("other_flags"), of.others);
            }
        }
        EXPECT_EQ(communicators, 3);
    }
}

}  // namespace
}  // namespace slimwire::test
