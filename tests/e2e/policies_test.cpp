// Every policy of tools/policies runs: a job of two nodes with two ranks each reduces the same
// gradient again and again under it. Those with error feedback owe no more after twice as many
// steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <regex>
#include <sstream>

#include "tests/e2e/shipped_policies.h"
#include "tests/support/has.h"
#include "tests/support/job.h"
#include "tests/support/seed.h"

namespace slimwire::test {
namespace {

enum class Promise {
    kNear,  // no step is far off
    kPaysBack,
};

struct Expected {
    Promise promise;
    int steps = 64;
    bool compressed = true;
    double most = 0.3;  // what may be owed at the end, in steps' gradients of the largest
};

// Lines of all ranks about rules that do not do what they seem to.
std::vector<std::string> warnings_of(const std::vector<Ended>& ranks) {
    std::vector<std::string> lines;
    for (const Ended& rank : ranks) {
        std::istringstream all(rank.err);
        for (std::string line; std::getline(all, line);) {
            if (line.find("slimwire: warn: ") != std::string::npos) {
                lines.push_back(line);
            }
        }
    }
    return lines;
}

// By file; `steps`: what its debt needs to stop growing.
const std::map<std::string, Expected> kPolicies = {
    {"accordion", {Promise::kPaysBack, 320}},
    {"auto", {Promise::kNear, 64, true, 0.03}},
    {"bf16", {Promise::kNear, 64, true, 0.02}},
    {"by-size", {Promise::kNear, 64, true, 0.03}},
    {"dct", {Promise::kPaysBack, 800}},
    {"dct-pipeline", {Promise::kNear, 16, false, 0.001}},  // messages
    {"hierarchical", {Promise::kNear, 64, true, 0.5}},
    {"int4-ef14", {Promise::kPaysBack}},
    {"int8", {Promise::kNear, 64, true, 0.03}},
    {"off", {Promise::kNear, 16, false, 0.001}},
    {"powersgd", {Promise::kPaysBack}},
    {"sharded-int4", {Promise::kNear, 16, false, 0.001}},  // reduce-scatters
    {"sharded-weights", {Promise::kPaysBack}},
    {"step-ahead", {Promise::kNear, 16, false, 0.001}},       // reduce-scatters
    {"tensor-parallel", {Promise::kNear, 16, false, 0.001}},  // inside a node
};

constexpr char kEach[] = "1+=1us";  // is late

class Policies : public testing::TestWithParam<std::string> {};

// The policy's file is written into `folder`.
Job job_of(const std::string& policy, int steps, const std::string& folder) {
    const std::string path = folder + "/policy.toml";
    std::ofstream(path) << shortened_policy(policy);
    Job job = slimwire_job(
        {SLIMWIRE_TEST_SPARSE_SUM, std::to_string(steps), "f32", "allreduce", "20000", "marked"},
        4);
    job.environment["SLIMWIRE_POLICY"] = path;
    job.environment["SLIMWIRE_EMU_NODES"] = "2x2";
    return job;
}

TEST_P(Policies, Run) {
    const auto found = kPolicies.find(GetParam());
    ASSERT_NE(found, kPolicies.end())
        << "tools/policies has a file that this test does not know; say what it promises";
    const Expected& expected = found->second;
    const TemporaryFolder reports, policy;
    Job job = job_of(GetParam(), expected.steps, policy.path());
    job.environment["SLIMWIRE_REPORT"] = reports.path() + "/report.%r.%p";
    const auto ended = run_ranks(job);
    ASSERT_EQ(unless_all_exit(ended), "");
    double halfway = 0, after = 0;
    ASSERT_EQ(std::sscanf(ended[0].out.c_str(), "error %lf %lf", &halfway, &after), 2);
    for (const Ended& rank : ended) {
        EXPECT_EQ(rank.out, ended[0].out) << "replicas differ";
    }
    const uint64_t calls = sum_keys(read_reports(reports.path()), "calls", compressed);
    EXPECT_EQ(calls > 0, expected.compressed);
    EXPECT_EQ(warnings_of(ended).size(), 0u) << ended[0].err;
    const std::string errors = ended[0].out;
    switch (expected.promise) {
        case Promise::kNear:
            EXPECT_LT(after, expected.most * expected.steps) << errors;
            break;
        case Promise::kPaysBack:
            EXPECT_LT(after, 1.35 * halfway + 0.05) << errors;
            EXPECT_LT(after, expected.most * expected.steps) << errors;
            break;
    }
}

// What a job gets from the device and the host.
constexpr const char* kAllocating[] = {"cudaMallocFromPoolAsync", "cudaHostAlloc",
                                       "cudaEventCreateWithFlags", "cudaStreamCreateWithFlags",
                                       "cudaStreamCreateWithPriority"};

// How often rank 1 called these in the job of ahead_test.cpp, in which every policy compresses.
// `faults` says which calls fail, or are late, on that rank or on all.
std::map<std::string, uint64_t> allocations(const std::string& policy,
                                            bool on_all,
                                            const std::string& faults) {
    constexpr int kRanks = 2;
    const TemporaryFolder folder;
    Job job = slimwire_job({SLIMWIRE_TEST_AHEAD}, kRanks, folder.path());
    job.environment["SLIMWIRE_POLICY"] = shortened_policy(policy);
    job.environment["SLIMWIRE_EMU_NODES"] = nodes_for(policy, kRanks);
    (on_all ? job.environment : job.of_rank[1])["SLIMWIRE_EMU_FAULT"] =
        "cudaGetDriverEntryPointByVersion:1+" + faults;
    let_calls_wait(&job, "pinned memory in the place of the device's waits");
    const auto ended = run_ranks(job);
    const std::string what = policy + faults + (on_all ? " of all" : " of rank 1");
    EXPECT_EQ(unless_all_exit(ended), "") << what;
    EXPECT_EQ(ended[0].out, ended[1].out) << what << ": replicas differ";
    if (faults.ends_with(kEach)) {
        const uint64_t calls = sum_keys(read_reports(folder.path()), "calls", compressed);
        EXPECT_EQ(calls > 0, policy != "off") << policy;
    }
    std::map<std::string, uint64_t> made;
    for (const std::string function : kAllocating) {
        for (size_t at = 0; (at = ended[1].err.find(function + " call ", at) + 1) != 0;) {
            ++made[function];
        }
    }
    return made;
}

// Each allocation fails once, on one rank or all: no job ends, results are near and replicas equal.
// One of each function of some policies by seed; TEST_FAULTS=all takes every one, TEST_FAULTS=NAME
// of a policy all of its own.
TEST(Policies, NoneEndsForWantOfMemory) {
    const char* const variable = std::getenv("TEST_FAULTS");
    const std::string asked = variable != nullptr ? variable : "";
    std::mt19937_64 random(test_seed());
    std::vector<std::string> policies = shipped_policies();
    const bool one = std::count(policies.begin(), policies.end(), asked) > 0;
    const bool every = one || asked == "all";
    if (one) {
        policies = {asked};
    } else {
        std::shuffle(policies.begin(), policies.end(), random);
        policies.resize(every ? policies.size() : 4);
    }
    for (const std::string& policy : policies) {
        std::string all;
        for (const std::string function : kAllocating) {
            all += "," + function + ":" + kEach;
        }
        const std::map<std::string, uint64_t> made = allocations(policy, true, all);
        EXPECT_TRUE(made.size() == std::size(kAllocating) || policy == "off") << policy;
        for (const auto& [function, calls] : made) {
            const auto fails = [&, name = function](uint64_t call, bool on_all) {
                allocations(policy, on_all, "," + name + ":" + std::to_string(call));
            };
            for (uint64_t call = 1; every && call <= calls; ++call) {
                fails(call, false);
                fails(call, true);
            }
            if (!every) {
                fails(1 + random() % calls, random() % 2 == 0);
            }
        }
    }
}

struct Silent {
    const char* rule;
    const char* why;
    const char* remedy;
    const char* steps = "5";
    int ranks = 2;
    const char* op = "allreduce";
};

// An active rule that compresses nothing is named once in a job.
TEST(Policies, ARuleThatCompressesNothingIsReported) {
    for (const Silent& one :
         {Silent{"codec = \"int8\"\nmin_bytes = \"1MiB\"\n",
                 "8000 bytes are less than min_bytes of rule 'r' (5)", "a smaller min_bytes"},
          {"codec = \"int8\"\nmin_bytes = \"auto\"\nmatch = { bytes = \"..1MiB\" }\n", "auto (5)",
           "SLIMWIRE_CALIBRATION", "5", 2, "reduce"},  // which is not timed
          {"codec = \"int8\"\nstart_step = 9\n", "before start_step (5)", "a smaller start_step"},
          {"codec = \"topk:fraction=0.1\"\nerror_feedback = \"ef21\"\n",
           "its place in the step is not known (2)", "slimwire_mark_step", "2"},
          {"codec = \"powersgd:rank=1\"\nerror_feedback = \"ef14\"\n",
           "the shapes of its matrices are not known", "row=", "5"},
          {"codec = \"int8\"\n", "one rank", "more ranks", "5", 1}}) {
        const TemporaryFolder folder;
        const std::string path = folder.path() + "/p.toml";
        std::ofstream(path) << "version = 1\n[[rule]]\nname = \"r\"\n" << one.rule;
        Job job =
            slimwire_job({SLIMWIRE_TEST_SPARSE_SUM, one.steps, "f32", one.op, "2000"}, one.ranks);
        job.environment["SLIMWIRE_POLICY"] = path;
        const auto ended = run_ranks(job);
        ASSERT_EQ(unless_all_exit(ended), "");
        const auto warnings = warnings_of(ended);
        ASSERT_EQ(warnings.size(), 1u) << one.rule << ended[0].err;
        EXPECT_HAS(warnings[0], ": rule 'r' compressed none of its ");
        EXPECT_HAS(warnings[0], one.why);
        EXPECT_HAS(warnings[0], one.remedy);
    }
}

INSTANTIATE_TEST_SUITE_P(Files,
                         Policies,
                         testing::ValuesIn(shipped_policies()),
                         [](const auto& info) {
                             return std::regex_replace(info.param, std::regex("-"), "_");
                         });

}  // namespace
}  // namespace slimwire::test
