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
            return "a time of 1ms or more, like 10ms or 2s";
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
            return "a whole number below 2^32";
        case VariableKind::kLink:
            return "rate or rate,latency, like 1gbit,50us";
        case VariableKind::kNodes:
            return "nodes x ranks, like 2x4";
        case VariableKind::kNetCodec:
            return "palette or off, also with ,checksum";
        case VariableKind::kRate:
            return "bits a second, like 10gbit or 250mbit";
        case VariableKind::kStateRing:
            return "a folder, also with ,every=STEPS, ,shards=flat, ,sums=mean or ,sums=fsdp and "
                   ",load=STEP, ,load=newest or ,load=none";
    }
    return "text";
}

const VariableInfo* find_variable(std::string_view name) noexcept {
    const VariableInfo* const found =
        std::find_if(std::begin(kVariables), std::end(kVariables),
                     [&](const VariableInfo& variable) { return name == variable.name; });
    return found == std::end(kVariables) ? nullptr : found;
}

}  // namespace slimwire
