#include "collectives/policy/variables.h"

#include <algorithm>

namespace slimwire {

const char* accepted_values(VariableKind kind) noexcept {
    // In the order of the enumeration.
    constexpr const char* kAccepted[] = {
        "off, record, shadow, on",
        "a path",
        "a codec like int4:block=64, or native",
        "none, ef14, ema, ef21",
        "bytes, like 65536 or 64KiB",
        "bytes, like 65536 or 64KiB, or auto",
        "a time of 1ms or more, like 10ms or 2s",
        "names of rules, separated by commas",
        "a path with %h, %r, %p, %%",
        "error, warn, info, debug",
        "text",
        "1, 0, on, off, true, false, yes, no",
        "a whole number below 2^32",
        "rate or rate,latency, like 1gbit,50us",
        "nodes x ranks, like 2x4",
        "palette or off, also with ,checksum",
        "bits a second, like 10gbit or 250mbit",
        "a folder, also with ,every=STEPS, ,shards=flat, ,sums=mean or ,sums=fsdp and "
        ",load=STEP, ,load=newest or ,load=none",
    };
    static_assert(std::size(kAccepted) == static_cast<size_t>(VariableKind::kStateRing) + 1);
    return kAccepted[static_cast<size_t>(kind)];
}

const VariableInfo* find_variable(std::string_view name) noexcept {
    const VariableInfo* const found =
        std::find_if(std::begin(kVariables), std::end(kVariables),
                     [&](const VariableInfo& variable) { return name == variable.name; });
    return found == std::end(kVariables) ? nullptr : found;
}

}  // namespace slimwire
