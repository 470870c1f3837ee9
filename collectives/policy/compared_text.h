// What ranks compare of their configurations, for people: the error of ranks that differ names the
// setting and both values.
#pragma once

#include <string>

#include "collectives/policy/config.h"

namespace slimwire {

// All that Config::hash is of: a line of settings, then one for each rule that is not off, "rule
// 'grads': codec=int8 ...", in words KEY=VALUE.
[[nodiscard]] std::string compared_text(const Config& config);

}  // namespace slimwire
