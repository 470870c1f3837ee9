// Bootstrap: how the ranks of a communicator find each other. ncclGetUniqueId opens a listener with
// a thread behind it, the root; its random token and address are the id (NCCL's layout: 8 bytes
// token, 28 bytes socket address, the rest zero and never read here). Every rank joins at the root
// with the address of its own listener; when all have come, each is told about all.
//
// Callers: the API (make_unique_id) and mesh.cpp (join_at_root). Thread contract: any thread.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <vector>

#include "codecs/base/status.h"
#include "tools/emulator/nccl/bootstrap/sockets.h"

namespace slimwire::emu {

// What the members of a communicator know about one of them.
struct RankInfo {
    SocketAddress address;  // of its listener
    int32_t node;
    int32_t device;
    int32_t chunk_bytes;  // how it would cut large messages
    uint64_t process;     // random number of its process
};

struct Membership {
    uint64_t token = 0;  // of this communicator, known to its members only
    std::vector<RankInfo> ranks;
};

Status make_unique_id(ncclUniqueId* out);

// The token in an id: names the job where the environment does not.
[[nodiscard]] uint64_t unique_id_token(const ncclUniqueId& id) noexcept;

// Blocks until all ranks have joined; fails when a rank disappears before, when ranks disagree
// about their number, or when the root is gone.
Result<Membership> join_at_root(const ncclUniqueId& id, int nranks, int rank, const RankInfo& self);

}  // namespace slimwire::emu
