// Whether a communicator stays inside one machine. Stands alone because policies, plans and reports
// all speak of it.
#pragma once

#include <cstdint>

namespace slimwire {

// Where the ranks of a communicator sit.
enum class Scope : uint8_t { kIntraNode, kInterNode };
inline constexpr int kScopeCount = 2;

[[nodiscard]] const char* scope_name(Scope scope) noexcept;  // "intra_node", "inter_node"

}  // namespace slimwire
