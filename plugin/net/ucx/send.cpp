#include <cerrno>
#include <cstring>

#include "plugin/net/ucx/connections.h"

namespace slimwire::net {
namespace {

// Credits are looked for on the socket when fewer than this many are left.
constexpr uint64_t kFewCredits = kControlSlots / 2;
// Or when so many data messages went ahead: what the receiver tells must not fill the socket.
constexpr size_t kAheadMessages = 64;

}  // namespace

UcxSendWire::~UcxSendWire() {
    link_->close(Bye{kByeMagic, {sent_[0], sent_[1]}});
}

Status UcxSendWire::test(WireRequest* opaque, bool* done, size_t* bytes) {
    const std::lock_guard lock(link_->mutex());
    SLIMWIRE_TRY(
        link_->advance(reinterpret_cast<UcxRequest*>(opaque), Outlook::kOpen, done, bytes));
    // Nothing stays in the socket for long: behind it stands the peer's end.
    if (!*done && link_->take_unread()) {
        return read_credits();
    }
    return {};
}

Status UcxSendWire::take_credit(const Credit& credit) {
    for (int lane = 0; lane < kLanes; ++lane) {
        if (credit.posted[lane] < credit_.posted[lane]) {
            return link_->fail("it took a credit back");
        }
        if (credit.posted[lane] > sent_[lane] + kMostRequests) {
            return link_->fail("it has more receives posted than a receiver can have");
        }
    }
    credit_ = credit;
    const int data = static_cast<int>(Lane::kData);
    while (!ahead_.empty() && sent_[data] - ahead_.size() < credit_.posted[data]) {
        ahead_bytes_ -= ahead_.front();
        ahead_.pop_front();
    }
    return {};
}

Status UcxSendWire::read_credits() {
    while (true) {
        bool end = false;
        const long got =
            receive_some(link_->socket(), reinterpret_cast<uint8_t*>(&coming_) + come_bytes_,
                         sizeof coming_ - come_bytes_, &end);
        if (got == 0) {
            return {};
        }
        if (got < 0) {
            return link_->fail(end ? "it has closed the connection" : strerror(errno));
        }
        come_bytes_ += static_cast<size_t>(got);
        if (come_bytes_ == sizeof coming_) {
            come_bytes_ = 0;
            SLIMWIRE_TRY(take_credit(coming_));
        }
    }
}

Word UcxSendWire::word() noexcept {
    const std::lock_guard lock(link_->mutex());
    if (link_->failure().ok() && !link_->hung_up()) {
        static_cast<void>(read_credits());  // a failure stays with the link
    }
    return {credit_.raw_bytes_per_s, credit_.coded_bytes_per_s};
}

Status UcxSendWire::has_room(Lane lane, size_t bytes, bool* room) {
    const uint64_t& sent = sent_[static_cast<int>(lane)];
    const uint64_t& posted = credit_.posted[static_cast<int>(lane)];
    if (lane == Lane::kControl) {
        if (posted - sent < kFewCredits) {
            SLIMWIRE_TRY(read_credits());
        }
        *room = sent < posted;
        return {};
    }
    const auto fits = [&](size_t most) { return ahead_bytes_ + bytes <= most || sent < posted; };
    if (!fits(kAheadBytes / 2) || ahead_.size() >= kAheadMessages) {
        SLIMWIRE_TRY(read_credits());
    }
    *room = fits(kAheadBytes);
    return {};
}

Status UcxSendWire::send(
    Lane lane, const void* data, size_t bytes, WireMemory*, WireRequest** request) {
    *request = nullptr;
    const std::lock_guard lock(link_->mutex());
    SLIMWIRE_TRY(link_->failure());
    if (link_->hung_up()) {
        return link_->fail("it has closed the connection or its process has ended");
    }
    if (lane == Lane::kControl && bytes > kControlBytes) {
        return {Code::kInternalError, "a control message of " + std::to_string(bytes) + " bytes"};
    }
    bool room = false;
    SLIMWIRE_TRY(has_room(lane, bytes, &room));
    if (!room) {
        return {};
    }
    uint64_t& sent = sent_[static_cast<int>(lane)];
    UcxRequest* started = link_->new_request(lane, sent);
    if (started == nullptr) {
        return {};
    }
    started->bytes = bytes;
    if (lane == Lane::kData && sent >= credit_.posted[static_cast<int>(lane)]) {
        ahead_.push_back(bytes);
        ahead_bytes_ += bytes;
    }
    ++sent;
    link_->post_send(data, started);
    *request = reinterpret_cast<WireRequest*>(started);
    return {};
}

}  // namespace slimwire::net
