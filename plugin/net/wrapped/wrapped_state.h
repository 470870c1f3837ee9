// What the objects of a wrapped wire share: the inner plugin and one context of it, and how its
// results are told.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "codecs/base/status.h"
#include "plugin/net/wire.h"
#include "plugin/net/wrapped/inner_table.h"

namespace slimwire::net {

// Of what a call gave: kRemoteError unless the inner plugin said that the call was wrong; names
// plugin, call and result.
Status inner_status(const InnerTable& inner, const char* call, ncclResult_t result);

// One context of the inner plugin; finalized when the last object that uses it is gone.
class InnerContext {
  public:
    InnerContext(std::shared_ptr<InnerTable> inner, void* context)
        : inner_(std::move(inner)), context_(context) {}
    ~InnerContext() { static_cast<void>(inner_->finalize(context_)); }
    InnerContext(const InnerContext&) = delete;
    InnerContext& operator=(const InnerContext&) = delete;

    [[nodiscard]] InnerTable& inner() const noexcept { return *inner_; }
    [[nodiscard]] void* get() const noexcept { return context_; }

  private:
    std::shared_ptr<InnerTable> inner_;
    void* context_;
};

// An inner comm; closed in the end, in front of its context.
using InnerComm = std::shared_ptr<void>;

// The tag of everything that slimwire sends through an inner plugin.
inline constexpr int kInnerTag = 0x736c;

// The first message of each inner connection; the inner plugin carries it whole.
struct WrappedHello {
    uint32_t magic;
    uint16_t version;
    uint16_t lane;
    uint64_t connection;  // random, the same for its lanes
    uint64_t cookie;      // of the listener, 0 where the handle has no room
};
static_assert(sizeof(WrappedHello) == 24);
inline constexpr uint32_t kWrappedMagic = 0x68434c53;  // "SLCh" in memory
inline constexpr uint16_t kWrappedVersion = 1;

// The end of NCCL's handle, if the inner plugin leaves it zero.
struct WrappedTail {
    uint32_t magic;
    uint32_t version;
    uint64_t cookie;
};
inline constexpr size_t kTailOffset = kNetHandleBytes - sizeof(WrappedTail);

// Never 0.
uint64_t random_number();

// Finished connections, made by the handshake.
std::unique_ptr<SendWire> make_wrapped_send(std::shared_ptr<InnerContext> context,
                                            InnerComm (&lanes)[kLanes],
                                            bool reg_is_global);
std::unique_ptr<ReceiveWire> make_wrapped_receive(std::shared_ptr<InnerContext> context,
                                                  InnerComm (&lanes)[kLanes],
                                                  bool reg_is_global);

// Both ends' handshake. `global`: by device, whether a registration holds for all comms.
std::unique_ptr<WireContext> make_wrapped_context(std::shared_ptr<InnerContext> context,
                                                  std::vector<bool> global);

}  // namespace slimwire::net
