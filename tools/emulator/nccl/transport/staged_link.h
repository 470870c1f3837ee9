// A link between nodes over a plugin, as NCCL's proxies drive it: messages go through buffers of
// the link's own, registered once, divided into slots that are used in turn. A receive offers a
// whole slot, or as much as the operation has in all, whatever will come. LL and LL128 messages
// carry flags; the receiver looks at those while the slot fills, and takes the data when they are
// there.
//
// Source: NCCL 2.28, transport/net.cc. Thread contract: that of Link.
#pragma once

#include <array>

#include "tools/emulator/nccl/plugins/net_select.h"
#include "tools/emulator/nccl/transport/link.h"

namespace slimwire::emu {

// A plugin's table with this communicator's context in it.
struct NetContextOf {
    const net::NetV11* table = nullptr;
    void* context = nullptr;
    int device = 0;
    NetCard card;
    WireBuffers buffers{};
    net::NetAttrV11 attributes{};      // what set_net_attr was told last
    bool optional_completion = false;  // NCCL_NET_OPTIONAL_RECV_COMPLETION
};

class StagedLink final : public Link {
  public:
    StagedLink(const Members& members, NetContextOf& net, int peer, Channel channel, bool sending)
        : Link(members, peer, channel, sending, true), net_(net) {}
    ~StagedLink() override;

    Status start(void* data,
                 size_t bytes,
                 const WireOperation& operation,
                 Transfer* transfer,
                 bool* started) override;
    Status test(Transfer* transfer, bool* done, size_t* bytes) override;
    [[nodiscard]] size_t largest_message(Protocol protocol) const noexcept override;

  private:
    // The slots of one protocol.
    struct Pool {
        unsigned char* memory = nullptr;
        void* mhandle = nullptr;
        size_t slot_bytes = 0;
        int slots = 0;
        uint64_t started = 0;  // messages, so far
        uint64_t done = 0;
        bool prepared = false;  // the next slot holds a message that the network has not taken

        [[nodiscard]] size_t offset(uint64_t number) const noexcept {
            return number % static_cast<uint64_t>(slots) * slot_bytes;
        }
    };

    Status connect_step();
    Status listen_step();
    [[nodiscard]] Status checked(ncclResult_t result, const char* what) const;
    Status open_pool(Protocol protocol, Pool* pool);
    Pool& pool_of(Protocol protocol) { return pools_[static_cast<size_t>(protocol)]; }
    // Tells the network what comes next, where that changed.
    void set_attributes(const WireOperation& operation);
    static void deliver(Transfer& transfer, const Pool& pool) noexcept;
    Status ask(Transfer& transfer);
    Status finish_flagged(Transfer& transfer, const Pool& pool, size_t* bytes);

    NetContextOf& net_;
    void* comm_ = nullptr;  // of the network, once connected
    void* listener_ = nullptr;
    std::vector<char> handle_;
    std::array<Pool, kProtocols> pools_;
};

}  // namespace slimwire::emu
