// The SLIMWIRE_* variables as plain text for --help, made from collectives/policy/variables.def.
#pragma once

#include <string>

namespace slimwire::cli {

[[nodiscard]] std::string variables_help();

// "64 KiB", "1.5 GiB"; exact when it divides evenly.
[[nodiscard]] std::string format_bytes(double bytes);

}  // namespace slimwire::cli
