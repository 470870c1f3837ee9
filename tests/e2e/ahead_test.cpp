// Nothing that slimwire does in a call waits on the host: programs/ahead.cpp, in which a call that
// waited would hang, end the process (SLIMWIRE_EMU_STRICT=calls) or be counted (host_waits), under
// every policy of tools/policies, by each algorithm that it leaves open, and a rule for all else
// that keeps state. Each compresses calls. With TEST_AHEAD=all each runs on two, three and four
// ranks, also two a node:
//   TEST_AHEAD=all build/tests/e2e/e2e_tests --gtest_filter='*Ahead*'
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "tests/e2e/shipped_policies.h"
#include "tests/support/has.h"
#include "tests/support/job.h"
#include "tests/support/seed.h"

namespace slimwire::test {
namespace {

struct Rule {
    const char* name;
    const char* action;
    const char* ops = R"("allreduce")";
};
constexpr Rule kRules[] = {
    {"direct", R"(codec = "int8:block=64")", R"("allgather", "send", "recv")"},
    {"summable", R"(codec = "randomk:fraction=0.1"
algorithm = "summable")"},
    {"drawn", R"(codec = "int4:rounding=stochastic"
error_feedback = "ema"
residual = "int8")",
     R"("allreduce", "reducescatter")"},
    {"estimates", R"(codec = "int4"
error_feedback = "ef21")"},
    {"accordion", R"(codec = "topk:fraction=0.05"
error_feedback = "ef14"
accordion = { low = "topk:fraction=0.2", window = 2 })"},
    {"averaging", R"(codec = "int4"
error_feedback = "ef14"
average_every = 3)"},
};

// The algorithms that a policy leaves open, where it does.
struct Open {
    const char* policy;
    std::vector<const char*> algorithms;
};
const Open kOpen[] = {
    {"auto", {"two_shot", "gather", "direct", "hierarchical"}},
    {"bf16", {"two_shot", "gather", "hierarchical"}},
    {"by-size", {"two_shot", "gather", "hierarchical"}},
    {"dct", {"sparse", "gather", "direct", "hierarchical"}},
    {"int4-ef14", {"two_shot", "gather", "hierarchical"}},
    {"int8", {"two_shot", "gather", "hierarchical"}},
    {"sharded-int4", {"direct", "hierarchical"}},
    {"sharded-weights", {"two_shot", "gather", "direct", "hierarchical"}},
    {"tensor-parallel", {"two_shot", "gather", "direct"}},
};

struct Case {
    std::string name, policy, nodes_of = {}, algorithm = {};
    friend void PrintTo(const Case& of, std::ostream* out) { *out << of.name; }
};

std::vector<Case> cases() {
    std::vector<Case> all;
    const auto word = [](const std::string& name) {
        return std::regex_replace(name, std::regex("-"), "_");
    };
    for (const std::string& name : shipped_policies()) {
        all.push_back({"shipped_" + word(name), shortened_policy(name), name});
    }
    for (const Open& open : kOpen) {
        for (const std::string algorithm : open.algorithms) {
            all.push_back(
                {word(open.policy) + "_by_" + algorithm,
                 std::regex_replace(shortened_policy(open.policy), std::regex("\ncodec = .*"),
                                    "$&\nalgorithm = \"" + algorithm + "\""),
                 open.policy, algorithm});
        }
    }
    for (const Rule& rule : kRules) {
        all.push_back({rule.name, "version = 1\n[[rule]]\nname = \"r\"\nmatch = { op = [" +
                                      std::string(rule.ops) + "] }\n" + rule.action + "\n"});
    }
    return all;
}

class Ahead : public testing::TestWithParam<Case> {
  protected:
    void run(int ranks) {
        const std::string nodes = nodes_for(GetParam().nodes_of, ranks);
        SCOPED_TRACE(std::to_string(ranks) + " ranks on nodes " + nodes);
        const TemporaryFolder reports, policy;
        Job job = slimwire_job({SLIMWIRE_TEST_AHEAD}, ranks, reports.path());
        std::ofstream(policy.file("policy.toml")) << GetParam().policy;
        job.environment["SLIMWIRE_POLICY"] = policy.file("policy.toml");
        job.environment["SLIMWIRE_EMU_NODES"] = nodes;
        job.limit_s = 120;
        const std::vector<Ended> ended = run_ranks(job);
        ASSERT_EQ(unless_all_exit(ended), "");
        for (const Ended& rank : ended) {
            EXPECT_EQ(rank.out, ended[0].out) << "replicas differ";
        }
        uint64_t communicators = 0;
        for (const nlohmann::json& record : read_reports(reports.path())) {
            if (record.at("record") == "comm") {
                ++communicators;
                EXPECT_EQ(record.at("host_waits"), 0u) << record.dump();
            }
        }
        const bool off = GetParam().name == "shipped_off";  // reports nothing
        EXPECT_EQ(communicators, off ? 0u : 2u * static_cast<unsigned>(ranks));
        const auto asked = [](const auto& key) {
            return GetParam().algorithm.empty() ? compressed(key)
                                                : key.at("algorithm") == GetParam().algorithm;
        };
        EXPECT_EQ(sum_keys(read_reports(reports.path()), "calls", asked) > 0, !off);
    }
};

TEST_P(Ahead, NoCallWaits) {
    run(2);
    if (std::getenv("TEST_AHEAD") != nullptr) {
        run(3);
        run(4);
    }
}

// What it gathers first is known only behind what the others do later.
TEST(AheadWithoutMarks, AJobThatComesBackWaitsForNothing) {
    const TemporaryFolder folder, before, reports;
    const std::string policy = folder.file("policy.toml");
    std::ofstream(policy) << "version = 1\n[[rule]]\nname = \"r\"\nmatch = { op = "
                             "\"reducescatter\" }\ncodec = \"int4\"\nerror_feedback = \"ef21\"\n";
    const auto run = [&](const char* from, const char* to, const std::string& reports_to,
                         const std::string& fault = "") {
        Job job = slimwire_job({SLIMWIRE_TEST_AHEAD, from, to}, 2, reports_to);
        if (!fault.empty()) {
            job.of_rank[1]["SLIMWIRE_EMU_FAULT"] = fault;
            let_calls_wait(&job, "what takes the place of pinned memory waits");
        }
        job.environment["SLIMWIRE_POLICY"] = policy;
        job.environment["SLIMWIRE_STATE"] = folder.file("state") + ",every=12";
        job.environment["SLIMWIRE_LOG"] = "info";
        job.limit_s = 60;
        const std::vector<Ended> ended = run_ranks(job);
        EXPECT_EQ(unless_all_exit(ended), "");
        return ended;
    };
    (void)run("0", "14", before.path());
    for (const Ended& rank : run("12", "18", reports.path())) {
        EXPECT_HAS(rank.err, "the job begins with the weights of step 12");
    }
    for (const std::string& job : {before.path(), reports.path()}) {
        for (const nlohmann::json& record : read_reports(job)) {
            EXPECT_EQ(record.value("host_waits", 0u), 0u) << record.dump();
        }
    }
    // Of its six steps the last three.
    EXPECT_EQ(sum_keys(read_reports(reports.path()), "calls", compressed), 2u * 3u);
    // Where one rank does not get what it makes, both go on alike.
    std::mt19937_64 random(test_seed());
    const char* const asked = std::getenv("TEST_FAULTS");
    const bool every = asked != nullptr && std::string(asked) == "all";
    for (const std::string made : {"cudaEventCreateWithFlags", "cudaMallocFromPoolAsync"}) {
        const TemporaryFolder faulted;
        const std::string plan = "cudaGetDriverEntryPointByVersion:1+," + made + ":";
        const std::string all = run("12", "18", faulted.path(), plan + "1+=1us")[1].err;
        uint64_t calls = 0;
        for (size_t at = 0; (at = all.find(made + " call ", at) + 1) != 0;) {
            ++calls;
        }
        ASSERT_GT(calls, 0u);
        const uint64_t first = every ? 1 : 1 + random() % calls;
        for (uint64_t call = first; call <= (every ? calls : first); ++call) {
            SCOPED_TRACE(made + " " + std::to_string(call));
            const TemporaryFolder told;
            (void)run("12", "18", told.path(), plan + std::to_string(call));
            EXPECT_EQ(sum_keys(read_reports(told.path()), "calls", compressed) % 2, 0u);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Policies, Ahead, testing::ValuesIn(cases()), [](const auto& info) {
    return info.param.name;
});

}  // namespace
}  // namespace slimwire::test
