#include <algorithm>
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

namespace {

// Posted receives are told to the sender when so many have gathered, and a large one at once. What
// is not told is then always less than what the sender may have sent without knowing, so it never
// waits for a word that does not come.
constexpr uint64_t kControlBatch = kControlSlots / 4;
constexpr uint64_t kDataBatch = 16;
constexpr size_t kLargeBytes = 64 << 10;
static_assert(kDataBatch * kLargeBytes < kAheadBytes / 2);

}  // namespace

UcxReceiveWire::~UcxReceiveWire() {
    link_->close(std::nullopt);
}

void UcxReceiveWire::read_bye() noexcept {
    while (!bye_over_ && bye_bytes_ < sizeof bye_) {
        bool end = false;
        const long got =
            receive_some(link_->socket(), reinterpret_cast<uint8_t*>(&bye_) + bye_bytes_,
                         sizeof bye_ - bye_bytes_, &end);
        if (got <= 0) {
            bye_over_ = true;  // the socket was at its end when it was looked at
            return;
        }
        bye_bytes_ += static_cast<size_t>(got);
    }
}

Outlook UcxReceiveWire::outlook(const UcxRequest& request) const noexcept {
    if (bye_bytes_ < sizeof bye_ || bye_.magic != kByeMagic) {
        return Outlook::kOpen;
    }
    return request.sequence < bye_.messages[static_cast<int>(request.lane)] ? Outlook::kPromised
                                                                            : Outlook::kNever;
}

Status UcxReceiveWire::test(WireRequest* opaque, bool* done, size_t* bytes) {
    const std::lock_guard lock(link_->mutex());
    auto* request = reinterpret_cast<UcxRequest*>(opaque);
    if (link_->hung_up() && link_->failure().ok()) {
        read_bye();
    }
    return link_->advance(request, outlook(*request), done, bytes);
}

Status UcxReceiveWire::give_credit(Lane lane, size_t capacity) {
    const uint64_t posted = posted_[static_cast<int>(lane)];
    const uint64_t told = told_.posted[static_cast<int>(lane)];
    const uint64_t batch = lane == Lane::kControl   ? kControlBatch
                           : capacity > kLargeBytes ? 1
                                                    : kDataBatch;
    if (posted < told + batch || link_->hung_up()) {
        return {};
    }
    const Credit credit = {{std::max(posted_[0], told_.posted[0]), posted_[1]},
                           word_.raw_bytes_per_s,
                           word_.coded_bytes_per_s};
    const long sent = send_some(link_->socket(), &credit, sizeof credit);
    if (sent == static_cast<long>(sizeof credit)) {
        told_ = credit;
        return {};
    }
    if (sent < 0) {
        link_->hang_up();  // what has come already may still be received
        return {};
    }
    return link_->fail("it does not read its credits");
}

// Goes with the next credit.
void UcxReceiveWire::tell(const Word& word) noexcept {
    const std::lock_guard lock(link_->mutex());
    word_ = word;
}

Status UcxReceiveWire::receive(
    Lane lane, void* data, size_t capacity, WireMemory*, WireRequest** request) {
    *request = nullptr;
    const std::lock_guard lock(link_->mutex());
    SLIMWIRE_TRY(link_->failure());
    uint64_t& posted = posted_[static_cast<int>(lane)];
    UcxRequest* started = link_->new_request(lane, posted);
    if (started == nullptr) {
        return {};
    }
    started->capacity = capacity;
    ++posted;
    link_->post_receive(data, started);
    SLIMWIRE_TRY(give_credit(lane, capacity));
    *request = reinterpret_cast<WireRequest*>(started);
    return {};
}

}  // namespace slimwire::net
