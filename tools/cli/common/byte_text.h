#pragma once

#include <string>

namespace slimwire::cli {

// "64 KiB", "1.5 GiB"; exact when it divides evenly.
[[nodiscard]] std::string format_bytes(double bytes);

}  // namespace slimwire::cli
