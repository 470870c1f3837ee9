#include "tools/cli/run/variables_help.h"

#include <fmt/core.h>

#include <sstream>

#include "collectives/policy/variables.h"

namespace slimwire::cli {
namespace {

constexpr size_t kColumns = 96;

std::string wrapped(const std::string& text, const std::string& indent) {
    std::string out;
    std::string line = indent;
    std::istringstream words(text);
    for (std::string word; words >> word;) {
        if (line.size() > indent.size() && line.size() + 1 + word.size() > kColumns) {
            out += line + '\n';
            line = indent;
        }
        line += (line.size() > indent.size() ? " " : "") + word;
    }
    return out + line + '\n';
}

}  // namespace

std::string variables_help() {
    std::string out = "Environment variables (options win over them):\n";
    for (const VariableInfo& variable : kVariables) {
        out += fmt::format("  {}: {}{}\n", variable.name, accepted_values(variable.kind),
                           *variable.default_text != '\0'
                               ? fmt::format("; default {}", variable.default_text)
                               : std::string());
        out += wrapped(variable.reason, "      ");
    }
    return out;
}

}  // namespace slimwire::cli
