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

// RANK, else OMPI_COMM_WORLD_RANK, SLURM_PROCID, PMI_RANK, PMIX_RANK.
[[nodiscard]] std::optional<int> launcher_rank(GetenvFunction getenv_function = process_getenv);
// WORLD_SIZE, else OMPI_COMM_WORLD_SIZE, SLURM_NTASKS, PMI_SIZE.
[[nodiscard]] std::optional<int> launcher_size(GetenvFunction getenv_function = process_getenv);
// Processes on this node: LOCAL_WORLD_SIZE, else OMPI_COMM_WORLD_LOCAL_SIZE, SLURM_NTASKS_PER_NODE,
// MPI_LOCALNRANKS.
[[nodiscard]] std::optional<int> launcher_local_size(
    GetenvFunction getenv_function = process_getenv);
[[nodiscard]] std::string host_name();

}  // namespace slimwire
