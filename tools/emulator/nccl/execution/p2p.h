// The sends and receives of one group on one communicator. They progress together: for each peer
// and direction the messages keep their order, different peers do not wait for each other, and
// large buffers are cut into chunks that take turns. A send to oneself meets the receive from
// oneself. Thread contract: one thread, the one that runs the communicator's job.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "codecs/base/status.h"
#include "tools/emulator/nccl/execution/task.h"
#include "tools/emulator/nccl/transport/transport.h"

namespace slimwire::emu {

class PointToPoint {
  public:
    // `tasks` with pointers that this process may touch. Fails when sends and receives to oneself
    // do not pair up.
    static Result<PointToPoint> make(Transport& transport,
                                     const std::vector<Task>& tasks,
                                     size_t chunk_bytes);
    PointToPoint(PointToPoint&&) = default;
    PointToPoint(const PointToPoint&) = delete;
    PointToPoint& operator=(const PointToPoint&) = delete;
    Status advance(bool* moved);
    [[nodiscard]] bool done() const noexcept;
    // Whether something has still to come from that rank or to go to it.
    [[nodiscard]] bool waits_for(int rank) const noexcept;

  private:
    struct Buffer {
        unsigned char* data;
        size_t bytes;
        size_t message_bytes;  // at most
        WireOperation operation;
        size_t started = 0;
        bool empty_started = false;  // a message without bytes is one message, too
        [[nodiscard]] bool all_started() const noexcept {
            return bytes == 0 ? empty_started : started == bytes;
        }
    };
    struct InFlight {
        Transfer transfer;
        size_t bytes;
    };
    // One peer and direction.
    struct Flow {
        Link* link;
        bool sending;
        int peer;
        std::deque<Buffer> waiting;
        std::deque<InFlight> in_flight;
        [[nodiscard]] bool done() const noexcept { return waiting.empty() && in_flight.empty(); }
    };

    PointToPoint() = default;
    static Status start_one(Flow& flow, bool* moved);
    static Status complete(Flow& flow, bool* moved);

    std::vector<Flow> flows_;
};

}  // namespace slimwire::emu
