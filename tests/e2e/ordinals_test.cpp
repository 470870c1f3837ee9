// Rules by ordinal: of three equal sums in a step each goes by its own rule, on all ranks alike,
// while it is known where in the step they stand (programs/ordinals.cpp).
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/job.h"

namespace slimwire::test {
namespace {

constexpr char kPolicy[] = R"(version = 1
[[rule]]
name = "second-fourth"
match = { op = ["allreduce", "send"], ordinal = [1, 3] }
codec = "int4"
[[rule]]
name = "first"
match = { op = "allreduce", ordinal = 0 }
codec = "native"
)";

struct Outcome {
    std::string out;
    std::vector<nlohmann::json> records;
};

Outcome run(const std::string& way, int steps, const std::string& mode = "on", int ranks = 3) {
    const TemporaryFolder folder, reports;
    std::ofstream(folder.file("policy.toml")) << kPolicy;
    Job job =
        slimwire_job({SLIMWIRE_TEST_ORDINALS, way, std::to_string(steps)}, ranks, reports.path());
    job.environment["SLIMWIRE_POLICY"] = folder.file("policy.toml");
    job.environment["SLIMWIRE_MODE"] = mode;
    const auto of_ranks = run_ranks(job);
    EXPECT_EQ(unless_all_exit(of_ranks), "");
    for (const auto& other : of_ranks) {
        EXPECT_EQ(other.out, of_ranks[0].out) << "ranks differ";
    }
    return {of_ranks[0].out, read_reports(reports.path())};
}

uint64_t calls(const Outcome& run, const std::string& reason) {
    return sum_keys(run.records, "calls", [&](const nlohmann::json& key) {
        return key.at("op") == "allreduce" && key.at("count") == 3000 &&
               key.at("reason").get<std::string>().find(reason) != std::string::npos;
    });
}

TEST(Ordinals, OfMarkedStepsFromTheFirstOn) {
    const Outcome marked = run("marked", 9);
    EXPECT_EQ(marked.out,
              "step 1: -c-\n"
              "step 3: -c-c-\n"
              "step 4: -c-\n"
              "step 6: -c-c\n"
              "step 7: -c-\n");
    EXPECT_EQ(calls(marked, "rule 'first' says native"), 3u * 9u);
    EXPECT_EQ(calls(marked, "rule 'second-fourth'"), 3u * 11u);
    EXPECT_EQ(calls(marked, "no rule matches"), 3u * 10u);
    // The message is the first of its kind in each step.
    EXPECT_EQ(sum_keys(marked.records, "calls",
                       [](const nlohmann::json& key) {
                           return key.at("op") == "send" && compressed(key);
                       }),
              0u);
}

// A call is native while its place is not known, which is long after evaluation, too.
TEST(Ordinals, OfStepsThatAreFound) {
    const Outcome found = run("found", 600);
    // No call tells where the step begins, so here the count begins with the last of the three. The
    // call too many in step 400 is what the next step begins with, and told from it by the next.
    EXPECT_EQ(found.out,
              "step 1: ---\n"
              "step 129: c--\n"
              "step 200: c----\n"
              "step 201: ---\n"
              "step 217: c--\n"
              "step 400: c--c\n"
              "step 401: ---\n"
              "step 417: c--\n");
    EXPECT_GT(calls(found, "its place in the step is not known, and rule 'second-fourth' asks"),
              0u);
}

TEST(Ordinals, CapturedCallsStayWhatTheyWere) {
    const Outcome graph = run("graph", 3);
    EXPECT_EQ(graph.out.substr(graph.out.find("replays")), "replays: --cc--\n");
}

TEST(Ordinals, ShadowDecidesAsModeOn) {
    const Outcome shadow = run("marked", 9, "shadow");
    EXPECT_EQ(shadow.out, "step 1: ---\nstep 3: -----\nstep 4: ---\nstep 6: ----\nstep 7: ---\n");
    EXPECT_EQ(calls(shadow, "mode on: int4"), 3u * 11u);
}

}  // namespace
}  // namespace slimwire::test
