// One direction between two ranks of a communicator, opened when first used: the receiving side
// sends a handle over the mesh, the sending side connects when the handle has come. Nothing blocks.
// shared_link.h is the emulator's own network, staged_link.h goes over a plugin.
//
// Callers: ring.cpp and p2p.cpp. Thread contract: one thread at a time, the one that runs the
// communicator's job; also the end of a link, from a thread that has made sure that no job runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "codecs/base/emulator_abi.h"
#include "codecs/base/status.h"
#include "tools/emulator/nccl/bootstrap/protocol.h"
#include "tools/emulator/nccl/execution/task.h"
#include "tools/emulator/nccl/transport/mesh.h"

namespace slimwire::emu {

// Collectives and send/recv have links of their own, so their messages cannot be mixed up.
enum class Channel : uint8_t { kCollective = 0, kPointToPoint = 1 };

// The members of a communicator as its transport sees them.
struct Members {
    std::shared_ptr<Mesh> mesh;
    std::vector<int> mesh_ranks;  // by rank in the communicator
    int rank = 0;
    uint64_t comm = 0;  // the communicator's name on the mesh

    [[nodiscard]] int size() const noexcept { return static_cast<int>(mesh_ranks.size()); }
    [[nodiscard]] int mesh_rank(int rank) const { return mesh_ranks[static_cast<size_t>(rank)]; }
    [[nodiscard]] const RankInfo& info(int rank) const { return mesh->info(mesh_rank(rank)); }
};

// The messages that one task moves over one link: what NCCL calls a proxy operation.
struct WireOperation {
    Protocol protocol = Protocol::kSimple;
    int function = 0;  // ncclFunc_t
    size_t bytes = 0;  // of data, in all

    static WireOperation of(const Task& task, size_t bytes) noexcept {
        return {task.protocol, static_cast<int>(task_function(task.kind).number), bytes};
    }
};

// A message in flight, as staged links need it.
struct Transfer {
    void* request = nullptr;  // null: the network is done with it
    Protocol protocol = Protocol::kSimple;
    unsigned char* data = nullptr;  // where it goes
    size_t bytes = 0;               // of data
    size_t lines = 0;               // with flags, that have come
    uint64_t number = 0;            // in its pool
    bool delivered = false;
    size_t arrived = 0;  // bytes, as the network says
};

class Link {
  public:
    Link(const Members& members, int peer, Channel channel, bool sending, bool inter_node)
        : members_(members),
          peer_(peer),
          channel_(channel),
          sending_(sending),
          inter_node_(inter_node) {}
    virtual ~Link() = default;
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    // Starts to send or receive one message; `*started` stays false while the link is not connected
    // or has no room: try again later, with the same message.
    virtual Status start(void* data,
                         size_t bytes,
                         const WireOperation& operation,
                         Transfer* transfer,
                         bool* started) = 0;
    // Asks for the oldest message; `*bytes` receives the size of its data when done.
    virtual Status test(Transfer* transfer, bool* done, size_t* bytes) = 0;

    // The largest message of a send or receive with that much data; 0: as the caller likes.
    [[nodiscard]] virtual size_t largest_message(Protocol) const noexcept { return 0; }

  protected:
    // The handle of the receiving side.
    void tell_handle(const void* handle, size_t bytes);
    bool hear_handle(std::vector<char>* handle);
    [[nodiscard]] int own_node() const { return members_.info(members_.rank).node; }
    void count_sent(size_t bytes, size_t on_wire) const noexcept;
    static void count_received(size_t bytes) noexcept;

    const Members& members_;
    int peer_;
    Channel channel_;
    bool sending_;
    bool inter_node_;
};

// Totals of this process.
void read_counters(EmulatorCounters* out) noexcept;

}  // namespace slimwire::emu
