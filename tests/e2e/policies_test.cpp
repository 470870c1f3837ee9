// Every policy of tools/policies runs: a job of two nodes with two ranks each reduces the same
// gradient again and again under it. Those with error feedback owe no more after twice as many
// steps.
#include <gtest/gtest.h>

#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "tests/support/job.h"

namespace slimwire::test {
namespace {

enum class Promise {
    kNothing,  // of such sums
    kNear,     // no step is far off
    kPaysBack,
};

struct Expected {
    Promise promise;
    int steps = 64;
    bool compressed = true;
    double most = 0.3;  // what may be owed at the end, in steps' gradients of the largest
};

// By file; `steps`: what its debt needs to stop growing.
const std::map<std::string, Expected> kPolicies = {
    {"accordion", {Promise::kNothing, 16, false}},  // asks for matrices
    {"auto", {Promise::kNear, 64, true, 0.03}},
    {"bf16", {Promise::kNear, 64, true, 0.02}},
    {"by-size", {Promise::kNear, 64, true, 0.03}},
    {"dct", {Promise::kPaysBack, 800}},
    {"hierarchical", {Promise::kNear, 64, true, 0.5}},
    {"int4-ef14", {Promise::kPaysBack}},
    {"int8", {Promise::kNear, 64, true, 0.03}},
    {"off", {Promise::kNear, 16, false, 0.001}},
    {"powersgd", {Promise::kNothing, 16, false}},          // asks for matrices
    {"sharded-int4", {Promise::kNear, 16, false, 0.001}},  // reduce-scatters
    {"step-ahead", {Promise::kNear, 16, false, 0.001}},    // reduce-scatters
};

// The policy, for messages of the test's size and jobs of its length.
std::string shortened(const std::filesystem::path& file) {
    std::ostringstream text;
    text << std::ifstream(file).rdbuf();
    std::string policy =
        std::regex_replace(text.str(), std::regex("start_step = \\d+"), "start_step = 2");
    policy = std::regex_replace(policy, std::regex("window = \\d+"), "window = 10");
    policy = std::regex_replace(policy, std::regex("fraction=0\\.001"), "fraction=0.01");
    return std::regex_replace(policy, std::regex("average_every = 100"), "average_every = 10");
}

class Policies : public testing::TestWithParam<std::string> {};

TEST_P(Policies, Run) {
    const auto found = kPolicies.find(GetParam());
    ASSERT_NE(found, kPolicies.end())
        << "tools/policies has a file that this test does not know; say what it promises";
    const Expected& expected = found->second;
    const TemporaryFolder reports, policy;
    const std::string path = policy.path() + "/policy.toml";
    std::ofstream(path) << shortened(std::string(SLIMWIRE_TEST_POLICIES) + "/" + GetParam() +
                                     ".toml");
    Job job = slimwire_job({SLIMWIRE_TEST_SPARSE_SUM, std::to_string(expected.steps), "f32",
                            "allreduce", "20000", "marked"},
                           4, reports.path());
    job.environment["SLIMWIRE_POLICY"] = path;
    job.environment["SLIMWIRE_EMU_NODES"] = "2x2";
    const auto ended = run_ranks(job);
    ASSERT_EQ(unless_all_exit(ended), "");
    double halfway = 0, after = 0;
    ASSERT_EQ(std::sscanf(ended[0].out.c_str(), "error %lf %lf", &halfway, &after), 2);
    for (const Ended& rank : ended) {
        EXPECT_EQ(rank.out, ended[0].out) << "replicas differ";
    }
    const uint64_t calls = sum_keys(read_reports(reports.path()), "calls", compressed);
    EXPECT_EQ(calls > 0, expected.compressed);
    const std::string errors = ended[0].out;
    switch (expected.promise) {
        case Promise::kNothing:
            break;
        case Promise::kNear:
            EXPECT_LT(after, expected.most * expected.steps) << errors;
            break;
        case Promise::kPaysBack:
            EXPECT_LT(after, 1.35 * halfway + 0.05) << errors;
            EXPECT_LT(after, expected.most * expected.steps) << errors;
            break;
    }
}

std::vector<std::string> names() {
    std::vector<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(SLIMWIRE_TEST_POLICIES)) {
        if (entry.path().extension() == ".toml") {
            all.push_back(entry.path().stem());
        }
    }
    return all;
}

INSTANTIATE_TEST_SUITE_P(Files, Policies, testing::ValuesIn(names()), [](const auto& info) {
    return std::regex_replace(info.param, std::regex("-"), "_");
});

}  // namespace
}  // namespace slimwire::test
