#include "collectives/policy/role.h"

#include <array>
#include <cctype>

namespace slimwire {
namespace {

struct Word {
    std::string_view word;
    Role role;
};
constexpr Word kWords[] = {
    {"dp", Role::kData},        {"ddp", Role::kData},          {"fsdp", Role::kData},
    {"hsdp", Role::kData},      {"zero", Role::kData},         {"data", Role::kData},
    {"replicate", Role::kData}, {"shard", Role::kData},        {"edp", Role::kData},
    {"tp", Role::kTensor},      {"tensor", Role::kTensor},     {"mp", Role::kTensor},
    {"etp", Role::kTensor},     {"sp", Role::kTensor},         {"pp", Role::kPipeline},
    {"pipe", Role::kPipeline},  {"pipeline", Role::kPipeline}, {"ep", Role::kExpert},
    {"expert", Role::kExpert},  {"experts", Role::kExpert},    {"moe", Role::kExpert},
    {"cp", Role::kContext},     {"context", Role::kContext},
};

}  // namespace

const char* role_name(Role role) noexcept {
    constexpr std::array<const char*, kRoleCount> kNames = {"dp", "tp", "pp", "ep", "cp"};
    return kNames[static_cast<size_t>(role)];
}

std::optional<Role> role_of(std::string_view name) noexcept {
    uint32_t said = 0;
    const auto bit = [](Role role) { return 1u << static_cast<unsigned>(role); };
    for (size_t at = 0; at < name.size();) {
        size_t end = at;
        while (end < name.size() && std::isalpha(static_cast<unsigned char>(name[end])) != 0) {
            ++end;
        }
        for (const Word& known : kWords) {
            bool same = known.word.size() == end - at;
            for (size_t i = 0; same && i < known.word.size(); ++i) {
                same = std::tolower(static_cast<unsigned char>(name[at + i])) == known.word[i];
            }
            said |= same ? bit(known.role) : 0;
        }
        at = end + 1;
    }
    if (said == (bit(Role::kExpert) | bit(Role::kTensor))) {
        said = bit(Role::kTensor);
    }
    if (said == (bit(Role::kData) | bit(Role::kExpert)) ||
        said == (bit(Role::kData) | bit(Role::kContext))) {
        said = bit(Role::kData);
    }
    for (int role = 0; role < kRoleCount; ++role) {
        if (said == bit(static_cast<Role>(role))) {
            return static_cast<Role>(role);
        }
    }
    return std::nullopt;
}

}  // namespace slimwire
