// The sending side's way to a connection, one step at each call of WireContext::connect().
#pragma once

#include <memory>
#include <string>

#include "plugin/net/ucx/connections.h"
#include "plugin/net/ucx/handshake.h"
#include "plugin/net/ucx/ucx_wire.h"

namespace slimwire::net {

class UcxConnecting final : public WireConnecting {
  public:
    // kInvalidArgument when the handle is not of this wire.
    static Result<std::unique_ptr<UcxConnecting>> start(std::shared_ptr<UcxState> state,
                                                        std::shared_ptr<UcxDevice> device,
                                                        const WireHandle& handle);
    // A null *wire: not yet. After an error the attempt is over.
    Status step(std::unique_ptr<SendWire>* wire);

  private:
    UcxConnecting(std::shared_ptr<UcxState> state, std::shared_ptr<UcxDevice> device);
    Status say_hello(bool* said);
    Status hear_answer(bool* heard);
    Status lost(const std::string& why) const;

    const std::shared_ptr<UcxState> state_;
    const std::shared_ptr<UcxDevice> device_;
    SocketAddress address_{};
    Socket socket_;
    Hello hello_{};
    size_t said_ = 0;
    uint64_t unreachable_ns_ = 0;  // when the worker was first not found
    std::string answer_;           // Answer and the worker's address, as far as they have come
};

}  // namespace slimwire::net
