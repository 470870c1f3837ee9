// What ranks tell each other of where they sit: every rank reports the same links of the
// communicator. One process, four emulated devices on two nodes, each the GPU of its number in a
// recorded machine.
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tests/plugin/several_devices.h"

namespace {

class CommLinks : public slimwire::test::SeveralDevices<4> {
  protected:
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n[[rule]]\nname = \"sums\"\nmatch = { op = \"allreduce\" }\n"
            "codec = \"int8\"\n");
        ask_for_report();
    }
    CommLinks() : SeveralDevices(4096) {}
};

TEST_P(CommLinks, EqualOnAllRanks) {
    renew_communicators();
    std::set<nlohmann::json> links;
    std::set<int> told;
    for (const nlohmann::json& record : report()) {
        if (record.at("record") == "comm") {
            links.insert(record.at("links"));
            told.insert(record.at("rank").get<int>());
        }
    }
    EXPECT_EQ(told.size(), 4u);
    ASSERT_EQ(links.size(), 1u);
    const char* expected = std::getenv("EXPECTED_LINKS");
    ASSERT_NE(expected, nullptr);
    EXPECT_EQ(*links.begin(), nlohmann::json::parse(expected));
}

INSTANTIATE_TEST_SUITE_P(Ranks, CommLinks, testing::Values(4), [](const auto& info) {
    return "ranks" + std::to_string(info.param);
});

}  // namespace
