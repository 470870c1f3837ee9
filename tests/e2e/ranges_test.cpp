// Rules by NVTX range: of four equal sums in a step each goes by the ranges that are open around
// it, once the ranks found that they are in the same ones (programs/ranges.cpp).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "tests/support/job.h"

namespace slimwire::test {
namespace {

constexpr char kPolicy[] = R"(version = 1
[[rule]]
name = "inner"
match = { op = "allreduce", range = "layer ?" }
codec = "native"
[[rule]]
name = "backward"
match = { op = "allreduce", range = ["back*", "none such"] }
codec = "int4"
)";

struct Outcome {
    std::string out;
    std::vector<nlohmann::json> records;
    std::string errors;
};

Outcome run(const std::string& way,
            int steps,
            const std::string& mode = "on",
            const std::string& library = SLIMWIRE_TEST_NVTX,
            const std::map<int, Environment>& of_rank = {}) {
    const TemporaryFolder folder, reports;
    std::ofstream(folder.file("policy.toml")) << kPolicy;
    Job job = slimwire_job({SLIMWIRE_TEST_RANGES, way, std::to_string(steps)}, 3, reports.path());
    job.environment["SLIMWIRE_POLICY"] = folder.file("policy.toml");
    job.environment["SLIMWIRE_MODE"] = mode;
    job.environment["SLIMWIRE_TRACE"] = folder.file("%p.trace");
    if (!library.empty()) {
        job.environment["NVTX_INJECTION64_PATH"] = library;
    }
    job.of_rank = of_rank;
    const auto of_ranks = run_ranks(job);
    EXPECT_EQ(unless_all_exit(of_ranks), "");
    Outcome outcome{of_ranks[0].out, read_reports(reports.path()), ""};
    for (const auto& other : of_ranks) {
        EXPECT_EQ(other.out, of_ranks[0].out) << "ranks differ";
        outcome.errors += other.err;
    }
    for (const auto& file : std::filesystem::directory_iterator(folder.path())) {
        std::ifstream lines(file.path());
        for (std::string line; file.path().extension() == ".trace" && std::getline(lines, line);) {
            outcome.records.push_back(nlohmann::json::parse(line));
        }
    }
    return outcome;
}

uint64_t calls(const Outcome& run, const std::string& reason) {
    return sum_keys(run.records, "calls", [&](const nlohmann::json& key) {
        return key.at("count") != 1000 &&
               key.at("reason").get<std::string>().find(reason) != std::string::npos;
    });
}

// Two steps are learned; the ranks compare in the third, and know in the fourth.
constexpr char kUsual[] = "step 1: ----\nstep 4: -c--\n";

TEST(Ranges, OfMarkedSteps) {
    const Outcome marked = run("marked", 30);
    EXPECT_EQ(marked.out, kUsual);
    EXPECT_EQ(calls(marked, "rule 'backward'"), 3u * 27u);
    EXPECT_EQ(calls(marked, "rule 'inner' says native"), 3u * 27u);
    EXPECT_EQ(calls(marked, "no rule matches"), 2u * 3u * 27u);
    EXPECT_EQ(calls(marked, "in which NVTX ranges it is is not known"), 4u * 3u * 3u);
    // In the third step, and sixteen later: it is in the report.
    EXPECT_EQ(calls(marked, "the ranks compare in which NVTX ranges"), 3u * 2u);
    EXPECT_EQ(marked.errors.find("NVTX"), std::string::npos) << marked.errors;
}

TEST(Ranges, OfStepsThatAreFound) {
    // Found after 512 calls, of which a step has five.
    EXPECT_EQ(run("found", 150).out, "step 1: ----\nstep 107: -c--\n");
}

TEST(Ranges, RanksThatDifferAreNativeThereAndSaySo) {
    const Outcome apart = run("apart", 12);
    EXPECT_EQ(apart.out, kUsual) << "where they differ it is the innermost sum";
    EXPECT_EQ(calls(apart, "in different NVTX ranges on the ranks, and rule 'inner' asks"),
              3u * 9u);
    size_t lines = 0;
    for (size_t at = 0; (at = apart.errors.find("ranks are in different NVTX ranges at 1 places",
                                                at)) != std::string::npos;
         ++at) {
        ++lines;
    }
    EXPECT_EQ(lines, 3u) << apart.errors;
}

TEST(Ranges, GroupsOnSomeRanksOnly) {
    EXPECT_EQ(run("grouped", 12).out, kUsual);
}

// In step 3 the comparison was in it; two more steps are learned.
TEST(Ranges, AGroupThatNeverWasIsComparedLater) {
    EXPECT_EQ(run("dropped", 12).out, "step 1: ----\nstep 6: -c--\n");
}

TEST(Ranges, APlaceWhoseRangeChangesIsFollowedWithinSixteenSteps) {
    // Compared in steps 3, 19, 35 and 51. From step 31 on the ranges have changed places; what
    // changed between two comparisons is native until the next.
    EXPECT_EQ(run("moved", 60).out, "step 1: ----\nstep 4: -c--\nstep 36: ----\nstep 52: c---\n");
}

TEST(Ranges, APlaceWithoutASettledRangeIsNative) {
    const Outcome wandering = run("wandering", 12);
    EXPECT_EQ(wandering.out, "step 1: ----\nstep 4: -c--\n");
    // The first sum of a step, from the fourth on.
    EXPECT_EQ(calls(wandering, "not in the same NVTX ranges each time, and rule 'inner' asks"),
              3u * 9u);
}

TEST(Ranges, CapturedCallsGoByWhatWasKnown) {
    EXPECT_EQ(run("captured", 30).out, kUsual);
}

TEST(Ranges, WithoutTheLibraryNothingIsKnown) {
    const Outcome without = run("marked", 6, "on", "");
    EXPECT_EQ(without.out, "step 1: ----\n");
    EXPECT_NE(without.errors.find("NVTX_INJECTION64_PATH must name libslimwire-nvtx.so"),
              std::string::npos)
        << without.errors;
}

// Whose program hears of no range, because the variable was not passed on.
TEST(Ranges, ARankWithoutTheLibraryMakesAllNative) {
    const Outcome one =
        run("marked", 6, "on", SLIMWIRE_TEST_NVTX, {{1, {{"NVTX_INJECTION64_PATH", ""}}}});
    EXPECT_EQ(one.out, "step 1: ----\n");
    EXPECT_NE(one.errors.find("ranks are in different NVTX ranges at 5 places"), std::string::npos)
        << one.errors;
}

TEST(Ranges, ShadowDecidesByItsOwn) {
    const Outcome shadow = run("marked", 6, "shadow");
    EXPECT_EQ(shadow.out, "step 1: ----\n");
    EXPECT_EQ(calls(shadow, "mode on: int4"), 3u * 6u);
}

TEST(Ranges, ATraceNamesTheInnermost) {
    const Outcome record = run("marked", 6, "record");
    std::map<std::string, int> seen;
    for (const nlohmann::json& line : record.records) {
        if (line.value("record", "") == "call") {
            seen[line.value("range", "none")] += line.at("count") == 3000 ? 1 : 0;
        }
    }
    EXPECT_EQ(seen, (std::map<std::string, int>{
                        {"forward", 18}, {"backward", 18}, {"layer 3", 18}, {"none", 18}}));
}

}  // namespace
}  // namespace slimwire::test
