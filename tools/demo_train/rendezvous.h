// How the ranks find each other before NCCL can: rank 0 listens on MASTER_ADDR:MASTER_PORT and
// hands every other rank the same block of bytes (NCCL's unique id); used by the worker of
// `slimwire bench collective`, too. The variables are the ones launchers of data-parallel jobs set.
// Blocking calls with a deadline, one thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>

namespace demo {

struct World {
    int rank = 0;
    int size = 1;
    int local_rank = 0;
    std::string master_address = "127.0.0.1";
    std::string master_port = "29400";
    // Rank 0 listens on all addresses of its host, whose name may lead there to others than it does
    // elsewhere.
    bool on_every_address = false;
};

// From RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT; without RANK and WORLD_SIZE the
// world is one rank. Throws TrainError naming the variable and what it accepts.
World world_from_environment();

// Rank 0 sends `block`, the others receive it. Throws TrainError after `timeout`, naming address,
// port and how many ranks came. A connection that does not greet as one of our ranks is dropped.
void exchange_from_rank0(const World& world,
                         std::span<std::byte> block,
                         std::chrono::milliseconds timeout);

}  // namespace demo
