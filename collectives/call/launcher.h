// What the launcher (torchrun, mpirun, srun, `slimwire run`) said of this process, its host, and
// how `slimwire run` hears of it. Read from the environment when asked; nothing is kept. A value
// that is not a whole number counts as absent.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>

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

// Which of the launcher's ranks a communicator has, as other numbers of ranks can have it: of a
// grid of `groups` of as many ranks each, in their order, every `stride`th one.
struct RankGroup {
    uint32_t number = 0;  // which such communicator of its ranks, from 1 on; 0: of other ranks
    uint32_t index = 0, groups = 1, stride = 1;

    // Of all ranks, or of some.
    [[nodiscard]] bool of_all() const noexcept { return number != 0 && groups == 1; }
    [[nodiscard]] bool of_some() const noexcept { return number != 0 && groups > 1; }
    [[nodiscard]] bool fits(int ranks) const noexcept {
        const auto all = static_cast<uint32_t>(ranks);
        return groups <= all && all % groups == 0 && groups % stride == 0;
    }
    // Whether it has the launcher's rank of so many, which it fits.
    [[nodiscard]] bool has(int rank, int ranks) const noexcept {
        const uint32_t block = stride * (static_cast<uint32_t>(ranks) / groups);
        const auto at = static_cast<uint32_t>(rank);
        return at % stride == index % stride && at / block == index / stride;
    }
    [[nodiscard]] auto order() const noexcept { return std::tuple(number, index, groups, stride); }
};
// That of the launcher's ranks of a communicator of `ranks`; of number 0 where there is no grid.
[[nodiscard]] RankGroup group_of(std::span<const int> members, int ranks) noexcept;

// How `slimwire run` learns that slimwire reached a process of its job: the name of a socket that
// the job inherits. Linux's abstract names: no file, gone with its owner.
inline constexpr char kRunSocketVariable[] = "SLIMWIRE_RUN_SOCKET";

// Sends a byte to the socket of that name, or, without `send`, asks whether it is there; never
// waits. False: nobody listens.
bool tell_run(const char* socket_name, bool send) noexcept;

}  // namespace slimwire
