// How one communicator moves bytes: one-directional links to its peers, each over a network table,
// opened when first used. The receiving side listens and sends the handle over the mesh; the
// sending side connects when the handle has come. Nothing here blocks.
//
// Callers: ring.cpp and p2p.cpp through Link. Thread contract: one thread at a time, the one that
// runs the communicator's job; close() also from a thread that has made sure that no job runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "codecs/base/emulator_abi.h"
#include "codecs/base/status.h"
#include "plugin/net/abi/net_v11.h"
#include "tools/emulator/nccl/mesh.h"

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
};

// A message in flight.
struct Transfer {
    void* request = nullptr;
    void* mhandle = nullptr;
};

class Link {
  public:
    Link(const Members& members,
         const NetContextOf& net,
         int peer,
         Channel channel,
         bool sending,
         bool inter_node);
    ~Link() { close(); }
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    // Starts to send or receive one message; `*started` stays false while the link is not connected
    // or has no room: try again later.
    Status start(void* data, size_t bytes, Transfer* transfer, bool* started);
    // `*bytes` receives the size of the message when done.
    Status test(Transfer* transfer, bool* done, size_t* bytes);
    void close() noexcept;

  private:
    Status connect_step();
    Status listen_step();
    [[nodiscard]] Status failure(ncclResult_t result, const char* what) const;

    const Members& members_;
    const NetContextOf& net_;
    int peer_;
    uint64_t tag_;
    bool sending_;
    bool inter_node_;
    void* comm_ = nullptr;
    void* listener_ = nullptr;
    std::vector<char> handle_;
};

class Transport {
  public:
    explicit Transport(Members members) : members_(std::move(members)) {}
    ~Transport() { close(); }
    Transport(const Transport&) = delete;
    Transport& operator=(const Transport&) = delete;

    // Initialises the networks that this communicator will need.
    Status open(int device);
    void close() noexcept;

    [[nodiscard]] const Members& members() const noexcept { return members_; }
    Link& link(int peer, Channel channel, bool sending);

  private:
    [[nodiscard]] bool inter_node(int peer) const;
    Status open_net(const net::NetV11* table, int device, NetContextOf* out);

    Members members_;
    NetContextOf intra_;
    NetContextOf inter_;
    std::map<std::tuple<int, Channel, bool>, std::unique_ptr<Link>> links_;
};

// Totals of this process.
void read_counters(EmulatorCounters* out) noexcept;

}  // namespace slimwire::emu
