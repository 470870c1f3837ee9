// What the objects of a wrapped wire share: the inner plugin and one context of it, and how its
// results are told.
#pragma once

#include <cstdint>
#include <memory>

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

// An inner comm that is closed in the end.
class InnerComm {
  public:
    enum class Kind : uint8_t { kSend, kReceive };
    InnerComm() = default;
    InnerComm(std::shared_ptr<InnerContext> context, Kind kind, void* comm)
        : context_(std::move(context)), kind_(kind), comm_(comm) {}
    ~InnerComm() { close(); }
    InnerComm(InnerComm&& other) noexcept { *this = std::move(other); }
    InnerComm& operator=(InnerComm&& other) noexcept {
        if (this != &other) {
            close();
            context_ = std::move(other.context_);
            kind_ = other.kind_;
            comm_ = other.comm_;
            other.comm_ = nullptr;
        }
        return *this;
    }

    void close() noexcept {
        if (comm_ != nullptr) {
            InnerTable& inner = context_->inner();
            static_cast<void>(kind_ == Kind::kSend ? inner.close_send(comm_)
                                                   : inner.close_recv(comm_));
            comm_ = nullptr;
        }
    }
    [[nodiscard]] void* get() const noexcept { return comm_; }
    [[nodiscard]] InnerTable& inner() const noexcept { return context_->inner(); }

  private:
    std::shared_ptr<InnerContext> context_;
    Kind kind_ = Kind::kSend;
    void* comm_ = nullptr;
};

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
std::unique_ptr<SendWire> make_wrapped_send(InnerComm (&lanes)[kLanes], bool reg_is_global);
std::unique_ptr<ReceiveWire> make_wrapped_receive(InnerComm (&lanes)[kLanes], bool reg_is_global);

// Both ends' handshake.
Status wrapped_listen(std::shared_ptr<InnerContext> context,
                      int device,
                      bool reg_is_global,
                      void* handle,
                      std::unique_ptr<WireListener>* listener);
Status wrapped_connect(const std::shared_ptr<InnerContext>& context,
                       int device,
                       bool reg_is_global,
                       const void* handle,
                       std::unique_ptr<WireConnecting>* attempt,
                       std::unique_ptr<SendWire>* wire);

}  // namespace slimwire::net
