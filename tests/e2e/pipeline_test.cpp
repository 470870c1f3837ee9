// Pipelines of stages: rules by direction, on both ends of every message alike
// (programs/pipeline.cpp).
#include <gtest/gtest.h>

#include <fstream>

#include "collectives/identity/message_pairing.h"
#include "tests/support/job.h"

namespace slimwire::test {
namespace {

constexpr uint64_t kFirst = MessagePairing::kUndirected;

struct Outcome {
    std::vector<Ended> ranks;
    std::vector<nlohmann::json> records;

    [[nodiscard]] uint64_t calls(const std::string& direction, const std::string& codec) const {
        return sum_keys(records, "calls", [&](const nlohmann::json& key) {
            return key.value("direction", "") == direction && key.at("codec") == codec;
        });
    }
};

Outcome run(const std::string& policy,
            const std::vector<std::string>& arguments,
            int ranks = 3,
            const std::string& mode = "on") {
    const TemporaryFolder folder, reports;
    std::ofstream(folder.file("policy.toml")) << "version = 1\n" << policy;
    std::vector<std::string> command = {SLIMWIRE_TEST_PIPELINE};
    command.insert(command.end(), arguments.begin(), arguments.end());
    Job job = slimwire_job(command, ranks, reports.path());
    job.environment["SLIMWIRE_POLICY"] = folder.file("policy.toml");
    job.environment["SLIMWIRE_MODE"] = mode;
    Outcome out{run_ranks(job), {}};
    EXPECT_EQ(unless_all_exit(out.ranks), "");
    out.records = read_reports(reports.path());
    return out;
}

TEST(Pipeline, RulesByDirection) {
    const std::string policy =
        "[[rule]]\nname = \"activations\"\ncodec = \"int8\"\n"
        "match = { op = [\"send\", \"recv\"], direction = \"forward\" }\n"
        "[[rule]]\nname = \"gradients\"\ncodec = \"bf16\"\n"
        "match = { op = [\"send\", \"recv\"], direction = [\"backward\"] }\n";
    for (const char* schedule : {"1f1b", "newest"}) {
        const Outcome found = run(policy, {schedule, "2", "5", "3000"});
        const uint64_t ends = 2 * 2;
        EXPECT_EQ(found.calls("forward", "int8"), ends * (10 - kFirst));
        EXPECT_EQ(found.calls("backward", "bf16"), ends * (10 - kFirst));
        EXPECT_EQ(found.calls("", "native"), 2 * ends * kFirst);
    }
    const Outcome shadow = run(policy, {"1f1b", "2", "5", "3000"}, 2, "shadow");
    EXPECT_EQ(sum_keys(shadow.records, "calls",
                       [](const nlohmann::json& key) {
                           return key.value("direction", "") == "forward" &&
                                  key.value("shadow_codec", "") == "int8";
                       }),
              2 * (10 - kFirst));
}

}  // namespace
}  // namespace slimwire::test
