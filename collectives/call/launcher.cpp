#include "collectives/call/launcher.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "collectives/call/launcher_names.h"

namespace slimwire {
namespace {

template <size_t N>
std::optional<int> first_number(GetenvFunction getenv_function, const char* const (&names)[N]) {
    for (const char* name : names) {
        const char* const value = getenv_function(name);
        if (value == nullptr) {
            continue;
        }
        const std::string_view text(value);
        int number = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
        if (error == std::errc() && end == text.data() + text.size() && number >= 0) {
            return number;
        }
    }
    return std::nullopt;
}

}  // namespace

const char* process_getenv(const char* name) noexcept {
    return std::getenv(name);
}

std::optional<int> launcher_rank(GetenvFunction getenv_function) {
    return first_number(getenv_function, kRankNames);
}

std::optional<int> launcher_size(GetenvFunction getenv_function) {
    return first_number(getenv_function, kSizeNames);
}

std::optional<int> launcher_local_rank(GetenvFunction getenv_function) {
    return first_number(getenv_function, kLocalRankNames);
}

std::optional<int> launcher_local_size(GetenvFunction getenv_function) {
    return first_number(getenv_function, kLocalSizeNames);
}

std::string host_name() {
    char name[256] = {};
    return ::gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "unknown";
}

}  // namespace slimwire
