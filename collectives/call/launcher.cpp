#include "collectives/call/launcher.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

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
    constexpr const char* kNames[] = {"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK",
                                      "PMIX_RANK"};
    return first_number(getenv_function, kNames);
}

std::optional<int> launcher_size(GetenvFunction getenv_function) {
    constexpr const char* kNames[] = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS",
                                      "PMI_SIZE"};
    return first_number(getenv_function, kNames);
}

std::optional<int> launcher_local_size(GetenvFunction getenv_function) {
    constexpr const char* kNames[] = {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
                                      "SLURM_NTASKS_PER_NODE", "MPI_LOCALNRANKS"};
    return first_number(getenv_function, kNames);
}

std::string host_name() {
    char name[256] = {};
    return ::gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "unknown";
}

}  // namespace slimwire
