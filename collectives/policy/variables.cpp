#include "collectives/policy/variables.h"

#include <algorithm>

namespace slimwire {

const char* accepted_values(VariableKind kind) noexcept {
    switch (kind) {
        case VariableKind::kMode:
            return "off, record, shadow, on";
        case VariableKind::kPath:
            return "a path";
        case VariableKind::kCodec:
            return "a codec like int4:block=64, or native";
        case VariableKind::kErrorFeedback:
            return "none, ef14, ema, ef21";
        case VariableKind::kBytes:
            return "bytes, like 65536 or 64KiB";
        case VariableKind::kBytesOrAuto:
            return "bytes, like 65536 or 64KiB, or auto";
        case VariableKind::kDuration:
            return "a time, like 50us, 10ms or 2s";
        case VariableKind::kRuleList:
            return "names of rules, separated by commas";
        case VariableKind::kPattern:
            return "a path with %h, %r, %p, %%";
        case VariableKind::kLogLevel:
            return "error, warn, info, debug";
        case VariableKind::kText:
            return "text";
        case VariableKind::kBool:
            return "1, 0, on, off, true, false, yes, no";
        case VariableKind::kInteger:
            return "a whole number";
        case VariableKind::kLink:
            return "rate or rate,latency, like 1gbit,50us";
        case VariableKind::kNodes:
            return "nodes x ranks, like 2x4";
        case VariableKind::kNetCodec:
            return "palette or off, also with ,checksum";
        case VariableKind::kRate:
            return "bits a second, like 10gbit or 250mbit";
        case VariableKind::kStateRing:
            return "a folder, also with ,every=STEPS and ,load=STEP, ,load=newest or ,load=none";
    }
    return "text";
}

const VariableInfo* find_variable(std::string_view name) noexcept {
    const VariableInfo* const found =
        std::find_if(std::begin(kVariables), std::end(kVariables),
                     [&](const VariableInfo& variable) { return name == variable.name; });
    return found == std::end(kVariables) ? nullptr : found;
}

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

}  // namespace slimwire
