// Sharded, pipeline and expert parallel training in PyTorch, native and compressed in one job.
#include <fstream>

#include "tests/e2e/torch/torch_job.h"

namespace slimwire::test {
namespace {

using TorchParallel = ForkedTorchTest;

constexpr const char* kPolicy = R"(version = 1
[[rule]]
name = "gradients"
match = { op = ["allreduce", "reducescatter"], dtype = "f32" }
codec = "int8"
min_bytes = "1KiB"

[[rule]]
name = "rows-and-activations"
match = { op = ["send", "recv"], dtype = "f32" }
codec = "int8"
min_bytes = "1KiB"
)";

// What parallel.py sends between the stages: 16 images of 192 values.
constexpr int kActivations = 16 * 192;

TEST_F(TorchParallel, ShardedStagesAndExpertsLikeOneProcess) {
    const TemporaryFolder reports, policy;
    std::ofstream(policy.file("policy.toml")) << kPolicy;
    const auto ended =
        run_forked(torch_slimwire_job({"parallel.py", "float64", "float32"}, 4, reports.path(),
                                      {{"SLIMWIRE_POLICY", policy.file("policy.toml")}}));
    ASSERT_EQ(unless_all_exit(ended), "");
    const auto ranks = lines_of(ended);
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
        ASSERT_EQ(ranks[rank].size(), 8U);
        for (size_t i = 0; i < ranks[rank].size(); ++i) {
            const auto& line = ranks[rank][i];
            SCOPED_TRACE(line.dump());
            const bool native = line.at("type") == "float64";
            const double distance = line.at("distance").get<double>();
            EXPECT_LT(distance, native ? 1e-12 : 0.02);
            // What the codec does must be seen: the arithmetic of fp32 alone is within 1e-6.
            EXPECT_TRUE(native || distance > 5e-6);
            EXPECT_NEAR(line.at("loss").get<double>(), line.at("expected_loss").get<double>(),
                        native ? 1e-9 : 0.01);
            for (const int other : line.value("with", std::vector<int>())) {
                EXPECT_EQ(ranks[static_cast<size_t>(other)][i].at("replicated"),
                          line.at("replicated"))
                    << "rank " << other;
            }
        }
    }
    const auto records = read_reports(reports.path());
    const auto calls = [&](const std::string& op, const auto& keep) {
        return sum_keys(records, "calls", [&](const auto& key) {
            return compressed(key) && key.at("op") == op && keep(key);
        });
    };
    const auto activations = [](const auto& key) { return key.at("count") == kActivations; };
    const auto rows = [](const auto& key) { return key.at("count") != kActivations; };
    // Twelve steps; four ranks, a rank a replica of a stage sends twice a step.
    EXPECT_EQ(calls("reducescatter", any_key), 4U * 12U);
    EXPECT_EQ(calls("allreduce", any_key), 8U * 12U);
    EXPECT_EQ(calls("send", activations), 8U * 12U);
    EXPECT_EQ(calls("recv", activations), 8U * 12U);
    EXPECT_GT(calls("send", rows), 4U * 12U);
    EXPECT_EQ(calls("allgather", any_key), 0U);
    EXPECT_EQ(sum_keys(records, "calls",
                       [](const auto& key) { return compressed(key) && key.at("dtype") != "f32"; }),
              0U);
}

}  // namespace
}  // namespace slimwire::test
