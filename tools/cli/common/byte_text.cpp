#include "tools/cli/common/byte_text.h"

#include <fmt/core.h>

#include <array>

namespace slimwire::cli {

std::string format_bytes(double bytes) {
    constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    while (bytes >= 1024 && unit + 1 < kUnits.size()) {
        bytes /= 1024;
        ++unit;
    }
    return fmt::format("{:.4g} {}", bytes, kUnits[unit]);
}

}  // namespace slimwire::cli
