// The policies of tools/policies, as jobs of a second can run them.
#pragma once

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace slimwire::test {

// Names of the files, without their ending.
inline std::vector<std::string> shipped_policies() {
    std::vector<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(SLIMWIRE_TEST_POLICIES)) {
        if (entry.path().extension() == ".toml") {
            all.push_back(entry.path().stem());
        }
    }
    return all;
}

// One of them for messages of a test's size and jobs of its length, whose tensors no framework
// tells: all are matrices of 512 columns. Nothing is timed, so that jobs repeat.
inline std::string shortened_policy(const std::string& name) {
    std::ostringstream text;
    text << std::ifstream(std::string(SLIMWIRE_TEST_POLICIES) + "/" + name + ".toml").rdbuf();
    std::string policy =
        std::regex_replace(text.str(), std::regex("start_step = \\d+"), "start_step = 2");
    policy = std::regex_replace(policy, std::regex("min_bytes = .*"), "min_bytes = \"64KiB\"");
    policy = std::regex_replace(policy, std::regex("window = \\d+"), "window = 10");
    policy = std::regex_replace(policy, std::regex("fraction=0\\.001"), "fraction=0.01");
    policy = std::regex_replace(policy, std::regex("powersgd:rank=(\\d)"), "$&,row=512");
    return std::regex_replace(policy, std::regex("average_every = 100"), "average_every = 10");
}

// Where the ranks of a job are, so that the policy's rules take calls of all of them.
inline std::string nodes_for(const std::string& name, int ranks) {
    return name == "tensor-parallel" ? "1x" + std::to_string(ranks)
           : ranks == 4              ? "2x2"
                                     : std::to_string(ranks) + "x1";
}

}  // namespace slimwire::test
