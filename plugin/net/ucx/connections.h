// The two directions of a connection over a Link: messages are numbered per lane, which their
// tag says (handshake.h). Thread contract: wire.h.
//
// Credits: the receiver tells, on the link's socket, how many receives it has posted on each lane.
// The control sender sends no more messages than that (kControlSlots without a word). The data
// sender runs ahead of posted receives by kAheadBytes at most, which is what UCX then has to keep
// for a receiver that is late.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "plugin/net/ucx/link.h"
#include "plugin/net/ucx/ucx_wire.h"
#include "plugin/net/wire.h"

namespace slimwire::net {

inline constexpr size_t kAheadBytes = 4 << 20;

// What both have of their link.
template <class Base>
class UcxSide : public Base {
  public:
    UcxSide(std::shared_ptr<UcxState> state, std::shared_ptr<Link> link)
        : state_(std::move(state)), link_(std::move(link)) {}

    void drop() noexcept override { link_->drop(); }
    Status register_memory(void* data, size_t bytes, WireMemory** memory) override {
        return link_->device().register_memory(data, bytes, memory);
    }
    Status deregister_memory(WireMemory* memory) override {
        return link_->device().deregister_memory(memory);
    }
    [[nodiscard]] const std::string& peer() const noexcept override { return link_->peer(); }

  protected:
    const std::shared_ptr<UcxState> state_;
    const std::shared_ptr<Link> link_;
};

class UcxSendWire final : public UcxSide<SendWire> {
  public:
    using UcxSide::UcxSide;
    ~UcxSendWire() override;
    Status test(WireRequest* request, bool* done, size_t* bytes) override;
    Status send(Lane lane,
                const void* data,
                size_t bytes,
                WireMemory* memory,
                WireRequest** request) override;
    [[nodiscard]] Word word() noexcept override;

  private:
    Status read_credits();
    Status take_credit(const Credit& credit);
    // Whether the next message of `lane` may go.
    Status has_room(Lane lane, size_t bytes, bool* room);

    uint64_t sent_[kLanes] = {};
    Credit credit_ = {{kControlSlots, 0}, 0, 0};
    std::deque<size_t> ahead_;  // sizes of the data messages sent before their receive is known of
    size_t ahead_bytes_ = 0;    // their sum
    Credit coming_{};           // of which part has come
    size_t come_bytes_ = 0;
};

class UcxReceiveWire final : public UcxSide<ReceiveWire> {
  public:
    using UcxSide::UcxSide;
    ~UcxReceiveWire() override;
    Status test(WireRequest* request, bool* done, size_t* bytes) override;
    Status receive(
        Lane lane, void* data, size_t capacity, WireMemory* memory, WireRequest** request) override;

    void tell(const Word& word) noexcept override;

  private:
    Status give_credit(Lane lane, size_t capacity);
    void read_bye() noexcept;
    [[nodiscard]] Outlook outlook(const UcxRequest& request) const noexcept;

    uint64_t posted_[kLanes] = {};
    Credit told_ = {{kControlSlots, 0}, 0, 0};
    Word word_;
    Bye bye_{};
    size_t bye_bytes_ = 0;
    bool bye_over_ = false;  // the socket has no more to say
};

}  // namespace slimwire::net
