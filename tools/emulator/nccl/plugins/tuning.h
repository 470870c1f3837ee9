// Which protocol a collective uses between nodes: by the cost of each as NCCL models it, limited by
// NCCL_PROTO, and steered by the tuner plugin. The emulator has one algorithm, the ring; what a
// tuner says about others has no effect. Thread contract: the thread that launches the
// communicator's work.
#pragma once

#include <cstdint>
#include <memory>

#include "codecs/base/status.h"
#include "tools/emulator/nccl/bootstrap/protocol.h"
#include "tools/emulator/nccl/execution/task.h"

namespace slimwire::emu {

class Tuning {
  public:
    struct Place {
        uint64_t comm;
        int nodes, ranks;
        int min_node_ranks, max_node_ranks;
        int speed_mbps;  // of the network card
    };
    // Loads the tuner: NCCL_TUNER_PLUGIN or libnccl-tuner.so, else the net plugin's library;
    // version 7 of its table. Fails when NCCL_PROTO makes no sense or the tuner cannot be
    // initialised.
    static Result<std::unique_ptr<Tuning>> make(const Place& place);
    ~Tuning();
    Tuning(const Tuning&) = delete;
    Tuning& operator=(const Tuning&) = delete;

    // Asks the tuner, too. kInvalidUsage when nothing is left to choose from.
    Result<Protocol> choose(const Task& task);

  private:
    explicit Tuning(const Place& place) : place_(place) {}

    Place place_;
    unsigned allowed_ = 7;  // mask of protocols
    bool tuner_ = false;
    void* context_ = nullptr;
};

}  // namespace slimwire::emu
