// One direction between two ranks of a communicator, over a network table: opened when first used.
// The receiving side listens and sends the handle over the mesh; the sending side connects when the
// handle has come. Nothing here blocks.
//
// Link hands the client's own buffers to the built-in network, which needs no registration.
// staged_link.h is what plugins see.
//
// Callers: ring.cpp and p2p.cpp. Thread contract: one thread at a time, the one that runs the
// communicator's job; close() also from a thread that has made sure that no job runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "codecs/base/emulator_abi.h"
#include "codecs/base/status.h"
#include "plugin/net/abi/net_v11.h"
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

// A table with this communicator's context in it.
struct NetContextOf {
    const net::NetV11* table = nullptr;
    void* context = nullptr;
    int device = 0;
    net::NetPropertiesV11 properties{};
    WireBuffers buffers{};
    bool device_memory = false;        // buffers are handed over as device pointers
    net::NetAttrV11 attributes{};      // what set_net_attr was told last
    bool optional_completion = false;  // NCCL_NET_OPTIONAL_RECV_COMPLETION
};

// The messages that one task moves over one link: what NCCL calls a proxy operation.
struct WireOperation {
    Protocol protocol = Protocol::kSimple;
    int function = 0;  // ncclFunc_t
    size_t bytes = 0;  // of data, in all

    static WireOperation of(const Task& task, size_t bytes) noexcept {
        return {task.protocol, task_function(task.kind), bytes};
    }
};

// A message in flight.
struct Transfer {
    void* request = nullptr;
    // Of staged links.
    Protocol protocol = Protocol::kSimple;
    unsigned char* data = nullptr;  // where it goes
    size_t bytes = 0;               // of data
    size_t lines = 0;               // with flags, that have come
    uint64_t number = 0;            // in its pool
    bool delivered = false;
    bool received = false;  // the request is done; a flush may be under way
    size_t arrived = 0;     // bytes, as the network says
};

class Link {
  public:
    Link(const Members& members,
         NetContextOf& net,
         int peer,
         Channel channel,
         bool sending,
         bool inter_node);
    virtual ~Link() { close(); }
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    // Starts to send or receive one message; `*started` stays false while the link is not connected
    // or has no room: try again later, with the same message.
    virtual Status start(void* data,
                         size_t bytes,
                         const WireOperation& operation,
                         Transfer* transfer,
                         bool* started);
    // `*bytes` receives the size of the message's data when done.
    virtual Status test(Transfer* transfer, bool* done, size_t* bytes);
    virtual void close() noexcept;

    // The largest message of a send or receive with that much data; 0: as the caller likes.
    [[nodiscard]] virtual size_t largest_message(Protocol) const noexcept { return 0; }

  protected:
    // Goes on with connecting; comm_ is set when that is done.
    Status connect_or_listen();
    [[nodiscard]] Status failure(ncclResult_t result, const char* what) const;
    void count_sent(size_t bytes, size_t on_wire) const noexcept;
    static void count_received(size_t bytes) noexcept;

    const Members& members_;
    NetContextOf& net_;
    int peer_;
    Channel channel_;
    bool sending_;
    bool inter_node_;
    void* comm_ = nullptr;

  private:
    Status connect_step();
    Status listen_step();

    void* listener_ = nullptr;
    std::vector<char> handle_;
};

// Totals of this process.
void read_counters(EmulatorCounters* out) noexcept;

}  // namespace slimwire::emu
