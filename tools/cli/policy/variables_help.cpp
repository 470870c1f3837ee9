#include "tools/cli/policy/variables_help.h"

#include <fmt/core.h>

#include <array>
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

std::string format_bytes(double bytes) {
    constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    while (bytes >= 1024 && unit + 1 < kUnits.size()) {
        bytes /= 1024;
        ++unit;
    }
    return fmt::format("{:.4g} {}", bytes, kUnits[unit]);
}

}  // namespace slimwire::cli
