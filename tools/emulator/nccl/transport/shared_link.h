// A link over the emulator's own network: inside a node, and between nodes where there is no
// plugin. All emulated nodes are processes of one machine, so it is a ring of bytes in memory
// without a name, made by the receiving side, which tells the sending side its process and
// descriptor over the mesh. A message is a header (size and wire time) and its data; messages lie
// in the ring in the order of their start. A send is done when its bytes are in the ring. That a
// peer is gone, the ring does not tell; the mesh does.
//
// The shaped link is in here too: messages between nodes take their time on both cards (shaper.h).
//
// Thread contract: that of Link; the two sides share a ring.
#pragma once

#include <deque>
#include <memory>

#include "tools/emulator/nccl/bootstrap/sockets.h"
#include "tools/emulator/nccl/transport/link.h"
#include "tools/emulator/nccl/transport/shaper.h"

namespace slimwire::emu {

struct SharedRing;

class SharedLink final : public Link {
  public:
    // `shaper`: of messages between nodes; null where nothing holds them up.
    SharedLink(
        const Members& members, Shaper* shaper, int peer, Channel channel, bool sending, bool far);

    Status start(void* data,
                 size_t bytes,
                 const WireOperation& operation,
                 Transfer* transfer,
                 bool* started) override;
    Status test(Transfer* transfer, bool* done, size_t* bytes) override;

  private:
    struct Unmap {
        void operator()(SharedRing* ring) const noexcept;
    };
    using RingView = std::unique_ptr<SharedRing, Unmap>;

    struct Header {
        uint64_t bytes = 0;
        uint64_t start_ns = 0;  // when the first bit left the sender; 0 on an unshaped link
    };

    struct Message {
        Header header;
        unsigned char* data = nullptr;
        size_t capacity = 0;
        size_t header_moved = 0;
        size_t data_moved = 0;
        bool ingress_reserved = false;
        uint64_t done_at_ns = 0;  // shaped: completion is not reported before

        [[nodiscard]] bool header_here() const noexcept { return header_moved == sizeof(Header); }
        [[nodiscard]] bool moved() const noexcept {
            return header_here() && data_moved == header.bytes;
        }
    };

    static Result<RingView> map(int fd);
    Status connect_step();
    Status listen_step();
    // Copies between `data` and the ring what can be; true when all `bytes` are over.
    bool move(void* data, size_t bytes, size_t* done);
    // Moves what can be moved of the messages, the oldest first.
    Status progress();
    bool may_send_now(uint64_t now);
    WireSlot reserve_egress(uint64_t now, uint64_t bytes);
    // True when the message has also crossed both cards and the wire.
    bool wire_time_over(Message& message, uint64_t now);

    Shaper* shaper_;
    RingView ring_;
    Socket descriptor_;  // of the receiving side, until the sending side has the ring
    bool connected_ = false;
    std::deque<Message> messages_;   // started and not done
    uint64_t refused_since_ns_ = 0;  // a message waits for room in the card's queue since then
};

}  // namespace slimwire::emu
