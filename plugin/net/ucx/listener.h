// The receiving side's door: a TCP socket at which senders say Hello. Whoever says something else,
// or nothing in time, is refused with one log line; those who wait are bounded in number.
#pragma once

#include <list>
#include <memory>
#include <string>

#include "plugin/net/ucx/connections.h"
#include "plugin/net/ucx/handshake.h"
#include "plugin/net/ucx/ucx_wire.h"

namespace slimwire::net {

class UcxListener final : public WireListener {
  public:
    static Result<std::unique_ptr<UcxListener>> open(std::shared_ptr<UcxState> state,
                                                     std::shared_ptr<UcxDevice> device,
                                                     WireHandle* handle);
    Status accept(std::unique_ptr<ReceiveWire>* wire) override;

  private:
    // Somebody at the door: first listened to, then answered.
    struct Guest {
        Socket socket;
        SocketAddress peer;
        uint64_t since_ns = 0;
        Hello hello{};
        size_t heard = 0;
        std::shared_ptr<Link> link;  // once the hello is right
        std::string answer;
        size_t said = 0;
    };
    enum class Fate { kWaits, kRefused, kConnected };

    UcxListener(std::shared_ptr<UcxState> state, std::shared_ptr<UcxDevice> device);
    Status let_in_all();
    Result<Fate> attend(Guest* guest);
    Status prepare_answer(Guest* guest);
    void refuse(const Guest& guest, const std::string& why) const;

    const std::shared_ptr<UcxState> state_;
    const std::shared_ptr<UcxDevice> device_;
    Cookie cookie_{};
    Socket door_;
    std::list<Guest> guests_;
};

}  // namespace slimwire::net
