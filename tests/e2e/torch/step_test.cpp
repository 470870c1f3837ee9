// DDP with tensor = "step": compressed calls take their own bucket's residual, whatever comes in
// between (step_keys.py says how that is seen).
#include <fstream>
#include <set>

#include "tests/e2e/torch/torch_job.h"

namespace slimwire::test {
namespace {

using TorchStep = TorchTest;

std::string policy(const std::string& tensor) {
    return R"(version = 1
[[rule]]
name = "buckets"
match = { op = "allreduce", dtype = "f32", bytes = "1KiB.." }
codec = "int4"
error_feedback = "ef14"
tensor = ")" +
           tensor + "\"\n";
}

TEST_F(TorchStep, NoBucketTakesAnothersResidual) {
    const TemporaryFolder folder, reports;
    std::ofstream(folder.file("step.toml")) << policy("step");
    std::ofstream(folder.file("address.toml")) << policy("address");
    const auto run = [&](const std::string& mode, const std::string& tensor,
                         const std::string& report) {
        return run_ranks(torch_slimwire_job({"step_keys.py", mode, folder.file("calls.json")}, 2,
                                            report,
                                            {{"SLIMWIRE_POLICY", folder.file(tensor + ".toml")}}));
    };
    const auto watched = run("watch", "step", reports.path());
    ASSERT_EQ(unless_all_exit(watched), "");
    const auto oracle = run("oracle", "address", {});
    ASSERT_EQ(unless_all_exit(oracle), "");

    const auto lines = lines_of(watched);
    ASSERT_EQ(lines[0].size(), 3U);
    EXPECT_EQ(lines[1], lines[0]) << "ranks differ";
    EXPECT_EQ(lines_of(oracle), lines) << "a residual was another bucket's";
    // The step is learned in the first epoch, and taken up again in the others.
    uint64_t seen = 0;
    for (const auto& line : lines[0]) {
        SCOPED_TRACE(line.dump());
        const auto calls = line.at("compressed").get<uint64_t>();
        EXPECT_GE(calls, 12U);
        EXPECT_LT(calls, line.at("calls").get<uint64_t>());
        seen += calls;
    }
    EXPECT_GE(lines[0][2].at("compressed"), 100);
    const auto records = read_reports(reports.path());
    EXPECT_EQ(sum_keys(records, "calls", compressed), 2 * seen);
    std::set<uint64_t> sizes;
    for (const auto& record : records) {
        if (record.at("record") == "key" && compressed(record) && record.at("calls") > 0) {
            sizes.insert(record.at("count").get<uint64_t>());
        }
    }
    // Of the four buckets two are of equal size; evaluation's sum of 300 is never compressed.
    EXPECT_EQ(sizes, (std::set<uint64_t>{1640, 2050, 31400}));
}

}  // namespace
}  // namespace slimwire::test
