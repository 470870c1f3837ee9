// What the launcher (torchrun, mpirun, srun, `slimwire run`) said of this process, and its host.
// Read from the environment when asked; nothing is kept. A value that is not a whole number counts
// as absent.
#pragma once

#include <optional>
#include <string>

namespace slimwire {

using GetenvFunction = const char* (*)(const char*);
// std::getenv with that type.
[[nodiscard]] const char* process_getenv(const char* name) noexcept;

// Of the job; the variables are in launcher_names.h.
[[nodiscard]] std::optional<int> launcher_rank(GetenvFunction getenv_function = process_getenv);
[[nodiscard]] std::optional<int> launcher_size(GetenvFunction getenv_function = process_getenv);
// On this node, and of how many processes.
[[nodiscard]] std::optional<int> launcher_local_rank(
    GetenvFunction getenv_function = process_getenv);
[[nodiscard]] std::optional<int> launcher_local_size(
    GetenvFunction getenv_function = process_getenv);
[[nodiscard]] std::string host_name();

}  // namespace slimwire
