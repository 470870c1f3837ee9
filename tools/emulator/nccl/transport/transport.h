// How one communicator moves bytes: its links to its peers (link.h) and the networks under them.
// The emulator's own network carries traffic inside a node; between nodes a plugin does, where
// there is one.
//
// Callers: communicator.cpp, ring.cpp and p2p.cpp. Thread contract: one thread at a time, the one
// that runs the communicator's job; close() also from a thread that has made sure that no job runs;
// tune() from any.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "codecs/base/status.h"
#include "tools/emulator/nccl/plugins/net_select.h"
#include "tools/emulator/nccl/plugins/tuning.h"
#include "tools/emulator/nccl/transport/shaper.h"
#include "tools/emulator/nccl/transport/staged_link.h"

namespace slimwire::emu {

class Transport {
  public:
    explicit Transport(Members members) : members_(std::move(members)) {}
    ~Transport() { close(); }
    Transport(const Transport&) = delete;
    Transport& operator=(const Transport&) = delete;

    // Initialises the networks that this communicator will need, and its tuner.
    Status open(int device, const CommSettings& settings);
    void close() noexcept;

    [[nodiscard]] const Members& members() const noexcept { return members_; }
    Link& link(int peer, Channel channel, bool sending);

    // Sets the protocol of a task's messages between nodes. Asks the tuner about collectives.
    Status tune(Task* task);
    // The largest message into which a collective may be cut; `otherwise` where that is free.
    [[nodiscard]] size_t collective_message(Protocol protocol, size_t otherwise) const noexcept;

  private:
    [[nodiscard]] bool inter_node(int peer) const;
    [[nodiscard]] bool staged() const noexcept { return assigned_.plugin >= 0; }
    Status open_plugin(int device);
    Status open_tuner();

    Members members_;
    bool spans_nodes_ = false;
    AssignedNet assigned_;
    NetContextOf inter_;        // of the plugin
    Shaper* shaper_ = nullptr;  // of the emulator's own network; null without a shaped link
    std::mutex tuning_mutex_;   // tuning_, and what tune() reads, beside a job that closes
    std::unique_ptr<Tuning> tuning_;
    std::map<std::tuple<int, Channel, bool>, std::unique_ptr<Link>> links_;
};

}  // namespace slimwire::emu
