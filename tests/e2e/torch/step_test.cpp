// DDP with error feedback: compressed calls take their own bucket's residual, whatever comes in
// between (step_keys.py says how that is seen).
#include <fstream>
#include <set>

#include "tests/e2e/torch/torch_job.h"

namespace slimwire::test {
namespace {

using TorchStep = ForkedTorchTest;

constexpr char kStepPolicy[] = R"(version = 1
[[rule]]
name = "buckets"
match = { op = "allreduce", dtype = "f32", bytes = "4KiB.." }
codec = "int4"
error_feedback = "ef14"
)";

TEST_F(TorchStep, NoBucketTakesAnothersResidual) {
    const TemporaryFolder folder, reports;
    std::ofstream(folder.file("policy.toml")) << kStepPolicy;
    const auto run = [&](const std::string& mode, const std::string& report) {
        return run_forked(torch_slimwire_job({"step_keys.py", mode}, 2, report,
                                             {{"SLIMWIRE_POLICY", folder.file("policy.toml")}}));
    };
    const auto found = run("found", reports.path());
    ASSERT_EQ(unless_all_exit(found), "");
    const auto marked = run("marked", {});
    ASSERT_EQ(unless_all_exit(marked), "");

    const auto lines = lines_of(found);
    ASSERT_EQ(lines[0].size(), 3U);
    EXPECT_EQ(lines[1], lines[0]) << "ranks differ";
    EXPECT_EQ(lines_of(marked), lines) << "a residual was another bucket's";
    // By its buffer before a slot is known, as after each evaluation.
    uint64_t seen = 0;
    for (const auto& line : lines[0]) {
        SCOPED_TRACE(line.dump());
        EXPECT_EQ(line.at("compressed"), line.at("calls"));
        seen += line.at("calls").get<uint64_t>();
    }
    const auto records = read_reports(reports.path());
    EXPECT_EQ(sum_keys(records, "calls", compressed), 2 * seen);
    std::set<uint64_t> sizes;
    for (const auto& record : records) {
        if (record.at("record") == "key" && compressed(record) && record.at("calls") > 0) {
            sizes.insert(record.at("count").get<uint64_t>());
        }
    }
    // Of the four buckets two are of equal size.
    for (const uint64_t size : {1640, 2050, 31400}) {
        EXPECT_TRUE(sizes.contains(size)) << size;
    }
}

}  // namespace
}  // namespace slimwire::test
