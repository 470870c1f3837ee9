// Nothing that slimwire does in a call waits on the host: programs/ahead.cpp, in which a call that
// waited would hang, end the process (SLIMWIRE_EMU_STRICT=calls) or be counted (host_waits), under
// every policy of tools/policies and a rule for each algorithm and for all that keeps state. With
// TEST_AHEAD=all each runs on two, three and four ranks, also two a node:
//   TEST_AHEAD=all build/tests/e2e/e2e_tests --gtest_filter='*Ahead*'
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/e2e/shipped_policies.h"
#include "tests/support/job.h"

namespace slimwire::test {
namespace {

struct Rule {
    const char* name;
    const char* action;
    const char* ops = R"("allreduce")";
};
constexpr Rule kRules[] = {
    {"two_shot", R"(codec = "int8"
algorithm = "two_shot")",
     R"("allreduce", "reducescatter")"},
    {"direct", R"(codec = "int8:block=64")", R"("allgather", "send", "recv")"},
    {"gather", R"(codec = "int4"
algorithm = "gather")"},
    {"summable", R"(codec = "randomk:fraction=0.1"
algorithm = "summable")"},
    {"hierarchical", R"(codec = "int8"
algorithm = "hierarchical")"},
    {"sparse", R"(codec = "topk:fraction=0.05"
error_feedback = "ef14")"},
    {"drawn", R"(codec = "int4:rounding=stochastic"
error_feedback = "ema"
residual = "int8")",
     R"("allreduce", "reducescatter")"},
    {"estimates", R"(codec = "int4"
error_feedback = "ef21")"},
    {"factors", R"(codec = "powersgd:rank=2,row=100"
error_feedback = "ef14")"},
    {"accordion", R"(codec = "topk:fraction=0.05"
error_feedback = "ef14"
accordion = { low = "topk:fraction=0.2", window = 2 })"},
    {"averaging", R"(codec = "int4"
error_feedback = "ef14"
average_every = 3)"},
};

struct Case {
    std::string name, policy;
    friend void PrintTo(const Case& of, std::ostream* out) { *out << of.name; }
};

std::vector<Case> cases() {
    std::vector<Case> all;
    for (const std::string& name : shipped_policies()) {
        all.push_back(
            {"shipped_" + std::regex_replace(name, std::regex("-"), "_"), shortened_policy(name)});
    }
    for (const Rule& rule : kRules) {
        all.push_back({rule.name, "version = 1\n[[rule]]\nname = \"r\"\nmatch = { op = [" +
                                      std::string(rule.ops) + "] }\n" + rule.action + "\n"});
    }
    return all;
}

class Ahead : public testing::TestWithParam<Case> {
  protected:
    void run(int ranks, const char* nodes) {
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
    }
};

TEST_P(Ahead, NoCallWaits) {
    run(2, "2x1");
    if (std::getenv("TEST_AHEAD") != nullptr) {
        run(3, "3x1");
        run(4, "2x2");
    }
}

INSTANTIATE_TEST_SUITE_P(Policies, Ahead, testing::ValuesIn(cases()), [](const auto& info) {
    return info.param.name;
});

}  // namespace
}  // namespace slimwire::test
