// What a communicator is for, as its name says: frameworks name theirs after the kind of
// parallelism ("DATA_PARALLEL_GROUP", "mesh_tp", "ep"). Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace slimwire {

enum class Role : uint8_t {
    kData,      // replicas of a model, or its shards (dp)
    kTensor,    // parts of each layer (tp)
    kPipeline,  // layers (pp)
    kExpert,    // experts of a layer (ep)
    kContext,   // parts of a sequence (cp)
};
inline constexpr int kRoleCount = 5;
[[nodiscard]] const char* role_name(Role role) noexcept;  // "dp", "tp", "pp", "ep", "cp"

// By the words of the name (runs of letters; case does not matter). Empty where none of them tells,
// or several tell different things; but the data or tensor parallel group of experts is just that,
// and so is the data parallel group with context.
[[nodiscard]] std::optional<Role> role_of(std::string_view name) noexcept;

}  // namespace slimwire
