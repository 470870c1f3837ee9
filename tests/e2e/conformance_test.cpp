// Random NCCL calls, natively and compressed, against float64 and between ranks: runs the program
// in conformance/ as a job for each case of conformance_cases.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <sstream>
#include <string>

#include "tests/e2e/conformance_cases.h"
#include "tests/e2e/shipped_policies.h"
#include "tests/support/has.h"
#include "tests/support/job.h"
#include "tests/support/seed.h"

namespace slimwire::test {
namespace {

// The modes that only observe are native whatever the rules say.
bool native(const Case& of) {
    return of.mode[0] != 0 || (of.codec[0] == 0 && of.rules.empty());
}

// What the program is told.
std::string arguments_of(const Case& of) {
    std::string text = of.more;
    if (!of.rules.empty()) {
        text += arguments_of(of.series > 0
                                 ? of_series(of.rules)
                                 : std::vector<ConformanceRule>(of.rules.begin(), of.rules.end()),
                             of.slice_bytes);
    } else if (!native(of)) {
        text += std::string(" --codec ") + of.codec + " --min-bytes " + kMinBytes +
                " --slice-bytes " + std::to_string(of.slice_bytes);
    }
    return text;
}

// `folder` takes the policy and the reports.
Job make_job(const Case& of, const std::string& seed, const TemporaryFolder& folder) {
    std::vector<std::string> command = {SLIMWIRE_TEST_CONFORMANCE, "--seed", seed, "--calls",
                                        std::to_string(of.calls)};
    if (of.series > 0) {  // told from the other calls by their size
        command.insert(command.end(),
                       {"--series", std::to_string(of.series), "--max-count", "8000"});
    }
    std::istringstream arguments(arguments_of(of));
    for (std::string word; arguments >> word;) {
        command.push_back(word);
    }
    if (of.own_ways > 0) {
        command.insert(command.end(), {"--own-ways", std::to_string(of.own_ways)});
    }
    for (const auto& [option, devices] :
         {std::pair{"--threads", of.threads}, std::pair{"--devices", of.devices}}) {
        if (devices > 0) {
            command.insert(command.end(), {option, std::to_string(devices)});
        }
    }
    const std::string reports = folder.file("reports");
    std::filesystem::create_directories(reports);
    Job job = native(of) && of.mode[0] == 0 ? emulated_job(command, of.ranks)
                                            : slimwire_job(command, of.ranks, reports);
    if (of.mode[0] != 0) {
        job.environment["SLIMWIRE_MODE"] = of.mode;
        job.environment["SLIMWIRE_TRACE"] = folder.file("trace.%r");
        job.environment["runtime.trace_sample"] = "1";
    }
    if (of.codec[0] != 0) {
        job.environment["SLIMWIRE_CODEC"] = of.codec;
        job.environment["SLIMWIRE_OPS"] = "all";
        job.environment["SLIMWIRE_MIN_BYTES"] = kMinBytes;
    }
    if (!of.rules.empty()) {
        std::ofstream(folder.file("policy.toml")) << policy_of(
            of.series > 0 ? of_series(of.rules)
                          : std::vector<ConformanceRule>(of.rules.begin(), of.rules.end()));
        job.environment["SLIMWIRE_POLICY"] = folder.file("policy.toml");
    }
    job.environment["runtime.slice_bytes"] = std::to_string(of.slice_bytes);
    if (of.threads + of.devices > 0) {
        job.environment["SLIMWIRE_EMU_DEVICES"] = std::to_string(of.threads + of.devices);
    }
    if (of.nodes[0] != 0) {
        job.environment["SLIMWIRE_EMU_NODES"] = of.nodes;
    }
    if (of.connections[0] != 0) {
        job.environment["CUDA_DEVICE_MAX_CONNECTIONS"] = of.connections;
    }
    job.limit_s = 240;
    return job;
}

class Conformance : public testing::TestWithParam<Case> {};

TEST_P(Conformance, EveryResultIsWithinTheBoundAndEqualOnAllRanks) {
    const Case& of = GetParam();
    const std::string seed = of.seed[0] != 0 ? of.seed : std::to_string(test_seed());
    SCOPED_TRACE("repeat with SLIMWIRE_TEST_SEED=" + seed);
    const TemporaryFolder folder;
    const std::vector<Ended> ranks = run_ranks(make_job(of, seed, folder));
    ASSERT_EQ(unless_all_exit(ranks), "");
    EXPECT_HAS(ranks[0].out, "digest ");
    if (of.mode[0] != 0) {
        const std::string trace = read_file(folder.file("trace.0"));
        EXPECT_GT(std::count(trace.begin(), trace.end(), '\n'), of.calls);
        EXPECT_HAS(trace, "\"sample\"");
    }
    if (of.mode == std::string("shadow")) {
        EXPECT_NE(read_file(folder.file("trace.0")).find("\"rehearsal\""), std::string::npos);
        const auto records = read_reports(folder.file("reports"));
        const auto shadowed = [](const auto& key) { return key.contains("shadow_codec"); };
        EXPECT_GT(sum_keys(records, "calls", shadowed), static_cast<uint64_t>(of.calls) / 20);
        EXPECT_EQ(sum_keys(records, "calls", compressed), 0u);
    }
    if (!native(of)) {
        // A run that compressed nothing would have shown nothing.
        const auto records = read_reports(folder.file("reports"));
        // Short as they are, other seeds may miss one.
        std::istringstream algorithms(seed == "1" ? of.algorithms : "");
        for (std::string word; algorithms >> word;) {
            const auto of_word = [&](const auto& key) { return key.at("algorithm") == word; };
            EXPECT_GT(sum_keys(records, "calls", of_word), 0u) << word;
        }
        EXPECT_GT(sum_keys(records, "calls", compressed), static_cast<uint64_t>(of.calls) / 20);
        EXPECT_GT(sum_keys(records, "calls", [](const auto& key) { return !compressed(key); }),
                  static_cast<uint64_t>(of.calls) / 20);
        if (of.calls >= 1500 && of.ranks >= 3) {  // long enough for every operation to come up
            for (const char* op : {"allreduce", "reducescatter", "reduce", "allgather", "broadcast",
                                   "alltoall", "gather", "scatter", "send", "recv"}) {
                const auto of_op = [&](const auto& key) {
                    return compressed(key) && key.at("op") == op;
                };
                EXPECT_GT(sum_keys(records, "calls", of_op), 0u) << op;
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Calls, Conformance, testing::ValuesIn(kCases), name_of);

// Each is a test of its own, and a name that no case has would pass.
TEST(ConformanceCases, AreThoseOfTheBuild) {
    const char* const all = std::getenv("CONFORMANCE_CASES");
    if (all == nullptr) {
        GTEST_SKIP() << "CONFORMANCE_CASES names them";
    }
    std::istringstream names(all);
    std::multiset<std::string> listed(std::istream_iterator<std::string>(names), {}), cases;
    for (const Case& of : kCases) {
        cases.insert(of.name);
    }
    EXPECT_EQ(listed, cases);
}

class Determinism : public testing::TestWithParam<Case> {};

TEST_P(Determinism, TheSameSeedGivesTheSameBits) {
    const Case& of = GetParam();
    const std::string seed = std::to_string(test_seed());
    SCOPED_TRACE("repeat with SLIMWIRE_TEST_SEED=" + seed);
    const TemporaryFolder folder;
    const std::vector<Ended> first = run_ranks(make_job(of, seed, folder));
    const std::vector<Ended> second = run_ranks(make_job(of, seed, folder));
    ASSERT_EQ(unless_all_exit(first), "");
    ASSERT_EQ(unless_all_exit(second), "");
    EXPECT_EQ(first[0].out, second[0].out);
    const std::vector<Ended> other = run_ranks(make_job(of, seed + "1", folder));
    ASSERT_EQ(unless_all_exit(other), "");
    EXPECT_NE(first[0].out.substr(first[0].out.find("digest")),
              other[0].out.substr(other[0].out.find("digest")));
}

// What one rank does alone, a graph, a group, a thread, places of its buffers, changes nothing that
// ranks must do alike: under each shipped policy and with estimates a job's steps end, with equal
// results; and so they do where ranks are devices of one process, with a thread each or with one
// for all, which makes calls alike on all. Rules that count a tensor's calls and those of pairs are
// native in a graph, so that all ranks have to capture the same calls, and those of pairs want
// messages grouped alike.
TEST(OwnWays, EndAlikeUnderEveryShippedPolicy) {
    const std::string seed = std::to_string(test_seed());
    SCOPED_TRACE("repeat with SLIMWIRE_TEST_SEED=" + seed);
    const std::string ef21 =
        "version = 1\n[[rule]]\nname = \"sums\"\nmatch = { op = [\"allreduce\", \"reducescatter\"] "
        "}\ncodec = \"int4\"\nerror_feedback = \"ef21\"\n";
    std::vector<std::string> policies = shipped_policies();
    policies.emplace_back("ef21");
    for (const std::string& policy : policies) {
        for (int Case::*const kind : {&Case::ranks, &Case::threads, &Case::devices}) {
            Case of{.name = "own_ways",
                    .calls = 30,
                    .more =
                        "--compressible 100 --all-reduces 30 --min-count 33000 "
                        "--max-count 200000",
                    .slice_bytes = 65536,
                    .own_ways = 10};
            of.*kind = 4;
            SCOPED_TRACE(policy + (of.threads > 0   ? " of threads"
                                   : of.devices > 0 ? " of devices"
                                                    : ""));
            const TemporaryFolder folder;
            Job job = make_job(of, seed, folder);
            const bool counts =
                policy == "accordion" || policy == "dct-pipeline" || policy == "step-ahead";
            job.command.insert(job.command.end(), {"--graphs-alike", counts ? "1" : "0", "--alike",
                                                   policy == "dct-pipeline" ? "1" : "0"});
            job.preload = {SLIMWIRE_TEST_PRELOAD};
            job.environment["SLIMWIRE_REPORT"] = folder.file("reports/report.%r.%p");
            job.environment["SLIMWIRE_EMU_NODES"] = nodes_for(policy, 4);
            job.environment["SLIMWIRE_POLICY"] = policy == "ef21" ? ef21 : shortened_policy(policy);
            const std::vector<Ended> ranks = run_ranks(job);
            EXPECT_EQ(unless_all_exit(ranks), "");
            const bool warned = ranks[0].err.find("is native in a graph") != std::string::npos;
            EXPECT_TRUE(warned || policy != "accordion" || seed != "1" || of.devices > 0);
            // Short as they are, other seeds may miss a policy.
            const uint64_t calls =
                sum_keys(read_reports(folder.file("reports")), "calls", compressed);
            EXPECT_TRUE(calls > 0 || policy == "off" || seed != "1");
        }
    }
}

INSTANTIATE_TEST_SUITE_P(
    Calls,
    Determinism,
    testing::Values(Case{.name = "native", .calls = 150, .ranks = 2},
                    Case{.name = "int4_stochastic",
                         .calls = 150,
                         .ranks = 3,
                         .codec = "int4:block=64,rounding=stochastic"},
                    Case{.name = "int4", .calls = 150, .ranks = 3, .codec = "int4:block=64"}),
    name_of);

}  // namespace
}  // namespace slimwire::test
