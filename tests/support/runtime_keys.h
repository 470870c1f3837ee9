// Keys of the policy's [runtime] among the variables of a test's job, as "runtime.KEY".
#pragma once

#include <fstream>
#include <map>
#include <sstream>
#include <string>

namespace slimwire::test {

// Takes the keys out of `environment` and adds them to the policy that SLIMWIRE_POLICY names or
// holds, whose text the variable holds then. A file that cannot be read stays as it is.
inline void runtime_into_policy(std::map<std::string, std::string>* environment) {
    constexpr char kPrefix[] = "runtime.";
    std::string table;
    for (auto it = environment->begin(); it != environment->end();) {
        if (it->first.rfind(kPrefix, 0) == 0) {
            table += it->first.substr(sizeof kPrefix - 1) + " = \"" + it->second + "\"\n";
            it = environment->erase(it);
        } else {
            ++it;
        }
    }
    if (table.empty()) {
        return;
    }
    std::string& policy = (*environment)["SLIMWIRE_POLICY"];
    if (!policy.empty() && policy[0] != '[' && policy.find('\n') == std::string::npos) {
        std::ifstream file(policy);
        if (!file) {
            return;
        }
        std::ostringstream text;
        text << file.rdbuf();
        policy = text.str();
    }
    policy += (policy.empty() ? "" : "\n") + ("[runtime]\n" + table);
}

}  // namespace slimwire::test
