// The variables in which launchers say which process of a job this is: torchrun, Open MPI, PMI
// (MPICH, Intel MPI), PMIx, Slurm. The first that is a whole number counts. Slurm stands last: what
// another launcher starts inside of sbatch inherits the batch script's own SLURM_PROCID, 0.
// The emulator reads the same list.
#pragma once

namespace slimwire {

inline constexpr const char* kRankNames[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                             "PMIX_RANK", "SLURM_PROCID"};
inline constexpr const char* kSizeNames[] = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                             "SLURM_NTASKS"};
// On this node.
inline constexpr const char* kLocalRankNames[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                                                  "MPI_LOCALRANKID", "SLURM_LOCALID"};
inline constexpr const char* kLocalSizeNames[] = {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
                                                  "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"};

}  // namespace slimwire
