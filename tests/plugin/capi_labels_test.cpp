// Names that a program gave to its buffers reach the report: where all calls of a kind carry one.
// One process, two emulated devices.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "plugin/capi/slimwire.h"
#include "tests/plugin/several_devices.h"

namespace {

constexpr size_t kCount = 4096;

class Labels : public slimwire::test::TwoDevices {
  protected:
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n[[rule]]\nname = \"sums\"\nmatch = { bytes = \"4KiB..\" }\n"
            "codec = \"int8\"\n");
        ask_for_report();
    }
    Labels() : TwoDevices(kCount) {}

    // What the report calls the sums of so many elements, by rank.
    static std::map<int, std::string> names(size_t count) {
        std::map<int, std::string> names;
        for (const nlohmann::json& json : report()) {
            if (json.at("record") == "key" && json.at("count") == count) {
                names[json.at("rank")] = json.value("name", "-");
            }
        }
        return names;
    }
};

TEST_F(Labels, OneNameForAllCallsOfAKindIsReported) {
    ASSERT_EQ(slimwire_version(), 100);
    ASSERT_EQ(slimwire_name_tensor(recv_[0], kCount * sizeof(float), "whole"), SLIMWIRE_OK);
    ASSERT_EQ(slimwire_last_error(), std::string());
    // Only the sent buffer has a name here.
    ASSERT_EQ(slimwire_name_tensor(send_[1], kCount * sizeof(float), "given"), SLIMWIRE_OK);
    (void)sum(Values(kCount, 1.0f));
    (void)sum(Values(10, 1.0f));  // native
    (void)sum(Values(kCount / 2, 1.0f));
    ASSERT_EQ(slimwire_name_tensor(recv_[0], kCount * sizeof(float), "another"), SLIMWIRE_OK);
    (void)sum(Values(kCount / 2, 1.0f));
    ASSERT_EQ(slimwire_forget_tensor(recv_[0]), SLIMWIRE_OK);
    ASSERT_EQ(slimwire_forget_tensor(send_[1]), SLIMWIRE_OK);
    (void)sum(Values(kCount / 4, 1.0f));
    TearDown();
    SetUp();
    using Names = std::map<int, std::string>;
    EXPECT_EQ(names(kCount), (Names{{0, "whole"}, {1, "given"}}));
    EXPECT_EQ(names(10), (Names{{0, "whole"}, {1, "given"}}));
    EXPECT_EQ(names(kCount / 2), (Names{{0, "-"}, {1, "given"}}));
    EXPECT_EQ(names(kCount / 4), (Names{{0, "-"}, {1, "-"}}));
}

}  // namespace
