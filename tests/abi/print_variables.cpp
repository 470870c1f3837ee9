// Prints the reference of the SLIMWIRE_* variables and of the keys of [runtime] as
// collectives/policy/VARIABLES.md holds it. Run by documents_test.py.
#include <cstdio>
#include <string>

#include "collectives/policy/variables.h"

namespace {

using namespace slimwire;

std::string variables_markdown() {
    constexpr struct {
        VariableReader reader;
        const char* heading;
    } kParts[] = {
        {VariableReader::kLibrary, "Read by the library:"},
        {VariableReader::kNet, "Read by the net plugin (plugin/net):"},
        {VariableReader::kTools, "Read by the `slimwire` command:"},
        {VariableReader::kEmulator, "Read by the emulator:"},
        {VariableReader::kTests, "Read by the tests:"},
    };
    std::string out;
    const auto add = [&out](const VariableInfo& variable, const char* ranks) {
        const bool has_default = variable.default_text[0] != '\0';
        out += std::string("| `") + variable.name + "` | " + accepted_values(variable.kind) +
               " | " + (has_default ? "`" + std::string(variable.default_text) + "`" : "") + " | " +
               ranks + variable.reason + " |\n";
    };
    for (const auto& part : kParts) {
        out += std::string(part.heading) +
               "\n\n| variable | values | default | equal on all ranks | why it exists |\n"
               "|---|---|---|---|---|\n";
        for (const VariableInfo& variable : kVariables) {
            if (variable.reader == part.reader) {
                add(variable, variable.effect == VariableEffect::kNone ? "no | " : "yes | ");
            }
        }
        out += "\n";
    }
    out +=
        "Keys of a policy's table `[runtime]`, of which `slice_bytes` is compared between ranks:"
        "\n\n| key | values | default | why it exists |\n|---|---|---|---|\n";
    for (const VariableInfo& key : kRuntimeKeys) {
        add(key, "");
    }
    return out;
}

}  // namespace

int main() {
    return std::fputs(variables_markdown().c_str(), stdout) < 0 ? 1 : 0;
}
