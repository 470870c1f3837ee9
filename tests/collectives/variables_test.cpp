// The table of variables: complete, unique, and the same as what README prints.
#include "collectives/variables.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "collectives/config.h"

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

TEST(Variables, readme_holds_the_reference) {
    const char* root = std::getenv("SOURCE_ROOT");
    ASSERT_NE(root, nullptr);
    std::ifstream file(std::string(root) + "/collectives/README.md");
    std::ostringstream text;
    text << file.rdbuf();
    EXPECT_NE(text.str().find(variables_markdown()), std::string::npos)
        << "collectives/README.md does not hold this table:\n"
        << variables_markdown();
}

}  // namespace
}  // namespace slimwire
