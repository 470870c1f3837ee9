// The SLIMWIRE_* variables as plain text for --help, made from collectives/policy/variables.def.
#pragma once

#include <string>

namespace slimwire::cli {

[[nodiscard]] std::string variables_help();

}  // namespace slimwire::cli
