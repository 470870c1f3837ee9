// DDP under rules that ask for parameters: which is in which all-reduce is learned from DDP's own
// calls, and parts of one bucket travel with different codecs.
#include <fstream>

#include "tests/e2e/torch/torch_job.h"

namespace slimwire::test {
namespace {

using TorchParameters = ForkedTorchTest;

// Parameters of one dimension as they are, the others by int4.
constexpr char kNormsExempt[] = R"(version = 1
[[rule]]
name = "norms"
match = { op = "allreduce", param = "1d" }
codec = "native"
[[rule]]
name = "weights"
match = { op = "allreduce", dtype = "f32", bytes = "1KiB.." }
codec = "int4"
)";

struct Gradients {
    std::vector<nlohmann::json> steps;
    std::vector<nlohmann::json> records;
};

// Three ranks: a sum of three tells in which order it was made.
Gradients train(std::vector<std::string> words, const std::string& policy) {
    const TemporaryFolder folder, reports;
    std::ofstream(folder.file("policy.toml")) << policy;
    words.insert(words.begin(), "parameter_rules.py");
    Job job = torch_slimwire_job(words, 3, reports.path(),
                                 {{"SLIMWIRE_POLICY", folder.file("policy.toml")}});
    let_calls_wait(&job, "the values of a broadcast that the next call goes by");
    const auto ended = TorchParameters::run_forked(job);
    EXPECT_EQ(unless_all_exit(ended), "");
    const auto lines = lines_of(ended);
    EXPECT_EQ(lines[1], lines[0]) << "ranks differ";
    EXPECT_EQ(lines[2], lines[0]) << "ranks differ";
    return {lines[0], read_reports(reports.path())};
}

bool all_exact(const nlohmann::json& step, const std::string& kind) {
    return step.at("exact").at(kind)[0] == step.at("exact").at(kind)[1];
}

TEST_F(TorchParameters, NormsAndBiasesOfABucketTravelAsTheyAre) {
    for (const std::string model : {"transformer", "convolutions"}) {
        SCOPED_TRACE(model);
        const Gradients found = train({model}, kNormsExempt);
        ASSERT_EQ(found.steps.size(), 6U);
        // Nobody knows yet what the first step's buckets are.
        for (const auto& [kind, error] : found.steps[0].at("error").items()) {
            EXPECT_LT(error.get<double>(), 1e-6) << kind;
        }
        for (size_t step = 2; step < found.steps.size(); ++step) {
            SCOPED_TRACE(found.steps[step].dump());
            EXPECT_TRUE(all_exact(found.steps[step], "1d"));
            const std::string weights = model == "transformer" ? "2d" : "4d";
            EXPECT_FALSE(all_exact(found.steps[step], weights));
            EXPECT_GT(found.steps[step].at("error").at(weights), 0.01);
            EXPECT_LT(found.steps[step].at("error").at(weights), 0.3);
        }
        EXPECT_GT(sum_keys(found.records, "calls", compressed), 0U);
    }
}

// The same rules without the first: no gradient is exact, so the test above can tell.
TEST_F(TorchParameters, WithoutTheRuleNoneIsExact) {
    const Gradients found = train({"transformer"}, R"(version = 1
[[rule]]
name = "weights"
match = { op = "allreduce", dtype = "f32", bytes = "1KiB.." }
codec = "int4"
)");
    ASSERT_EQ(found.steps.size(), 6U);
    EXPECT_FALSE(all_exact(found.steps.back(), "1d"));
}

// By names, which only the program can tell: all of the first layer and nothing else.
TEST_F(TorchParameters, WhatIsNamedTravelsAsItIs) {
    const std::string policy = R"(version = 1
[[rule]]
name = "first"
match = { op = "allreduce", name = "layers.0.*" }
codec = "native"
[[rule]]
name = "rest"
match = { op = "allreduce", dtype = "f32", bytes = "1KiB.." }
codec = "int8"
)";
    const Gradients found = train({"transformer", "named"}, policy);
    ASSERT_EQ(found.steps.size(), 6U);
    const auto same = found.steps.back().at("names").get<std::vector<std::string>>();
    EXPECT_EQ(same.size(), 12U) << found.steps.back().dump();
    for (const std::string& name : same) {
        EXPECT_EQ(name.find("layers.0."), 0U) << name;
    }
}

// Matrices are the parameters as DDP tells their shapes: vectors are summed as natively, the rest
// arrives as factors.
TEST_F(TorchParameters, MatricesTravelAsFactors) {
    for (const std::string model : {"transformer", "convolutions"}) {
        SCOPED_TRACE(model);
        const Gradients found = train({model, "marked"}, R"(version = 1
[[rule]]
name = "factors"
match = { op = "allreduce", dtype = "f32", bytes = "1KiB.." }
codec = "powersgd:rank=4"
ef = "ef14"
)");
        ASSERT_EQ(found.steps.size(), 6U);
        const auto& last = found.steps.back();
        SCOPED_TRACE(last.dump());
        EXPECT_LT(last.at("error").value("1d", 0.0), 1e-6);
        const std::string weights = model == "transformer" ? "2d" : "4d";
        EXPECT_GT(last.at("error").at(weights), 0.01);
        EXPECT_LT(last.at("error").at(weights), 1.5);
        EXPECT_GT(sum_keys(found.records, "calls",
                           [](const auto& key) { return key.at("algorithm") == "low_rank"; }),
                  3U * 4);
    }
}

// A model of which DDP's calls do not tell where its parameters are (one has no dimension): rules
// that ask for them leave its buckets native.
TEST_F(TorchParameters, WhatIsNotKnownStaysNative) {
    const Gradients found = train({"ragged"}, kNormsExempt);
    ASSERT_EQ(found.steps.size(), 6U);
    EXPECT_EQ(sum_keys(found.records, "calls", compressed), 0U);
    bool told = false;
    for (const auto& record : found.records) {
        told |= record.at("record") == "key" && record.at("op") == "allreduce" &&
                record.at("reason").get<std::string>().find(
                    "which parameters it carries is not "
                    "known") != std::string::npos;
    }
    EXPECT_TRUE(told);
}

}  // namespace
}  // namespace slimwire::test
