// The table of variables: unique, ours, and read as it says. The copy in VARIABLES.md is checked by
// abi.variables_page.
#include "collectives/policy/variables.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "collectives/policy/config.h"

namespace slimwire {
namespace {

TEST(Variables, names_are_unique_and_ours) {
    std::set<std::string> seen;
    for (const VariableInfo& variable : kVariables) {
        EXPECT_TRUE(seen.insert(variable.name).second) << variable.name;
        EXPECT_EQ(std::string(variable.name).rfind("SLIMWIRE_", 0), 0u) << variable.name;
        EXPECT_EQ(find_variable(variable.name), &variable);
        EXPECT_EQ(std::string(variable.reason).find('|'), std::string::npos) << variable.name;
        EXPECT_GT(std::string(variable.reason).size(), 20u) << variable.name;
    }
    EXPECT_EQ(find_variable("SLIMWIRE_NOTHING"), nullptr);
}

// A default that its own reader would refuse would make every start fail.
TEST(Variables, every_default_is_an_accepted_value) {
    const auto config = load_config([](const char* name) -> const char* {
        const VariableInfo* variable = find_variable(name);
        const bool alone = variable != nullptr && variable->effect != VariableEffect::kPolicy;
        return alone ? variable->default_text : nullptr;
    });
    EXPECT_TRUE(config.ok()) << config.status().message();
}

// A variable that some program reads but the table lacks would make every job refuse to start.
TEST(Variables, whatever_our_sources_read_is_in_the_table) {
    const char* root = std::getenv("SOURCE_ROOT");
    ASSERT_NE(root, nullptr);
    const std::regex reads(
        R"re((?:getenv|envname)\("(SLIMWIRE_[A-Z_]+)"|\$\{?(SLIMWIRE_[A-Z_]+))re");
    namespace fs = std::filesystem;
    std::set<std::string> seen;
    for (const char* room : {"codecs", "collectives", "plugin", "tools", "tests", ".ci"}) {
        if (!fs::exists(fs::path(root) / room)) {
            continue;
        }
        for (const auto& entry : fs::recursive_directory_iterator(fs::path(root) / room)) {
            if (!entry.is_regular_file() || entry.file_size() > 1 << 20) {
                continue;
            }
            std::ifstream file(entry.path());
            for (std::string line; std::getline(file, line);) {
                if (line.find("SLIMWIRE_") == std::string::npos) {
                    continue;
                }
                for (std::sregex_iterator hit(line.begin(), line.end(), reads), end; hit != end;
                     ++hit) {
                    const std::string name = (*hit)[1].matched ? (*hit)[1] : (*hit)[2];
                    EXPECT_NE(find_variable(name), nullptr) << name << " in " << entry.path();
                    seen.insert(name);
                }
            }
        }
    }
    EXPECT_TRUE(seen.count("SLIMWIRE_EMU_DEVICES") == 1 && seen.count("SLIMWIRE_TEST_SEED") == 1)
        << "the search finds nothing";
}

}  // namespace
}  // namespace slimwire
