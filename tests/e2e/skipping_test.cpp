// Which steps the program skipped, as the traffic of training tells.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/job.h"

namespace slimwire::test {
namespace {

constexpr char kSkippingPolicy[] = R"(version = 1
[[rule]]
name = "gradients"
match = { op = "allreduce", ordinal = 0 }
codec = "int4"
)";

struct SkippingOutcome {
    std::string out;
    std::vector<nlohmann::json> comms;
};

SkippingOutcome run(const std::string& way, int steps, const std::string& mode = "on") {
    const TemporaryFolder folder, reports;
    std::ofstream(folder.file("policy.toml")) << kSkippingPolicy;
    Job job = slimwire_job({SLIMWIRE_TEST_SKIPPING, way, std::to_string(steps)}, 3, reports.path());
    job.environment["SLIMWIRE_POLICY"] = folder.file("policy.toml");
    job.environment["SLIMWIRE_MODE"] = mode;
    const auto ranks = run_ranks(job);
    EXPECT_EQ(unless_all_exit(ranks), "");
    SkippingOutcome outcome{ranks[0].out, {}};
    for (const auto& other : ranks) {
        EXPECT_EQ(other.out, outcome.out) << "ranks differ";
    }
    for (const auto& record : read_reports(reports.path())) {
        if (record.at("record") == "comm") {
            outcome.comms.push_back(record);
        }
    }
    EXPECT_EQ(outcome.comms.size(), 3u);
    return outcome;
}

void expect_flags(const SkippingOutcome& outcome, int made, int skipped, int others) {
    for (const auto& comm : outcome.comms) {
        EXPECT_EQ(comm.at("step_flags"), made);
        EXPECT_EQ(comm.at("skipped_steps"), skipped);
        EXPECT_EQ(comm.at("other_flags"), others);
    }
}

TEST(Skipping, MarkedSteps) {
    const SkippingOutcome marked = run("marked", 8);
    EXPECT_EQ(marked.out, "step 1: ccc\n");
    expect_flags(marked, 8, 2, 0);
}

TEST(Skipping, CallsInGroups) {
    const SkippingOutcome grouped = run("grouped", 8);
    EXPECT_EQ(grouped.out, "step 1: ccc\n");
    expect_flags(grouped, 8, 2, 0);
}

TEST(Skipping, OtherMaximaAreNoFlags) {
    expect_flags(run("lengths", 8), 8, 0, 8);
}

TEST(Skipping, FoundSteps) {
    const SkippingOutcome found = run("found", 200);
    // A call is native until its slot is known, after eight steps.
    EXPECT_EQ(found.out, "step 1: ---\nstep 9: ccc\n");
    expect_flags(found, 200, 2, 0);
}

TEST(Skipping, ModesThatObserve) {
    for (const std::string mode : {"record", "shadow"}) {
        SCOPED_TRACE(mode);
        const SkippingOutcome observed = run("grouped", 8, mode);
        EXPECT_EQ(observed.out, "step 1: ---\n");
        expect_flags(observed, 8, 2, 0);
    }
    expect_flags(run("marked", 8, "record"), 8, 2, 0);
}

}  // namespace
}  // namespace slimwire::test
